//! A broker whose callers show a certificate, and perhaps a token, and another one on the same store that
//! asks for nothing, to judge by.

use leasehold::{Certificate, ClientTlsConfig, Identity};
use tonic::transport::{Channel, Endpoint};

use crate::{
    broker_process::{BrokerOptions, BrokerProcess},
    broker_tls::BrokerTls,
    callers::Doors,
    certificates::{Authority, Signed},
    client::Client,
    deployment::Deployment,
};

/// Whom the rules allow to work.
pub const WORKER: &str = "worker";
const RULES: &str = r#"
    [[rule]]
    callers = ["spiffe://leasehold.test/worker", "jwt:worker", "token:worker"]
    verbs = ["acquire", "observe", "list"]
"#;

/// Both brokers, and the files of the locked one.
#[derive(Debug)]
pub struct LockedSite {
    /// Tokens and keys.
    pub doors: Doors,
    /// Certificates.
    pub tls: BrokerTls,
    /// The one that asks who calls.
    pub broker: BrokerProcess,
    /// A client of the other one.
    pub judge: Client,
    _deployment: Deployment,
}

impl LockedSite {
    /// With these static tokens of the worker's.
    pub async fn start(tokens: &[&str]) -> Self {
        let deployment = Deployment::start(1).await;
        let tokens: Vec<_> = tokens.iter().map(|token| (WORKER, *token)).collect();
        let (tls, doors) = (BrokerTls::create(true), Doors::new(RULES, &tokens));
        let mut options = BrokerOptions::on(deployment.redis.url());
        options.env.extend(tls.settings(true));
        options.env.extend(doors.settings());
        Self {
            broker: BrokerProcess::start(&options).await,
            judge: Client::new("judge", &deployment.addrs(), 0),
            doors,
            tls,
            _deployment: deployment,
        }
    }

    /// The locked broker's.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.broker.addr())
    }

    /// A certificate of the worker's.
    #[must_use]
    pub fn worker(&self) -> Signed {
        self.tls.clients.as_ref().expect("mutual").client(WORKER)
    }

    /// A connection of the worker's.
    pub async fn channel(&self) -> Channel {
        let tls = trust(&[&self.tls.authority], &self.worker());
        let endpoint = Endpoint::from_shared(self.url()).expect("a URL");
        let endpoint = endpoint.tls_config(tls).expect("good certificates");
        endpoint.connect().await.expect("a good key")
    }
}

/// How a client trusts all of these, and shows that certificate.
#[must_use]
pub fn trust(authorities: &[&Authority], shown: &Signed) -> ClientTlsConfig {
    let bundle: String = authorities.iter().map(|one| one.pem()).collect();
    ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(bundle))
        .identity(Identity::from_pem(shown.pem(), shown.key_pem()))
}
