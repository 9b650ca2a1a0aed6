//! TLS 1.3 with certificate reload. Files are checked for every connection, so that a renewed
//! certificate is used from the next connection on. They are also checked every second, so that
//! connections close whose certificate authority was removed.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use parking_lot::{Mutex, MutexGuard};
use tokio::{net::TcpStream, sync::watch, time::sleep};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
        server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
        version::TLS13,
    },
    server::TlsStream,
};

use x509_parser::{parse_x509_certificate, public_key::PublicKey};

use crate::{
    access::Certificate,
    file_watch::FileFingerprints,
    metrics::{File, Metrics},
};

/// Largest RSA key without a warning, in bits. Larger keys make handshakes slow.
const RSA_BITS_MAX: usize = 2_048;
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Paths of the PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the broker, with the intermediate certificates.
    pub cert: PathBuf,
    /// Private key of the broker.
    pub key: PathBuf,
    /// Authorities that sign client certificates, or `None` if clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Current TLS configuration, reloaded from its files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Mutex<CurrentConfig>,
    authorities: watch::Sender<Option<Authorities>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct CurrentConfig {
    config: Arc<ServerConfig>,
    fingerprints: FileFingerprints,
}

/// Configuration read from the files.
struct LoadedConfig {
    config: Arc<ServerConfig>,
    authorities: Option<Authorities>,
}

/// Authorities of client certificates.
#[derive(Debug, Clone)]
struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Configuration of one handshake.
pub(super) struct Handshake {
    acceptor: TlsAcceptor,
    /// Authorities that verify the client now, and later changes of them.
    authorities: watch::Receiver<Option<Authorities>>,
}

/// Certificate that the client presented.
pub(super) struct VerifiedClient {
    pub(super) certificate: Certificate,
    /// Completes when the certificate is no longer valid.
    pub(super) until_invalid: BoxFuture<'static, ()>,
}

impl Handshake {
    pub(super) async fn accept(
        self,
        tcp: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<VerifiedClient>)> {
        let tls = self.acceptor.accept(tcp).await?;
        let Some(chain) = tls.get_ref().1.peer_certificates() else {
            return Ok((tls, None));
        };
        let certificate = Certificate::read(chain);
        let certificate = certificate.ok_or_else(|| io::Error::other("unreadable certificate"))?;
        let client = VerifiedClient {
            until_invalid: until_invalid(certificate.clone(), self.authorities).boxed(),
            certificate,
        };
        Ok((tls, Some(client)))
    }
}

impl Authorities {
    fn read(file: &Path) -> Result<Self, String> {
        let certificates = certificates(file)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|error| unusable(file, &error))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().map_err(|error| unusable(file, &error))?;
        Ok(Self {
            certificates,
            verifier,
        })
    }

    fn verify(&self, certificate: &Certificate) -> bool {
        let Some((own, intermediates)) = certificate.chain().split_first() else {
            return false;
        };
        let verified = self
            .verifier
            .verify_client_cert(own, intermediates, UnixTime::now());
        verified.is_ok()
    }
}

/// Waits until a client's certificate is no longer valid. It has expired, or none of the current
/// authorities has signed it, in which case the certificate is marked as withdrawn.
async fn until_invalid(
    certificate: Certificate,
    mut authorities: watch::Receiver<Option<Authorities>>,
) {
    loop {
        tokio::select! {
            () = certificate.until_invalid() => return,
            Ok(()) = authorities.changed() => {
                let now = authorities.borrow_and_update().clone();
                if !now.is_some_and(|now| now.verify(&certificate)) {
                    return certificate.withdraw();
                }
            }
        }
    }
}

impl TlsFiles {
    /// Checks that the files contain a usable configuration.
    ///
    /// # Errors
    /// If a file is not usable; the error names the file and the cause.
    pub fn check(&self) -> Result<(), String> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<LoadedConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| format!("cannot configure TLS: {error}"))?;
        let authorities = self.client_ca.as_deref().map(Authorities::read);
        let authorities = authorities.transpose()?;
        let builder = match &authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                builder.with_client_cert_verifier(Arc::clone(&authorities.verifier))
            }
        };
        let (cert, key) = (&self.cert, self.key.display());
        let private_key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| format!("cannot read a private key from {key}: {error}"))?;
        let mut config = builder
            .with_single_cert(certificates(cert)?, private_key)
            .map_err(|error| {
                format!(
                    "cannot use certificate {} with private key {key}: {error}",
                    cert.display()
                )
            })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if authorities.is_some() {
            // A resumed session would reuse the client certificate of the first session without
            // verifying it.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(LoadedConfig {
            config: Arc::new(config),
            authorities,
        })
    }

    fn fingerprints(&self) -> FileFingerprints {
        let client_ca = self.client_ca.as_deref();
        FileFingerprints::read(
            [self.cert.as_path(), &self.key]
                .into_iter()
                .chain(client_ca),
        )
    }
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// If a file is not usable; the error names the file and the cause.
    pub fn load(files: TlsFiles, metrics: Metrics) -> Result<Self, String> {
        let fingerprints = files.fingerprints();
        let loaded = files.load()?;
        let config = loaded.config;
        let tls = Self {
            files,
            current: Mutex::new(CurrentConfig {
                config,
                fingerprints,
            }),
            authorities: watch::Sender::new(loaded.authorities),
            metrics,
        };
        tls.publish(true);
        tls.warn_of_slow_handshakes();
        Ok(tls)
    }

    /// Returns the broker's own certificate, if the file contains one.
    fn own_certificate(&self) -> Option<CertificateDer<'static>> {
        certificates(&self.files.cert).ok()?.into_iter().next()
    }

    fn warn_of_slow_handshakes(&self) {
        let bits = self.own_certificate().as_ref().and_then(rsa_bits);
        if let Some(bits) = bits.filter(|bits| *bits > RSA_BITS_MAX) {
            let file = self.files.cert.display();
            tracing::warn!(%file, bits, "the RSA key makes TLS handshakes slow: use a P-256 key");
        }
    }

    /// Checks the files every second. Never returns.
    pub async fn watch_files(&self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            drop(self.current_config());
        }
    }

    /// Reports to the metrics whether the files were usable, and when the certificate expires.
    fn publish(&self, is_valid: bool) {
        self.metrics.reloaded(File::Certificate, is_valid);
        if is_valid
            && let Some(certificate) = self.own_certificate()
            && let Ok((_, parsed)) = parse_x509_certificate(&certificate)
        {
            let ends = parsed.validity().not_after.timestamp();
            self.metrics.certificate_ends(ends);
        }
    }

    /// Returns the configuration for the next connection.
    pub(super) fn handshake(&self) -> Handshake {
        let current = self.current_config();
        let mut authorities = self.authorities.subscribe();
        // The authorities match `current`, because they are published only under its lock.
        authorities.mark_unchanged();
        Handshake {
            acceptor: TlsAcceptor::from(Arc::clone(&current.config)),
            authorities,
        }
    }

    /// Reloads the files if they have changed, and returns the current configuration. It stays in
    /// use while new files are invalid or incomplete.
    fn current_config(&self) -> MutexGuard<'_, CurrentConfig> {
        let mut current = self.current.lock();
        if !current.fingerprints.has_changed() {
            return current;
        }
        match self.files.load() {
            Ok(loaded) => {
                current.config = loaded.config;
                self.authorities.send_if_modified(|authorities| {
                    replace_others(authorities, loaded.authorities)
                });
                self.publish(true);
                tracing::info!("certificate reloaded");
            }
            Err(problem) => {
                self.publish(false);
                tracing::error!("{problem}");
                tracing::error!("keeping the current certificate");
            }
        }
        current
    }
}

/// Returns the size of the certificate's key, if that is an RSA key.
fn rsa_bits(certificate: &CertificateDer<'_>) -> Option<usize> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let PublicKey::RSA(key) = parsed.public_key().parsed().ok()? else {
        return None;
    };
    Some(key.key_size())
}

/// Replaces the authorities if their certificates differ. Returns true if they do.
fn replace_others(current: &mut Option<Authorities>, new: Option<Authorities>) -> bool {
    let certificates = |authorities: &Authorities| authorities.certificates.clone();
    let has_changed = current.as_ref().map(certificates) != new.as_ref().map(certificates);
    if has_changed {
        *current = new;
    }
    has_changed
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_rsa_key_is_known() {
        for (certificate, expected) in [(RSA_3072, Some(3_072)), (P_256, None)] {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            assert_eq!(rsa_bits(&certificate.expect("a certificate")), expected);
        }
    }

    const P_256: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBcjCCARmgAwIBAgIUcefvSbpgArkKuNZH1BP5uebK8/UwCgYIKoZIzj0EAwIw\n\
        DzENMAsGA1UEAwwEdGVzdDAeFw0yNjExMjcxMjU2NTJaFw0yNjExMjgxMjU2NTJa\n\
        MA8xDTALBgNVBAMMBHRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAS3XDeK\n\
        JFkFd86ybn9TAeSx1NgxtKfbfwiQsJmZp/nnRRVR/aeudJwEn85aGKsNJt0d24/0\n\
        HW+GsMXuf7SqCcieo1MwUTAdBgNVHQ4EFgQUH24V1BayLoY38Ul2m99a4/rztYUw\n\
        HwYDVR0jBBgwFoAUH24V1BayLoY38Ul2m99a4/rztYUwDwYDVR0TAQH/BAUwAwEB\n\
        /zAKBggqhkjOPQQDAgNHADBEAiB4JF/1mfnW3akpM0by+P6VJn85WgorScCeaERL\n\
        xmKz3gIgKyXYtNYV6f74HiAs9d2norThsylukhgBbkjjhDoX2Gk=\n\
        -----END CERTIFICATE-----\n";
    const RSA_3072: &str = "-----BEGIN CERTIFICATE-----\n\
        MIID/zCCAmegAwIBAgIUZG7HpnwyXQjVOXczfx3n8NtqxFkwDQYJKoZIhvcNAQEL\n\
        BQAwDzENMAsGA1UEAwwEdGVzdDAeFw0yNjExMjcxMjU2MzZaFw0yNjExMjgxMjU2\n\
        MzZaMA8xDTALBgNVBAMMBHRlc3QwggGiMA0GCSqGSIb3DQEBAQUAA4IBjwAwggGK\n\
        AoIBgQCh+bSUufQVVuzczXbUb/SnueHIpkgbi0gwe4nXUIIFE07SqP3OPTiMohIF\n\
        SjPzKPjOIGOo5QP1a+WiK5ekqysIjxTcXPZdYshOwVX0M0hR6V2rTxh2QBIwovyT\n\
        pZTNYeP2LubBk3VKaRdNHXoLvvouYl1mpjDO77ic3r287UULUVaqwPRw2htKBWK2\n\
        U6xxGHfGBYt0uqmOcXUa8hc/3eyAtj58S9lsOLWy+WEnCZUvFO2jABUyMJ0GhJgD\n\
        0YT8EytN5ilG1qjhXT7Vv3zTztY48WWDzWi7Z/vN2zQQUE5LSbmKAyysO/HLcRPC\n\
        /bVHnzT0xSXaasqhgy5aY5kFwL2xeLaY44FD83fsgnrmtzjzADN/YvUM+kGNTvf2\n\
        GV80PxboSrFa79xL6Xb7hacvb3kNmpBVCX5QkyOTuMWdJc5qjuxI0YU9wrW75qbG\n\
        baSVRCJL7c0yX2fGMzAwvNBoAX4tjK3Z4JUsK/v4HxyT50ZnOpooScTIngOHsman\n\
        ky5qDWcCAwEAAaNTMFEwHQYDVR0OBBYEFDkh2Fy/oZBuBaEoXXhlHxEIhaoPMB8G\n\
        A1UdIwQYMBaAFDkh2Fy/oZBuBaEoXXhlHxEIhaoPMA8GA1UdEwEB/wQFMAMBAf8w\n\
        DQYJKoZIhvcNAQELBQADggGBAFuFTnjtIgNEL/edaMPfVRpWtslyCKC4dZOcJ4qD\n\
        pBEe/qa4/l9VqcPjLRsU7P/QFEk7RDkJY6cqsK+8edWj5+lA0yjCdhP3BNEE+ubv\n\
        KxH9FcfDI8Z9r/Eq/9WB9YYKQuFa+0iYGDaTDobPV1fzHlayVtL8nljifbviNrsw\n\
        ZDPhrancKsBKXT0SpF5d46ZEoXycKtDvdZ2DUIhPvD1C/lFcd9Y7guiXl9LezFQI\n\
        b0tqRnGjJd8nj0CeZf9gvF3J+lSY3uFZCPnshKhlu8cHZyJLpP0SGH1vubEr0WWt\n\
        yKOMbbvTg4EA+B5Lt7glrJEM+g//+wIEgriNWdq4To3fsNQGmNGhg6qXWzb94mHe\n\
        45+7dYiJe8Ymuc5kQkGOfd9bYclAP1ZREPttm7bqaZZ5rBouvYaoIJODKF3M/gpi\n\
        wsyjL90v248phLqSpnZ3OGL0veROtglP332+myQCE35Z+uBV93EnnruyymRaSgw/\n\
        BZ0KNj2J1lrfFlgypp0gnxFjJg==\n\
        -----END CERTIFICATE-----\n";
}
