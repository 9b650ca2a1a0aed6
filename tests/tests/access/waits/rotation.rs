//! Certificates, tokens and keys are replaced under held leases: nothing is lost, and what was replaced
//! opens no door any more.

use std::{collections::BTreeSet, path::PathBuf, sync::LazyLock, time::Duration};

use futures::future::join_all;
use leasehold::{Client, ConnectError, Guard};
use leasehold_tests::{
    broker_tls::{HOST, connections, handshake},
    callers::{Issuer, replace},
    certificates::{Authority, Signed, client_config},
    client::AcquireCall,
    clock::boottime,
    locked_site::{LockedSite, trust},
    log_capture::LogCapture,
    scale::{count, figures},
    stream_client::StreamClient,
    temp_dir::TempDir,
    time_left::expiry,
    until::until,
};
use serde_json::json;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(4);
/// Clients of the SDK of each kind, and streams without one.
const EACH: usize = 2;
const KINDS: usize = 4;
const OLD: &str = "the old token, 7f0c";
const NEW: &str = "the new token, 91be";
const LONG_S: i64 = 600;

/// What the clients of this process log, for all tests of it.
static LOG: LazyLock<LogCapture> = LazyLock::new(LogCapture::begin);

/// Brokers, and the files of those who come.
struct Site {
    locked: LockedSite,
    dir: TempDir,
}

/// A client with what it holds.
struct Holder {
    guards: Vec<(String, Guard)>,
    _client: Client,
}

/// A stream with what it holds: locks, lease ids and tokens.
struct Raw {
    stream: StreamClient,
    held: Vec<(String, String, i64)>,
}

impl Site {
    async fn start() -> Self {
        Self {
            locked: LockedSite::start(&[OLD]).await,
            dir: TempDir::new("rotation"),
        }
    }

    /// The file of the tokens of such clients.
    fn file(&self, kind: &str) -> PathBuf {
        self.dir.path().join(kind)
    }

    /// A client that trusts these, shows that certificate, and perhaps the token of a file.
    async fn connect(
        &self,
        authorities: &[&Authority],
        shown: &Signed,
        kind: Option<&str>,
    ) -> Result<Client, ConnectError> {
        let mut builder = Client::builder(&self.locked.url()).tls(trust(authorities, shown));
        if let Some(kind) = kind {
            builder = builder.bearer_token_file(self.file(kind));
        }
        builder.connect().await
    }

    /// A client of the SDK that holds so many locks.
    async fn holder(&self, kind: Option<&str>, name: &str, locks: usize) -> Holder {
        let certificate = self.locked.worker();
        let authorities = [&self.locked.tls.authority];
        let client = self.connect(&authorities, &certificate, kind).await;
        let client = client.expect("a good key");
        let taken = (0..locks).map(async |lock| {
            let lock = format!("{name}-{lock}");
            let guard = client.lock(&*lock).ttl(TTL).acquire().await;
            (lock, guard.expect("it is free"))
        });
        Holder {
            guards: join_all(taken).await,
            _client: client,
        }
    }

    /// The same of a stream that shows a certificate only.
    async fn raw(&self, name: &str, locks: usize) -> Raw {
        let mut stream = StreamClient::open_on(self.locked.channel().await).await;
        let mut held = Vec::new();
        for lock in 0..locks {
            let lock = format!("{name}-{lock}");
            let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
            let call = stream.acquire(&call, 1).await;
            let lease = stream.granted(call).await;
            held.push((lock, lease.lease_id, lease.grants[0].fencing_token));
        }
        stream.beat(TTL / 3);
        Raw { stream, held }
    }

    /// Whether the store has all of these as they were granted.
    async fn lost(&self, held: &[(String, String, i64)]) -> usize {
        let mut lost = 0;
        for (lock, lease_id, token) in held {
            let state = self
                .locked
                .judge
                .get_lock(lock)
                .await
                .expect("GetLock works");
            let holders = state.map(|state| state.holders).unwrap_or_default();
            let is_it = |holder: &leasehold_proto::v1::Holder| {
                (&holder.lease_id, holder.fencing_token) == (lease_id, *token)
            };
            lost += usize::from(!holders.iter().any(is_it));
        }
        lost
    }

    /// Has the clients with tokens show the next one, and waits until the broker has accepted it from
    /// all of them.
    async fn shown(&self, kind: &str, token: &str) {
        let accepted = || {
            let log = LOG.text();
            log.matches("the stream goes on with another credential")
                .count()
        };
        let before = accepted();
        replace(&self.file(kind), token);
        until("all show the next token", async || {
            (accepted() == before + EACH).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_replaced_under_held_leases_and_none_is_lost() {
    LazyLock::force(&LOG);
    let mut site = Site::start().await;
    let old_certificate = site.locked.worker();
    let old_jwt = site.locked.doors.issuer.token("worker", LONG_S, json!({}));
    replace(&site.file("static"), OLD);
    replace(&site.file("jwt"), &old_jwt);
    let locks = count(1_000, 100) / (EACH * KINDS);
    let mut holders = Vec::new();
    let mut raw = Vec::new();
    for number in 0..EACH {
        for kind in [None, Some("static"), Some("jwt")] {
            let name = format!("{}-{number}", kind.unwrap_or("mtls"));
            holders.push(site.holder(kind, &name, locks).await);
        }
        raw.push(site.raw(&format!("raw-{number}"), locks).await);
    }
    let held: Vec<_> = held_by(&holders, &raw);
    let streams = connections(site.locked.broker.addr());
    assert_eq!(streams.len(), EACH * KINDS, "one of each client");
    let began = boottime();

    certificates_are_replaced(&mut site).await;
    static_tokens_are_replaced(&site).await;
    keys_are_replaced(&site, &old_jwt).await;

    // Longer than the store keeps them without heartbeats.
    sleep(expiry(TTL) + TTL / 2).await;
    let took = boottime() - began;
    let lost = site.lost(&held).await;
    let untrusted = holders.iter().flat_map(|holder| &holder.guards);
    let untrusted = untrusted.filter(|(_, guard)| !guard.is_valid()).count();
    let still: BTreeSet<_> = connections(site.locked.broker.addr());
    let dropped = streams.difference(&still).count();
    figures(&format!(
        "rotation: leases={} streams={} lost={lost} untrusted={untrusted} dropped={dropped} took={}ms",
        held.len(),
        streams.len(),
        took.as_millis()
    ));
    assert_eq!((lost, untrusted, dropped), (0, 0, 0));
    for holder in holders {
        let released = holder.guards.into_iter();
        let released = join_all(released.map(|(_, guard)| guard.release())).await;
        assert!(released.iter().all(Result::is_ok), "{released:?}");
    }
    for one in &mut raw {
        one.stream.close().await;
        one.stream.ended().await;
    }
    assert_eq!(site.lost(&held).await, held.len(), "all given back");
    old_certificates_are_withdrawn(&site, &old_certificate).await;
}

fn held_by(holders: &[Holder], raw: &[Raw]) -> Vec<(String, String, i64)> {
    let guards = holders.iter().flat_map(|holder| &holder.guards);
    let of_sdk = guards.map(|(lock, guard)| {
        let lease_id = guard.lease_id().to_owned();
        (lock.clone(), lease_id, guard.fencing_token())
    });
    let others = raw.iter().flat_map(|raw| raw.held.clone());
    of_sdk.chain(others).collect()
}

/// The broker's own, by the same authority and by another one; then that of the clients.
async fn certificates_are_replaced(site: &mut Site) {
    let worker = site.locked.worker();
    let old = &site.locked.tls.authority;
    let renewed = old.server(&[HOST]);
    site.locked.tls.renew(&renewed);
    let config = client_config(old, Some(&worker));
    let seen = handshake(site.locked.broker.addr(), config)
        .await
        .expect("TLS");
    let (_, tls) = seen.get_ref();
    let seen = tls.peer_certificates().expect("a certificate");
    assert_eq!(seen[0], renewed.certificate(), "the new key");

    let new = Authority::new("brokers, later");
    site.connect(&[old, &new], &worker, None)
        .await
        .expect("the bundle");
    site.locked.tls.renew(&new.server(&[HOST]));
    for trusted in [vec![old, &new], vec![&new]] {
        let client = site.connect(&trusted, &worker, None).await;
        client.expect("the new authority");
    }
    let refused = site.connect(&[old], &worker, None).await;
    refused.expect_err("the old authority alone");

    let clients = site.locked.tls.clients.as_ref().expect("mutual");
    let later = Authority::new("clients, later");
    let next = later.client("worker");
    site.connect(&[&new], &next, None)
        .await
        .expect_err("not yet");
    site.locked
        .tls
        .write("clients.pem", &(clients.pem() + &later.pem()));
    for shown in [&worker, &next] {
        let client = site.connect(&[&new], shown, None).await;
        client.expect("both count");
    }
    site.locked.tls.authority = new;
    site.locked.tls.clients = Some(later);
}

/// The old authority of clients is taken away: connections that its certificates have opened end, and no
/// other.
async fn old_certificates_are_withdrawn(site: &Site, old: &Signed) {
    let addr = site.locked.broker.addr();
    let before = connections(addr);
    let authorities = [&site.locked.tls.authority];
    let worker = site.locked.worker();
    let stays = site.connect(&authorities, &worker, None).await;
    let stays = stays.expect("the new authority");
    let kept: BTreeSet<_> = connections(addr).difference(&before).copied().collect();
    assert_eq!(kept.len(), 1, "one connection of a client");
    let later = site.locked.tls.clients.as_ref().expect("mutual");
    site.locked.tls.write("clients.pem", &later.pem());
    until("the old connections are closed", async || {
        connections(addr).is_disjoint(&before).then_some(())
    })
    .await;
    assert!(connections(addr).is_superset(&kept), "it counts");
    drop(stays);
    let refused = site.connect(&authorities, old, None).await;
    refused.expect_err("it counts no more");
}

async fn static_tokens_are_replaced(site: &Site) {
    let worker = site.locked.worker();
    let with = async |token: &str| {
        replace(&site.file("try"), token);
        let authorities = [&site.locked.tls.authority];
        site.connect(&authorities, &worker, Some("try")).await
    };
    with(NEW).await.expect_err("not yet");
    site.locked
        .doors
        .set_tokens(&[("worker", OLD), ("worker", NEW)]);
    site.shown("static", NEW).await;
    for token in [OLD, NEW] {
        with(token).await.expect("both count");
    }
    site.locked.doors.set_tokens(&[("worker", NEW)]);
    until("the old token opens nothing", async || {
        with(OLD).await.err()
    })
    .await;
    with(NEW).await.expect("it counts");
}

async fn keys_are_replaced(site: &Site, old: &str) {
    let worker = site.locked.worker();
    let with = async |token: &str| {
        replace(&site.file("try"), token);
        let authorities = [&site.locked.tls.authority];
        site.connect(&authorities, &worker, Some("try")).await
    };
    let issuer = Issuer::new("key-2");
    let new = issuer.token("worker", LONG_S, json!({}));
    with(&new).await.expect_err("not yet");
    site.locked
        .doors
        .set_keys(&[&site.locked.doors.issuer, &issuer]);
    site.shown("jwt", &new).await;
    for token in [old, &new] {
        with(token).await.expect("both count");
    }
    site.locked.doors.set_keys(&[&issuer]);
    until("the old key opens nothing", async || with(old).await.err()).await;
    with(&new).await.expect("it counts");
}
