//! The certificate by which clients know the broker, and those by which it knows them. The files are
//! looked at for every connection, so that a renewed certificate counts from the next one on.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
        version::TLS13,
    },
};

use x509_parser::parse_x509_certificate;

use crate::{
    files::Files,
    metrics::{File, Metrics},
};

/// Where the certificates are, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The broker's certificate, with those in between to the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates that clients must show; `None`: they need none.
    pub client_ca: Option<PathBuf>,
}

/// TLS 1.3 as the files say.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    seen: Files,
}

impl TlsFiles {
    /// TLS with what is in the files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| format!("no TLS: {error}"))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| unusable(file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier = verifier.build().map_err(|error| unusable(file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (cert, key) = (&self.cert, self.key.display());
        let private_key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| format!("no private key in {key}: {error}"))?;
        let mut config = builder
            .with_single_cert(certificates(cert)?, private_key)
            .map_err(|error| {
                format!(
                    "{} and {key} are no certificate with its key: {error}",
                    cert.display()
                )
            })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn look(&self) -> Files {
        let client_ca = self.client_ca.as_deref();
        Files::look(
            [self.cert.as_path(), &self.key]
                .into_iter()
                .chain(client_ca),
        )
    }
}

impl Tls {
    /// With what is in the files now.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(files: TlsFiles, metrics: Metrics) -> Result<Self, String> {
        let seen = files.look();
        let config = files.load()?;
        let current = Mutex::new(Current { config, seen });
        let tls = Self {
            files,
            current,
            metrics,
        };
        tls.tell(true);
        Ok(tls)
    }

    /// Whether the files could be used, and until when the certificate is good.
    fn tell(&self, is_good: bool) {
        self.metrics.reloaded(File::Certificate, is_good);
        let first = certificates(&self.files.cert).ok();
        let first = first.and_then(|all| all.into_iter().next());
        let parsed = first.as_ref().map(|first| parse_x509_certificate(first));
        if let (true, Some(Ok((_, parsed)))) = (is_good, parsed) {
            let ends = parsed.validity().not_after.timestamp();
            self.metrics.certificate_ends(ends);
        }
    }

    /// For the next connection. While new files are wrong, or only one of them is there yet, the old
    /// ones count.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.seen.have_changed() {
            match self.files.load() {
                Ok(config) => {
                    current.config = config;
                    self.tell(true);
                    tracing::info!("the certificate was read again");
                }
                Err(problem) => {
                    self.tell(false);
                    tracing::error!("{problem}");
                    tracing::error!("the certificate in use stays");
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&current.config))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unusable(file, &error))?;
    if certificates.is_empty() {
        return Err(format!("no certificate in {}", file.display()));
    }
    Ok(certificates)
}

fn unusable(file: &Path, error: &impl std::fmt::Display) -> String {
    format!("no usable certificate in {}: {error}", file.display())
}
