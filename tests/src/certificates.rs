//! Certificate authorities of a test, and what they sign.

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// Signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Signed {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Authority {
    /// One that nobody trusts yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signs itself");
        Self {
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// For a server with these names or addresses.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Signed {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client of this name.
    #[must_use]
    pub fn client(&self, name: &str) -> Signed {
        self.sign(&[name], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// What its friends trust.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The same as text.
    #[must_use]
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    fn sign(&self, names: &[&str], usage: ExtendedKeyUsagePurpose) -> Signed {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of hosts");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        Signed {
            certificate: certificate.der().clone(),
            key: key.serialize_der().into(),
        }
    }
}

impl Signed {
    /// The certificate.
    #[must_use]
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key().into()
    }

    /// The certificate as text.
    #[must_use]
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Its key as text.
    #[must_use]
    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", self.key.secret_pkcs8_der())
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
}
