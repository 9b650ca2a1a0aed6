//! The key set of an issuer that is on the web.

use std::{path::PathBuf, sync::Arc, time::Duration};

use rustls_native_certs::load_native_certs;
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Key sets have a few keys of a few hundred bytes.
const BYTES_MOST: u64 = 256 * 1_024;

/// Where the key set is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySetUrl {
    /// `https://`.
    pub url: String,
    /// Who signs the certificate of that server (PEM); `None`: whom the machine trusts.
    pub ca: Option<PathBuf>,
}

impl KeySetUrl {
    /// What is there now.
    ///
    /// # Errors
    /// Why not, with the address.
    pub(super) async fn get(&self) -> Result<String, String> {
        let asked = self.clone();
        let got = spawn_blocking(move || asked.ask()).await;
        let got = got.unwrap_or_else(|error| Err(error.to_string()));
        got.map_err(|why| format!("no key set from {}: {why}", self.url))
    }

    fn ask(&self) -> Result<String, String> {
        let config = Agent::config_builder()
            .https_only(true)
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(TIMEOUT))
            .tls_config(
                TlsConfig::builder()
                    .root_certs(RootCerts::Specific(Arc::new(self.roots()?)))
                    .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
                    .build(),
            );
        let agent = config.build().new_agent();
        let mut reply = agent
            .get(&self.url)
            .call()
            .map_err(|error| error.to_string())?;
        let body = reply.body_mut().with_config().limit(BYTES_MOST);
        body.read_to_string().map_err(|error| error.to_string())
    }

    fn roots(&self) -> Result<Vec<Certificate<'static>>, String> {
        let roots = match &self.ca {
            None => load_native_certs().certs,
            Some(file) => CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect)
                .map_err(|error| format!("no certificates in {}: {error}", file.display()))?,
        };
        let roots = roots.iter();
        Ok(roots
            .map(|root| Certificate::from_der(root).to_owned())
            .collect())
    }
}
