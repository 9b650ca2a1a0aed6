//! Clients that are slow to speak, or fall silent: they are cut, and keep nobody out.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    abuse_site::{Attempt, Site},
    broker_process::BrokerOptions,
    broker_tls::{BrokerTls, handshake, is_closed},
    certificates::client_config,
    clock::boottime,
    raw_http2::{
        Opening,
        frames::{PREFACE, settings},
    },
    scale::{count, figures},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::interval};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

const IDLE: usize = 10_000;
const IDLE_LEAST: usize = 1_000;
/// What a client has to speak within, and to shake hands.
const SPEAKS_WITHIN: Duration = Duration::from_secs(5);
/// The keepalive of these brokers: interval, then time-out.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// A client that must be cut is, so soon after the broker's own time is over.
const LATE: Duration = Duration::from_secs(4);
/// What the broker has for connections of one address, as by default.
const PLACES: usize = 1_000;
/// The beginning of a TLS handshake, of which the rest does not come.
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

/// As many connections, from so many addresses by turns, none of which is a bystander's.
async fn crowd(opening: &Opening, many: usize, addresses: u8) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for number in 0..many {
        let host = u8::try_from(number % usize::from(addresses)).expect("a few");
        open.push(connection(opening, host).await);
    }
    open
}

/// One connection, from an address that is no bystander's.
async fn connection(opening: &Opening, host: u8) -> TcpStream {
    let opening = Opening {
        from: IpAddr::from([127, 0, 0, 2 + host]),
        ..opening.clone()
    };
    opening.tcp().await.expect("a backlog")
}

/// How many of them are closed in time.
async fn closed(crowd: impl IntoIterator<Item = TcpStream>, limit: Duration) -> usize {
    let each = crowd.into_iter().map(|tcp| is_closed(tcp, limit));
    join_all(each)
        .await
        .into_iter()
        .filter(|closed| *closed)
        .count()
}

/// Sends the beginning of HTTP/2 a byte a second.
async fn drips(mut tcp: TcpStream) -> bool {
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
    let mut site = Site::start(options(BrokerOptions::default(), PLACES), None).await;
    let many = count(IDLE, IDLE_LEAST);
    let began = boottime();
    let (mut mute, mut silent, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    for (number, mut tcp) in crowd(&site.opening(), many, 1)
        .await
        .into_iter()
        .enumerate()
    {
        match number % 10 {
            0 => slow.push(tcp),
            1..5 => mute.push(tcp),
            _ => {
                // Those for which there is no place are closed already.
                let _ = tcp.write_all(&[PREFACE, &settings(&[])].concat()).await;
                silent.push(tcp);
            }
        }
    }
    let opened = boottime() - began;
    let (mutes, silents, slows) = (mute.len(), silent.len(), slow.len());
    let cut = tokio::join!(
        closed(mute, SPEAKS_WITHIN + LATE),
        closed(silent, KEEPALIVE * 2 + LATE),
        join_all(slow.into_iter().map(drips)),
    );
    let cut_after = boottime() - began;
    assert_eq!((cut.0, cut.1), (mutes, silents), "mute, silent");
    assert_eq!(cut.2, vec![true; slows], "slow");
    figures(&format!(
        "abuse: idle: {many} opened in {} ms",
        opened.as_millis()
    ));
    let attempt = Attempt {
        taken: many,
        cut_after,
        go_away: None,
    };
    site.suffered("idle connections", &[attempt]).await;
    site.end().await;
}

/// Runs alone: it measures when thousands of silent TLS connections are closed.
#[tokio::test]
async fn idle_connections_with_tls_are_cut() {
    let tls = BrokerTls::create(false);
    let options = options(tls.options(String::new()), PLACES);
    let mut site = Site::start(options, Some(tls.trust(None))).await;
    let (many, config) = (count(IDLE, IDLE_LEAST), client_config(&tls.authority, None));
    let (began, opening) = (boottime(), site.opening());
    let mut idle = Vec::new();
    for _ in 0..many {
        // Each shakes hands at once: all the handshakes together may take longer than the broker lets one take.
        let tcp = connection(&opening, 0).await;
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        let connector = TlsConnector::from(config.clone());
        idle.extend(connector.connect(name, tcp).await);
    }
    let opened = boottime() - began;
    let shaken = idle.len();
    assert!(shaken >= many.min(PLACES), "{shaken} handshakes");
    let cut = join_all(
        idle.into_iter()
            .map(|tls| is_closed(tls, SPEAKS_WITHIN + LATE)),
    )
    .await;
    assert_eq!(cut, vec![true; shaken]);
    figures(&format!(
        "abuse: idle: {shaken} of {many} handshakes in {} ms",
        opened.as_millis()
    ));
    let attempt = Attempt {
        taken: shaken,
        cut_after: boottime() - began,
        go_away: None,
    };
    site.suffered("idle connections with TLS", &[attempt]).await;
    site.end().await;
}

/// Runs alone: it measures the slowest TLS handshake beside unfinished ones.
#[tokio::test]
async fn half_a_handshake_keeps_nobody_out() {
    const MOST: usize = 100;
    let tls = BrokerTls::create(false);
    let options = options(tls.options(String::new()), MOST);
    let mut site = Site::start(options, Some(tls.trust(None))).await;
    let began = boottime();
    let mut half = crowd(&site.opening(), count(IDLE, IDLE_LEAST * 3), 20).await;
    for tcp in &mut half {
        // Those for which there is no place are closed already.
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
            let shaken = handshake(site.broker.addr(), config).await;
            shaken.expect("a place for who is healthy");
            slowest = slowest.max(boottime() - knocked);
        }
    };
    let (cut, ()) = tokio::join!(closed(half, SPEAKS_WITHIN + LATE), knocking);
    assert_eq!(cut, many, "half of a handshake");
    figures(&format!(
        "abuse: half a handshake: {knocks} others' take {} ms at most",
        slowest.as_millis()
    ));
    assert!(
        knocks > 10 && slowest < Duration::from_secs(1),
        "{knocks}, {slowest:?}"
    );
    let attempt = Attempt {
        taken: many,
        cut_after: boottime() - began,
        go_away: None,
    };
    site.suffered("half a handshake", &[attempt]).await;
    site.end().await;
}
