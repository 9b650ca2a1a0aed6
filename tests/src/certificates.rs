//! Certificate authorities of a test, and what they sign.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// OpenSSL reads no longer ones everywhere.
const PEM_LINE: usize = 64;

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
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).expect("names of hosts");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client of this name, which is [`spiffe`] of it in policies.
    #[must_use]
    pub fn client(&self, name: &str) -> Signed {
        self.client_of(&[&spiffe(name)], &[])
    }

    /// The same, good for so long from now.
    #[must_use]
    pub fn client_for(&self, name: &str, good_for: Duration) -> Signed {
        let mut params = names(&[&spiffe(name)], &[]);
        params.not_after = (SystemTime::now() + good_for).into();
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// For a client with these URIs and DNS names.
    #[must_use]
    pub fn client_of(&self, uris: &[&str], hosts: &[&str]) -> Signed {
        self.sign(names(uris, hosts), ExtendedKeyUsagePurpose::ClientAuth)
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

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Signed {
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

/// What policies call the client of such a name.
#[must_use]
pub fn spiffe(name: &str) -> String {
    format!("spiffe://leasehold.test/{name}")
}

fn names(uris: &[&str], hosts: &[&str]) -> CertificateParams {
    let uris = uris.iter().map(|&uri| SanType::URI(ascii(uri)));
    let hosts = hosts.iter().map(|&host| SanType::DnsName(ascii(host)));
    let mut params = CertificateParams::default();
    params.subject_alt_names = hosts.chain(uris).collect();
    params
}

fn ascii<T: TryFrom<String, Error: std::fmt::Debug>>(text: &str) -> T {
    T::try_from(text.to_owned()).expect("ASCII")
}

/// How a client trusts whom `authority` has signed, and shows its own certificate if it has one.
#[must_use]
pub fn client_config(authority: &Authority, client: Option<&Signed>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(authority.certificate().clone())
        .expect("a root certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.expect("its own versions");
    let builder = builder.with_root_certificates(roots);
    Arc::new(match client {
        None => builder.with_no_client_auth(),
        Some(client) => builder
            .with_client_auth_cert(vec![client.certificate()], client.key())
            .expect("a certificate with its key"),
    })
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut lines = format!("-----BEGIN {what}-----\n");
    for at in (0..text.len()).step_by(PEM_LINE) {
        lines += &text[at..text.len().min(at + PEM_LINE)];
        lines.push('\n');
    }
    lines + &format!("-----END {what}-----\n")
}
