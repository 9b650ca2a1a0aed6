//! Download of an issuer's JSON Web Key Set.

use std::{path::PathBuf, sync::Arc, time::Duration};

use rustls_native_certs::load_native_certs;
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use ureq::{
    Agent, Body,
    tls::{Certificate, RootCerts, TlsConfig},
};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a key set. Typical ones have a few keys of a few hundred bytes.
const BYTES_MAX: u64 = 256 * 1_024;

/// The URL of a key set and the CA of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySetUrl {
    /// The URL; its scheme must be `https`.
    pub url: String,
    /// File of CA certificates (PEM) that verify the server. `None`: the system trust store.
    pub ca: Option<PathBuf>,
}

impl KeySetUrl {
    /// Downloads the key set.
    ///
    /// # Errors
    /// The cause, with the URL.
    pub(super) async fn get(&self) -> Result<String, String> {
        let source = self.clone();
        let result = spawn_blocking(move || source.request()).await;
        let result = result.unwrap_or_else(|error| Err(error.to_string()));
        result.map_err(|error| format!("cannot download the key set from {}: {error}", self.url))
    }

    fn request(&self) -> Result<String, String> {
        let result = self.agent()?.get(&self.url).call();
        let mut response = result.map_err(|error| error.to_string())?;
        text_of(response.body_mut())
    }

    fn agent(&self) -> Result<Agent, String> {
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
        Ok(config.build().new_agent())
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

fn text_of(body: &mut Body) -> Result<String, String> {
    let body = body.with_config().limit(BYTES_MAX);
    body.read_to_string().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_has_five_seconds_to_answer() {
        let source = KeySetUrl {
            url: "https://issuer.test/keys".to_owned(),
            ca: None,
        };
        let agent = source.agent().expect("a client");
        assert_eq!(agent.config().timeouts().global, Some(TIMEOUT));
    }

    #[test]
    fn a_key_set_has_256_kib_at_most() {
        let max_bytes = usize::try_from(BYTES_MAX).expect("a size");
        let read_body = |bytes| text_of(&mut Body::builder().data(vec![b' '; bytes]));
        assert_eq!(read_body(max_bytes).map(|text| text.len()), Ok(max_bytes));
        assert!(read_body(max_bytes + 1).is_err());
    }
}
