//! The certificate by which clients know the broker, and those by which it knows them. The files are
//! looked at for every connection, so that a renewed certificate counts from the next one on, and every
//! second, so that connections end whose authority does not count any more.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
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
    files::Files,
    metrics::{File, Metrics},
};

/// Bits of an RSA key with which handshakes are not slow yet.
const RSA_BITS_MAX: usize = 2_048;
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    authorities: watch::Sender<Option<Authorities>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    seen: Files,
}

/// What the files say.
struct Loaded {
    config: Arc<ServerConfig>,
    authorities: Option<Authorities>,
}

/// The authorities of clients' certificates.
#[derive(Debug, Clone)]
struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// What a handshake needs.
pub(super) struct Handshake {
    acceptor: TlsAcceptor,
    /// Those by which the client is verified, and those that count later.
    authorities: watch::Receiver<Option<Authorities>>,
}

/// The certificate that a client has shown.
pub(super) struct Certified {
    pub(super) certificate: Certificate,
    /// Ends when the certificate counts no more.
    pub(super) ended: BoxFuture<'static, ()>,
}

impl Handshake {
    /// Runs the handshake.
    pub(super) async fn accept(
        self,
        tcp: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<Certified>)> {
        let tls = self.acceptor.accept(tcp).await?;
        let Some(chain) = tls.get_ref().1.peer_certificates() else {
            return Ok((tls, None));
        };
        let certificate = Certificate::read(chain);
        let certificate = certificate.ok_or_else(|| io::Error::other("unreadable certificate"))?;
        let ended = ended(certificate.clone(), self.authorities).boxed();
        Ok((tls, Some(Certified { certificate, ended })))
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
        let Some((own, others)) = certificate.chain().split_first() else {
            return false;
        };
        let verified = self
            .verifier
            .verify_client_cert(own, others, UnixTime::now());
        verified.is_ok()
    }
}

/// Waits until a client's certificate counts no more: it has expired, or none of the authorities that
/// count now has signed it, which is then noted in the certificate.
async fn ended(certificate: Certificate, mut authorities: watch::Receiver<Option<Authorities>>) {
    loop {
        tokio::select! {
            () = certificate.ended() => return,
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
    /// Returns whether TLS can be spoken with what is in the files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn check(&self) -> Result<(), String> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<Loaded, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| format!("no TLS: {error}"))?;
        let authorities = self.client_ca.as_deref().map(Authorities::read);
        let authorities = authorities.transpose()?;
        let builder = match &authorities {
            None => builder.with_no_client_auth(),
            Some(known) => builder.with_client_cert_verifier(Arc::clone(&known.verifier)),
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
        if authorities.is_some() {
            // A resumed session has the certificate of the first one, which nobody verifies again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Loaded {
            config: Arc::new(config),
            authorities,
        })
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
        let Loaded {
            config,
            authorities,
        } = files.load()?;
        let tls = Self {
            files,
            current: Mutex::new(Current { config, seen }),
            authorities: watch::Sender::new(authorities),
            metrics,
        };
        tls.tell(true);
        tls.warn_of_slow_handshakes();
        Ok(tls)
    }

    fn warn_of_slow_handshakes(&self) {
        let certificates = certificates(&self.files.cert).unwrap_or_default();
        let bits = certificates.first().and_then(rsa_bits);
        if let Some(bits) = bits.filter(|bits| *bits > RSA_BITS_MAX) {
            let file = self.files.cert.display();
            tracing::warn!(%file, bits, "the RSA key makes TLS handshakes slow: use a P-256 key");
        }
    }

    /// Looks at the files every second. Never ends.
    pub async fn follow(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            drop(self.newest());
        }
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

    /// Returns what the next connection needs.
    pub(super) fn handshake(&self) -> Handshake {
        let current = self.newest();
        let mut authorities = self.authorities.subscribe();
        // Those of `current`: others are published under its lock only.
        authorities.mark_unchanged();
        Handshake {
            acceptor: TlsAcceptor::from(Arc::clone(&current.config)),
            authorities,
        }
    }

    /// Reads files that have changed. While new ones are wrong, or only one of them is there yet, the old
    /// ones count.
    fn newest(&self) -> MutexGuard<'_, Current> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !current.seen.have_changed() {
            return current;
        }
        match self.files.load() {
            Ok(loaded) => {
                current.config = loaded.config;
                self.authorities
                    .send_if_modified(|known| replace_others(known, loaded.authorities));
                self.tell(true);
                tracing::info!("the certificate was read again");
            }
            Err(problem) => {
                self.tell(false);
                tracing::error!("{problem}");
                tracing::error!("the certificate in use stays");
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

/// Puts authorities in the place of those that are known, if they are others. Returns whether they are.
fn replace_others(known: &mut Option<Authorities>, new: Option<Authorities>) -> bool {
    let certificates = |some: &Option<Authorities>| {
        let some = some.as_ref();
        some.map(|some| some.certificates.clone())
    };
    let are_others = certificates(known) != certificates(&new);
    if are_others {
        *known = new;
    }
    are_others
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
