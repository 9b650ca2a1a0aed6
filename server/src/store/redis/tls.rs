//! TLS settings of connections to Redis.

use std::{path::PathBuf, sync::Arc};

use fred::types::config::{TlsConfig, TlsConnector};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// TLS settings for all servers of the store. Files are PEM and are read for every connection, so a
/// renewed certificate is used from the next connection on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificate authorities of the servers' certificates; `None` for the system trust store.
    pub ca_file: Option<PathBuf>,
    /// The broker's certificate and its key, for servers that request a client certificate.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Name in the servers' certificates; `None` for the host of the address.
    pub server_name: Option<String>,
}

impl Tls {
    /// Returns the TLS configuration for fred, or an error message for operators.
    pub fn connector(&self) -> Result<TlsConfig, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot configure TLS: {error}"))?
            .with_root_certificates(self.roots()?);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let key_file = key.display();
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                    format!("cannot read a private key from {key_file}: {error}")
                })?;
                config
                    .with_client_auth_cert(read(certificates)?, key)
                    .map_err(|error| {
                        let file = certificates.display();
                        format!(
                            "cannot use certificate {file} with private key {key_file}: {error}"
                        )
                    })?
            }
        };
        Ok(TlsConnector::Rustls(Arc::new(config).into()).into())
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let certificates = match &self.ca_file {
            Some(file) => read(file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(match &self.ca_file {
                Some(file) => format!("{} contains no usable certificate", file.display()),
                None => "the system trust store has no certificate authority: set \
                         store.tls_ca_file to that of the servers"
                    .to_owned(),
            });
        }
        Ok(roots)
    }
}

fn read(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let read_error = |error| format!("no certificate in {}: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(read_error)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(read_error)?;
    if certificates.is_empty() {
        return Err(format!("no certificate in {}", file.display()));
    }
    Ok(certificates)
}
