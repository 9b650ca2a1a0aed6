//! A broker whose callers present a certificate, and optionally a token, and a second broker
//! without access control on the same store, which tests use to observe it.

use leasehold::{Certificate, ClientTlsConfig, Identity};
use tonic::transport::{Channel, Endpoint};

use crate::{
    access::files_and_callers::AccessFiles,
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    client::unary::Client,
    net::certificates::{Authority, SignedCertificate},
};

/// Caller that the rules permit to work.
pub const WORKER: &str = "worker";
const RULES: &str = r#"
    [[rule]]
    callers = ["spiffe://leasehold.test/worker", "jwt:worker", "token:worker"]
    verbs = ["acquire", "observe", "list"]
"#;

/// Both brokers, and the files of the broker with access control.
#[derive(Debug)]
pub struct MutualTlsFixture {
    /// Tokens, token keys and rules.
    pub access_files: AccessFiles,
    pub tls: BrokerTls,
    /// The broker with access control.
    pub broker: BrokerProcess,
    /// Client of the broker without access control.
    pub observer: Client,
    _deployment: Deployment,
}

impl MutualTlsFixture {
    /// Starts both brokers. `tokens` are static tokens of [`WORKER`].
    pub async fn start(tokens: &[&str]) -> Self {
        let deployment = Deployment::start(1).await;
        let tokens: Vec<_> = tokens.iter().map(|token| (WORKER, *token)).collect();
        let (tls, access_files) = (BrokerTls::create(true), AccessFiles::new(RULES, &tokens));
        let mut options = BrokerOptions::for_store(deployment.redis.url());
        options.env.extend(tls.settings(true));
        options.env.extend(access_files.settings());
        Self {
            broker: BrokerProcess::start(&options).await,
            observer: Client::new("judge", &deployment.addrs(), 0),
            access_files,
            tls,
            _deployment: deployment,
        }
    }

    /// Returns the URL of the broker with access control.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.broker.addr())
    }

    /// Issues a client certificate for [`WORKER`].
    #[must_use]
    pub fn worker_certificate(&self) -> SignedCertificate {
        self.tls
            .client_authority
            .as_ref()
            .expect("mutual")
            .client(WORKER)
    }

    /// Opens a connection with a certificate of [`WORKER`].
    pub async fn channel(&self) -> Channel {
        let tls = client_tls_config(&[&self.tls.authority], &self.worker_certificate());
        let endpoint = Endpoint::from_shared(self.url()).expect("a URL");
        let endpoint = endpoint.tls_config(tls).expect("good certificates");
        endpoint.connect().await.expect("a good key")
    }
}

/// Returns the TLS settings of a client that accepts all `authorities` and presents the certificate
/// `shown`.
#[must_use]
pub fn client_tls_config(
    authorities: &[&Authority],
    identity: &SignedCertificate,
) -> ClientTlsConfig {
    let bundle: String = authorities.iter().map(|one| one.pem()).collect();
    ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(bundle))
        .identity(Identity::from_pem(identity.pem(), identity.key_pem()))
}
