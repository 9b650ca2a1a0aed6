//! TLS of the Rust client, through a relay to a broker without TLS: trusted authorities, client
//! certificates, and heartbeats over TLS.

use std::time::Duration;

use leasehold::{Certificate, Client, ClientTlsConfig, ConnectError, Identity, LostReason};
use leasehold_tests::{
    broker::deployment::Deployment,
    clock::boottime,
    load::store_expiry::store_expiry,
    net::{
        certificates::{Authority, SignedCertificate},
        tls_relay::TlsRelay,
    },
    scale::print_figures,
    sdk::broker::acquire_and_release,
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(2);
const TIME_LIMIT: Duration = Duration::from_secs(5);
const LOCALHOST: &str = "127.0.0.1";

/// A TLS relay with a certificate of `authority`, in front of a broker on Redis.
struct TlsRelayFixture {
    authority: Authority,
    relay: TlsRelay,
    deployment: Deployment,
}

impl TlsRelayFixture {
    async fn start(names: &[&str], clients: Option<&Authority>) -> Self {
        let deployment = Deployment::start(1).await;
        let authority = Authority::new("brokers");
        let server = authority.server(names);
        let relay = TlsRelay::start(deployment.addrs()[0], &server, clients).await;
        Self {
            authority,
            relay,
            deployment,
        }
    }

    fn url(&self) -> String {
        format!("https://{}", self.relay.addr())
    }

    /// Returns a configuration that trusts the broker's authority.
    fn trust(&self) -> ClientTlsConfig {
        trust(&self.authority)
    }

    async fn connect(&self, tls: ClientTlsConfig) -> Result<Client, ConnectError> {
        Client::builder(&self.url()).tls(tls).connect().await
    }

    /// Creates a client that connects without the relay.
    async fn plain(&self) -> Client {
        let url = format!("http://{}", self.deployment.addrs()[0]);
        Client::connect(&url).await.expect("a broker that runs")
    }
}

fn trust(authority: &Authority) -> ClientTlsConfig {
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()))
}

fn identity(signed: &SignedCertificate) -> Identity {
    Identity::from_pem(signed.pem(), signed.key_pem())
}

/// Returns the error of a client that must not find a broker.
fn unreachable(connected: Result<Client, ConnectError>) -> String {
    match connected {
        Err(ConnectError::Unreachable(error)) => error,
        other => panic!("it should not get through: {other:?}"),
    }
}

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_released_over_tls() {
    let secured = TlsRelayFixture::start(&[LOCALHOST], None).await;
    let other = secured.plain().await;
    let client = secured.connect(secured.trust()).await.expect("trusted");
    let guard = client.lock("a").ttl(TTL).acquire().await;
    let guard = guard.expect("it is free");
    // Longer than the store keeps the lock without heartbeats.
    sleep(store_expiry(TTL) + TTL / 2).await;
    assert!(guard.is_valid());
    let taken = other.lock("a").try_acquire().await.expect("an answer");
    assert!(taken.is_none(), "two have it");
    let token = guard.fencing_token();
    guard.release().await.expect("it was held");
    assert!(acquire_and_release(&other, "a").await > token);
    let seen = secured.relay.handshakes();
    assert_eq!((seen.completed, seen.failed), (vec![None], vec![]));
}

#[tokio::test]
async fn without_the_tls_connection_the_lock_is_lost() {
    let secured = TlsRelayFixture::start(&[LOCALHOST], None).await;
    let client = secured.connect(secured.trust()).await.expect("trusted");
    let guard = client.lock("a").ttl(TTL).acquire().await;
    let guard = guard.expect("it is free");
    let cut = boottime();
    secured.relay.close_connections();
    let error = timeout(TIME_LIMIT, guard.lost())
        .await
        .expect("its time runs out");
    let lost_after = boottime() - cut;
    assert_eq!(error, LostReason::Expired);
    assert!(lost_after <= TTL, "{lost_after:?}");
    let other = secured.plain().await;
    acquire_and_release(&other, "a").await;
    let free_after = boottime() - cut;
    print_figures(&format!(
        "sdk_tls: ttl=2000ms cut lost_after={}ms next_holder_after={}ms",
        lost_after.as_millis(),
        free_after.as_millis()
    ));
    assert!(free_after > lost_after);
    // The client reconnects over TLS.
    secured.relay.reopen();
    acquire_and_release(&client, "a").await;
    assert!(secured.relay.handshakes().completed.len() > 1);
}

#[tokio::test]
async fn a_broker_of_another_authority_is_not_trusted() {
    let secured = TlsRelayFixture::start(&[LOCALHOST], None).await;
    let stranger = trust(&Authority::new("others"));
    let error = unreachable(secured.connect(stranger).await);
    assert!(
        error.contains("certificate") && error.contains(&secured.url()),
        "{error}"
    );
    secured.relay.wait_for_failure("alert: UnknownCA").await;
    let seen = secured.relay.handshakes();
    assert!(seen.completed.is_empty(), "{seen:?}");
    secured.connect(secured.trust()).await.expect("trusted");
}

#[tokio::test]
async fn without_a_configuration_only_the_machine_s_authorities_are_trusted() {
    let secured = TlsRelayFixture::start(&[LOCALHOST], None).await;
    let error = unreachable(Client::connect(&secured.url()).await);
    assert!(error.contains("certificate"), "{error}");
    secured.relay.wait_for_failure("alert: UnknownCA").await;
    // A configuration without authorities trusts no broker.
    let error = unreachable(secured.connect(ClientTlsConfig::new()).await);
    assert!(error.contains("certificate"), "{error}");
    assert!(secured.relay.handshakes().completed.is_empty());
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let secured = TlsRelayFixture::start(&["broker.test"], None).await;
    let error = unreachable(secured.connect(secured.trust()).await);
    assert!(error.contains("certificate"), "{error}");
    let named = secured.trust().domain_name("broker.test");
    let client = secured.connect(named).await.expect("the name is expected");
    acquire_and_release(&client, "a").await;
}

#[tokio::test]
async fn a_broker_that_wants_a_certificate_gets_the_client_s() {
    let clients = Authority::new("clients");
    let secured = TlsRelayFixture::start(&[LOCALHOST], Some(&clients)).await;
    let shown = clients.client("worker-1");
    let with_it = secured.trust().identity(identity(&shown));
    let client = secured.connect(with_it).await.expect("it has one");
    acquire_and_release(&client, "a").await;
    assert_eq!(
        secured.relay.handshakes().completed,
        [Some(shown.certificate())]
    );
    let none = unreachable(secured.connect(secured.trust()).await);
    secured.relay.wait_for_failure("no certificates").await;
    let foreign = Authority::new("others").client("worker-1");
    let foreign = secured.trust().identity(identity(&foreign));
    let foreign = unreachable(secured.connect(foreign).await);
    secured.relay.wait_for_failure("UnknownIssuer").await;
    for error in [&none, &foreign] {
        assert!(error.contains("certificate"), "{none}\n{foreign}");
    }
    let seen = secured.relay.handshakes();
    assert_eq!(seen.completed.len(), 1, "{seen:?}");
}
