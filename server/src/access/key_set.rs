//! The key set of an issuer that is on the web.

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
        let asked = self.agent()?.get(&self.url).call();
        let mut reply = asked.map_err(|error| error.to_string())?;
        text_of(reply.body_mut())
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
    let body = body.with_config().limit(BYTES_MOST);
    body.read_to_string().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_has_five_seconds_to_answer() {
        let site = KeySetUrl {
            url: "https://issuer.test/keys".to_owned(),
            ca: None,
        };
        let agent = site.agent().expect("a client");
        assert_eq!(agent.config().timeouts().global, Some(TIMEOUT));
    }

    #[test]
    fn a_key_set_has_256_kib_at_most() {
        let most = usize::try_from(BYTES_MOST).expect("a size");
        let read = |bytes| text_of(&mut Body::builder().data(vec![b' '; bytes]));
        assert_eq!(read(most).map(|text| text.len()), Ok(most));
        assert!(read(most + 1).is_err());
    }
}
