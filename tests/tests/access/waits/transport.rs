//! Connections to a broker: TLS, client certificates, connection limits, and floods of frames.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{Client, ConnectError};
use leasehold_proto::v1::{GetLockRequest, inspection_service_client::InspectionServiceClient};
use leasehold_tests::{
    access::files_and_callers::AccessFiles,
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
        tls::{BrokerTls, closes_within, handshake},
    },
    client::unary::channel,
    clock::boottime,
    net::certificates::{Authority, SignedCertificate, client_config},
    scale::print_figures,
    until::until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring, version::TLS12};
use tonic::{Code, Request};

const RULES: &str = r#"
    [[rule]]
    callers = ["spiffe://leasehold.test/worker"]
    verbs = ["acquire"]
"#;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// Time within which a client must send the HTTP/2 preface.
const SPEAKS_WITHIN: Duration = Duration::from_secs(5);
const TOLERANCE: Duration = Duration::from_secs(2);

async fn connect(
    broker: &BrokerProcess,
    tls: &BrokerTls,
    client: Option<&SignedCertificate>,
) -> Result<Client, ConnectError> {
    let url = format!("https://{}", broker.addr());
    Client::builder(&url)
        .tls(tls.sdk_client_config(client))
        .connect()
        .await
}

async fn locks(client: &Client) {
    let guard = client.lock("a").acquire().await.expect("it is free");
    guard.release().await.expect("it was held");
}

#[tokio::test]
async fn with_a_certificate_only_tls_1_3_is_spoken() {
    let tls = BrokerTls::create(false);
    let fixture = Deployment::start_single(tls.options(String::new())).await;
    let broker = &fixture.brokers[0];
    locks(&connect(broker, &tls, None).await.expect("trusted")).await;
    for listener in [broker.addr(), broker.admin()] {
        let modern = handshake(listener, client_config(&tls.authority, None)).await;
        modern.expect("TLS 1.3");
        handshake(listener, old_tls(&tls.authority))
            .await
            .expect_err("TLS 1.2");
        let mut plain = TcpStream::connect(listener).await.expect("it listens");
        let sent = plain.write_all(&[PREFACE, &SETTINGS].concat()).await;
        assert!(
            sent.is_err() || closes_within(plain, TOLERANCE).await,
            "plaintext"
        );
    }
    let plain = Client::connect(&format!("http://{}", broker.addr())).await;
    assert!(plain.is_err(), "plaintext");
}

#[tokio::test]
async fn clients_show_a_certificate_of_the_right_authority() {
    let tls = BrokerTls::create(true);
    let access_files = AccessFiles::new(RULES, &[]);
    let mut options = tls.options(String::new());
    options.env.extend(access_files.settings());
    let fixture = Deployment::start_single(options).await;
    let broker = &fixture.brokers[0];
    let clients = tls.client_authority.as_ref().expect("mutual");
    let known = clients.client("worker");
    locks(&connect(broker, &tls, Some(&known)).await.expect("known")).await;
    let stranger = Authority::new("others").client("worker");
    let as_server = clients.server(&["worker"]);
    for (who, client) in [
        ("nobody", None),
        ("a stranger", Some(&stranger)),
        ("a server", Some(&as_server)),
    ] {
        let refused = connect(broker, &tls, client).await;
        assert!(refused.is_err(), "{who} got in");
    }
}

#[tokio::test]
async fn a_renewed_certificate_counts_from_the_next_connection_on() {
    let tls = BrokerTls::create(false);
    let fixture = Deployment::start_single(tls.options(String::new())).await;
    let broker = &fixture.brokers[0];
    let client = connect(broker, &tls, None).await.expect("trusted");
    let guard = client.lock("held").acquire().await.expect("it is free");

    // Only one of the two files is replaced, so the old certificate stays in use.
    let successor = Authority::new("successors");
    let renewed = successor.server(&["127.0.0.1"]);
    tls.write("broker.pem", &renewed.pem());
    connect(broker, &tls, None).await.expect("the old one");
    assert!(broker.log().contains("keeping the current certificate"));

    tls.replace_certificate(&renewed);
    handshake(broker.addr(), client_config(&successor, None))
        .await
        .expect("the new one");
    assert!(connect(broker, &tls, None).await.is_err(), "the old one");
    assert!(broker.log().contains("certificate reloaded"));
    assert!(guard.is_valid(), "a connection outlives its certificate");
    locks(&client).await;
    guard.release().await.expect("it was held");
}

#[tokio::test]
async fn a_client_that_sends_no_preface_in_time_is_disconnected() {
    let tls = BrokerTls::create(false);
    let encrypted = Deployment::start_single(tls.options(String::new())).await;
    let plain = Deployment::start(1).await;
    let (encrypted, plain) = (&encrypted.brokers[0], &plain.brokers[0]);
    let started_at = boottime();
    let silent = TcpStream::connect(plain.addr()).await.expect("it listens");
    let mut slow = TcpStream::connect(plain.addr()).await.expect("it listens");
    slow.write_all(&PREFACE[..10]).await.expect("the beginning");
    let probe = TcpStream::connect(plain.admin()).await.expect("it listens");
    let no_tls = TcpStream::connect(encrypted.addr()).await;
    let half = handshake(encrypted.addr(), client_config(&tls.authority, None)).await;
    let (no_tls, half) = (no_tls.expect("it listens"), half.expect("TLS"));
    let limit = SPEAKS_WITHIN + TOLERANCE;
    let closed = tokio::join!(
        closes_within(silent, limit),
        closes_within(slow, limit),
        closes_within(probe, limit),
        closes_within(no_tls, limit),
        closes_within(half, limit),
    );
    assert_eq!(closed, (true, true, true, true, true));
    let took = boottime() - started_at;
    print_figures(&format!(
        "transport slow: all cut after {} ms",
        took.as_millis()
    ));
    assert!(took >= SPEAKS_WITHIN, "{took:?}");
}

#[tokio::test]
async fn connections_above_the_limit_are_rejected() {
    const CONNECTIONS_MAX: usize = 5;
    let mut options = BrokerOptions::default();
    let key = "LEASEHOLD__SERVER__MAX_CONNECTIONS_PER_ADDRESS".to_owned();
    options.env.push((key, CONNECTIONS_MAX.to_string()));
    let fixture = Deployment::start_single(options).await;
    let broker = &fixture.brokers[0];
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        open.push(connect_with_settings(broker).await);
    }
    let one_more = TcpStream::connect(broker.addr()).await.expect("a backlog");
    assert!(closes_within(one_more, TOLERANCE).await, "one too many");
    drop(open.pop());
    until("its place is free again", async || {
        let mut next = TcpStream::connect(broker.addr()).await.ok()?;
        next.write_all(&[PREFACE, &SETTINGS].concat()).await.ok()?;
        next.read_u8().await.ok()
    })
    .await;
}

#[tokio::test]
async fn one_name_has_no_more_connections_than_allowed() {
    const CONNECTIONS_MAX: usize = 3;
    let tls = BrokerTls::create(true);
    let mut options = tls.options(String::new());
    let access_files = AccessFiles::new(RULES, &[]);
    options.env.extend(access_files.settings());
    let key = "LEASEHOLD__SERVER__MAX_CONNECTIONS_PER_IDENTITY".to_owned();
    options.env.push((key, CONNECTIONS_MAX.to_string()));
    let fixture = Deployment::start_single(options).await;
    let addr = fixture.brokers[0].addr();
    let clients = tls.client_authority.as_ref().expect("mutual");
    let mut open = Vec::new();
    for name in ["worker", "worker", "worker", "worker", "another"] {
        let config = client_config(&tls.authority, Some(&clients.client(name)));
        open.push(handshake(addr, config).await.expect("a known authority"));
    }
    let another = open.pop().expect("the last");
    let workers = join_all(open.into_iter().map(|tls| closes_within(tls, TOLERANCE)));
    let (workers, another) = tokio::join!(workers, closes_within(another, TOLERANCE));
    let closed = workers.into_iter().filter(|closed| *closed).count();
    assert_eq!(
        (closed, another),
        (1, false),
        "one of four, and no other name"
    );
}

#[tokio::test]
async fn a_flood_of_frames_ends_the_connection_and_no_other() {
    /// A frame header has nine bytes: length, type, flags, stream.
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const PRIORITY: [u8; 14] = [0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 9];
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let url = format!("http://{}", broker.addr());
    let client = Client::connect(&url).await.expect("a broker that runs");
    let guard = client.lock("held").acquire().await.expect("it is free");
    for (kind, frame) in [
        ("PING", PING.as_slice()),
        ("SETTINGS", &SETTINGS),
        ("PRIORITY", &PRIORITY),
    ] {
        let mut few = connect_with_settings(broker).await;
        few.write_all(&frame.repeat(50)).await.expect("a few");
        let mut flood = connect_with_settings(broker).await;
        // The broker may close the connection before all frames are sent.
        let _ = flood.write_all(&frame.repeat(1_000)).await;
        assert!(closes_within(flood, TOLERANCE).await, "{kind}");
        assert!(
            !closes_within(few, TOLERANCE).await,
            "a few of {kind} do no harm"
        );
    }
    assert!(guard.is_valid());
    guard.release().await.expect("it was held");
}

/// Opens a connection and exchanges SETTINGS.
async fn connect_with_settings(broker: &BrokerProcess) -> TcpStream {
    let mut tcp = TcpStream::connect(broker.addr()).await.expect("a place");
    let begin = [PREFACE, &SETTINGS].concat();
    tcp.write_all(&begin).await.expect("it is read");
    tcp.read_u8().await.expect("the broker's settings");
    tcp
}

fn old_tls(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = authority.certificate().clone();
    roots.add(root).expect("a root certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS12]);
    let builder = builder.expect("a version that there was");
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

#[tokio::test]
async fn headers_of_a_request_are_bounded() {
    let fixture = Deployment::start(1).await;
    let address = fixture.brokers[0].addr();
    let look = async |length: usize| {
        let mut request = Request::new(GetLockRequest {
            name: "a".to_owned(),
            ..GetLockRequest::default()
        });
        let much = "x".repeat(length).parse().expect("ASCII");
        request.metadata_mut().insert("much", much);
        let mut looks = InspectionServiceClient::new(channel(address));
        looks.get_lock(request).await.expect_err("it is not held")
    };
    assert_eq!(look(7_000).await.code(), Code::NotFound);
    // Status 431 (Request Header Fields Too Large) is returned before the request is processed.
    let refused = look(9_000).await;
    assert!(refused.message().contains("431"), "{refused:?}");
}
