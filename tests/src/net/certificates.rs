//! Certificate authorities of a test, and the certificates that they sign.

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

/// Length of a line in PEM text. OpenSSL does not accept longer lines everywhere.
const PEM_LINE: usize = 64;

#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

#[derive(Debug)]
pub struct SignedCertificate {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Authority {
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

    /// Signs a certificate for a server with these names or addresses.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> SignedCertificate {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).expect("names of hosts");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Signs a certificate for a client, whose name in policies is [`spiffe_id`] of `name`.
    #[must_use]
    pub fn client(&self, name: &str) -> SignedCertificate {
        self.client_with_names(&[&spiffe_id(name)], &[])
    }

    /// Signs a certificate for a client that is valid for `good_for` from now.
    #[must_use]
    pub fn client_valid_for(&self, name: &str, good_for: Duration) -> SignedCertificate {
        let mut params = params_with_names(&[&spiffe_id(name)], &[]);
        params.not_after = (SystemTime::now() + good_for).into();
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Signs a certificate for a client with these URIs and DNS names.
    #[must_use]
    pub fn client_with_names(&self, uris: &[&str], hosts: &[&str]) -> SignedCertificate {
        self.sign(
            params_with_names(uris, hosts),
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    /// Returns the certificate of the authority, as a trust anchor.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the certificate of the authority as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> SignedCertificate {
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        SignedCertificate {
            certificate: certificate.der().clone(),
            key: key.serialize_der().into(),
        }
    }
}

impl SignedCertificate {
    #[must_use]
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    #[must_use]
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key().into()
    }

    /// Returns the certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Returns the key as PEM.
    #[must_use]
    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", self.key.secret_pkcs8_der())
    }
}

/// Returns the name in policies of a client with this name.
#[must_use]
pub fn spiffe_id(name: &str) -> String {
    format!("spiffe://leasehold.test/{name}")
}

fn params_with_names(uris: &[&str], hosts: &[&str]) -> CertificateParams {
    let uris = uris.iter().map(|&uri| SanType::URI(ascii(uri)));
    let hosts = hosts.iter().map(|&host| SanType::DnsName(ascii(host)));
    let mut params = CertificateParams::default();
    params.subject_alt_names = hosts.chain(uris).collect();
    params
}

fn ascii<T: TryFrom<String, Error: std::fmt::Debug>>(text: &str) -> T {
    T::try_from(text.to_owned()).expect("ASCII")
}

/// Returns the TLS configuration of a client that trusts `authority`, with a client certificate if
/// there is one.
#[must_use]
pub fn client_config(
    authority: &Authority,
    client: Option<&SignedCertificate>,
) -> Arc<ClientConfig> {
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
