//! How connections to Redis are encrypted, and who the other side must be.

use std::{path::PathBuf, sync::Arc};

use fred::types::config::{TlsConfig, TlsConnector};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// TLS to every server of the store. Files are PEM, and are read for every connection, so that a
/// renewed certificate counts from the next connection on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Who signs the servers' certificates; `None`: whom this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// The broker's own certificate and its key, for servers that ask for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in the servers' certificates; `None`: the host of the address.
    pub server_name: Option<String>,
}

impl Tls {
    /// What fred connects with, or what an operator has to know.
    pub fn connector(&self) -> Result<TlsConfig, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("no TLS: {error}"))?
            .with_root_certificates(self.roots()?);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let key_file = key.display();
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("no private key in {key_file}: {error}"))?;
                config
                    .with_client_auth_cert(read(certificates)?, key)
                    .map_err(|error| {
                        let file = certificates.display();
                        format!("{file} and {key_file} are no certificate with its key: {error}")
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
                Some(file) => format!("{} holds no usable certificate", file.display()),
                None => "this machine trusts no certificate authority: name the one of the \
                         servers with store.tls_ca_file"
                    .to_owned(),
            });
        }
        Ok(roots)
    }
}

fn read(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let why = |error| format!("no certificate in {}: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(why)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(why)?;
    if certificates.is_empty() {
        return Err(format!("no certificate in {}", file.display()));
    }
    Ok(certificates)
}
