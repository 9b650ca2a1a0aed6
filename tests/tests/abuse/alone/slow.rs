//! Clients that are slow or silent. They are cut off and do not block other clients.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker::{
        abuse_fixture::{AbuseFixture, AbuseRun},
        process::BrokerOptions,
        tls::{BrokerTls, closes_within, handshake},
    },
    clock::boottime,
    net::{
        certificates::client_config,
        raw_http2::{
            RawHttp2Options,
            frames::{PREFACE, settings},
        },
    },
    scale::{print_figures, scaled_count},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::interval};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

const IDLE: usize = 10_000;
const IDLE_MIN: usize = 1_000;
/// Time within which a client must send the HTTP/2 preface, and complete a TLS handshake.
const SPEAKS_WITHIN: Duration = Duration::from_secs(5);
/// Keepalive interval and timeout of these brokers.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Tolerance after the broker's time limit.
const TOLERANCE: Duration = Duration::from_secs(4);
/// Connection limit per address, as by default.
const CONNECTIONS_PER_ADDRESS: usize = 1_000;
/// First bytes of a TLS handshake that is never completed.
const HALF_HELLO: [u8; 8] = [0x16, 3, 1, 2, 0, 1, 0, 1];

fn options(mut options: BrokerOptions, per_address: usize) -> BrokerOptions {
    let most = per_address.to_string();
    let keepalive = format!("{}s", KEEPALIVE.as_secs());
    for (key, value) in [
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", &most),
        ("HTTP2__KEEPALIVE_INTERVAL", &keepalive),
        ("HTTP2__KEEPALIVE_TIMEOUT", &keepalive),
    ] {
        options
            .env
            .push((format!("LEASEHOLD__{key}"), value.clone()));
    }
    options
}

/// Opens connections from several addresses in round-robin order. No control client uses these
/// addresses.
async fn open_connections(
    connection_options: &RawHttp2Options,
    many: usize,
    addresses: u8,
) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for number in 0..many {
        let host = u8::try_from(number % usize::from(addresses)).expect("a few");
        open.push(connection(connection_options, host).await);
    }
    open
}

/// Opens a connection from an address that no control client uses.
async fn connection(connection_options: &RawHttp2Options, host: u8) -> TcpStream {
    let connection_options = RawHttp2Options {
        local_ip: IpAddr::from([127, 0, 0, 2 + host]),
        ..connection_options.clone()
    };
    connection_options.connect_tcp().await.expect("a backlog")
}

/// Returns the number of connections that are closed within `limit`.
async fn closed(crowd: impl IntoIterator<Item = TcpStream>, limit: Duration) -> usize {
    let each = crowd.into_iter().map(|tcp| closes_within(tcp, limit));
    join_all(each)
        .await
        .into_iter()
        .filter(|closed| *closed)
        .count()
}

/// Sends the HTTP/2 preface at one byte per second.
async fn send_slowly(mut tcp: TcpStream) -> bool {
    let mut second = interval(Duration::from_secs(1));
    for byte in PREFACE.chunks(1) {
        second.tick().await;
        if tcp.write_all(byte).await.is_err() {
            return true;
        }
    }
    false
}

/// Runs alone: it measures when thousands of silent connections are closed.
#[tokio::test]
async fn idle_connections_are_cut() {
    let mut fixture = AbuseFixture::start(
        options(BrokerOptions::default(), CONNECTIONS_PER_ADDRESS),
        None,
    )
    .await;
    let many = scaled_count(IDLE, IDLE_MIN);
    let started_at = boottime();
    let (mut mute, mut silent, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    for (number, mut tcp) in open_connections(&fixture.connection_options(), many, 1)
        .await
        .into_iter()
        .enumerate()
    {
        match number % 10 {
            0 => slow.push(tcp),
            1..5 => mute.push(tcp),
            _ => {
                // Connections above the limit are closed already.
                let _ = tcp.write_all(&[PREFACE, &settings(&[])].concat()).await;
                silent.push(tcp);
            }
        }
    }
    let opened = boottime() - started_at;
    let (mutes, silents, slows) = (mute.len(), silent.len(), slow.len());
    let cut = tokio::join!(
        closed(mute, SPEAKS_WITHIN + TOLERANCE),
        closed(silent, KEEPALIVE * 2 + TOLERANCE),
        join_all(slow.into_iter().map(send_slowly)),
    );
    let closed_after = boottime() - started_at;
    assert_eq!((cut.0, cut.1), (mutes, silents), "mute, silent");
    assert_eq!(cut.2, vec![true; slows], "slow");
    print_figures(&format!(
        "abuse: idle: {many} opened in {} ms",
        opened.as_millis()
    ));
    let attempt = AbuseRun {
        accepted: many,
        closed_after,
        go_away: None,
    };
    fixture.check_abuse("idle connections", &[attempt]).await;
    fixture.finish().await;
}

/// Runs alone: it measures when thousands of silent TLS connections are closed.
#[tokio::test]
async fn idle_connections_with_tls_are_cut() {
    let tls = BrokerTls::create(false);
    let options = options(tls.options(String::new()), CONNECTIONS_PER_ADDRESS);
    let mut fixture = AbuseFixture::start(options, Some(tls.sdk_client_config(None))).await;
    let (many, config) = (
        scaled_count(IDLE, IDLE_MIN),
        client_config(&tls.authority, None),
    );
    let (started_at, connection_options) = (boottime(), fixture.connection_options());
    let mut idle = Vec::new();
    for _ in 0..many {
        // Each handshake is completed immediately, because all handshakes together may exceed the
        // time limit of a handshake.
        let tcp = connection(&connection_options, 0).await;
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        let connector = TlsConnector::from(config.clone());
        idle.extend(connector.connect(name, tcp).await);
    }
    let opened = boottime() - started_at;
    let shaken = idle.len();
    assert!(
        shaken >= many.min(CONNECTIONS_PER_ADDRESS),
        "{shaken} handshakes"
    );
    let cut = join_all(
        idle.into_iter()
            .map(|tls| closes_within(tls, SPEAKS_WITHIN + TOLERANCE)),
    )
    .await;
    assert_eq!(cut, vec![true; shaken]);
    print_figures(&format!(
        "abuse: idle: {shaken} of {many} handshakes in {} ms",
        opened.as_millis()
    ));
    let attempt = AbuseRun {
        accepted: shaken,
        closed_after: boottime() - started_at,
        go_away: None,
    };
    fixture
        .check_abuse("idle connections with TLS", &[attempt])
        .await;
    fixture.finish().await;
}

/// Runs alone: it measures the slowest TLS handshake beside unfinished ones.
#[tokio::test]
async fn incomplete_handshakes_do_not_block_other_clients() {
    const HANDSHAKES_MAX: usize = 100;
    let tls = BrokerTls::create(false);
    let options = options(tls.options(String::new()), HANDSHAKES_MAX);
    let mut fixture = AbuseFixture::start(options, Some(tls.sdk_client_config(None))).await;
    let started_at = boottime();
    let mut half = open_connections(
        &fixture.connection_options(),
        scaled_count(IDLE, IDLE_MIN * 3),
        20,
    )
    .await;
    for tcp in &mut half {
        // Connections above the limit are closed already.
        let _ = tcp.write_all(&HALF_HELLO).await;
    }
    let many = half.len();
    let (mut knocks, mut slowest) = (0, Duration::ZERO);
    let knocking_began = boottime();
    let knocking = async {
        while boottime() - knocking_began < SPEAKS_WITHIN / 2 {
            let knocked = boottime();
            knocks += 1;
            let config = client_config(&tls.authority, None);
            let shaken = handshake(fixture.broker.addr(), config).await;
            shaken.expect("a place for who is healthy");
            slowest = slowest.max(boottime() - knocked);
        }
    };
    let (cut, ()) = tokio::join!(closed(half, SPEAKS_WITHIN + TOLERANCE), knocking);
    assert_eq!(cut, many, "half of a handshake");
    print_figures(&format!(
        "abuse: half a handshake: {knocks} others' take {} ms at most",
        slowest.as_millis()
    ));
    assert!(
        knocks > 10 && slowest < Duration::from_secs(1),
        "{knocks}, {slowest:?}"
    );
    let attempt = AbuseRun {
        accepted: many,
        closed_after: boottime() - started_at,
        go_away: None,
    };
    fixture.check_abuse("half a handshake", &[attempt]).await;
    fixture.finish().await;
}
