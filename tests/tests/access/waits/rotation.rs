//! Replacement of certificates, tokens and keys while leases are held: no lease is lost, and
//! replaced credentials are rejected.

use std::{collections::BTreeSet, path::PathBuf, sync::LazyLock, time::Duration};

use futures::future::join_all;
use leasehold::{Client, ConnectError, Guard};
use leasehold_tests::{
    access::{
        files_and_callers::{Issuer, replace_file},
        mutual_tls_fixture::{MutualTlsFixture, client_tls_config},
    },
    broker::tls::{HOST, handshake, open_client_ports},
    client::{stream::StreamClient, unary::AcquireCall},
    clock::boottime,
    load::store_expiry::store_expiry,
    net::certificates::{Authority, SignedCertificate, client_config},
    process::{log_capture::LogCapture, temp_dir::TempDir},
    scale::{print_figures, scaled_count},
    until::until,
};
use serde_json::json;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(4);
/// Number of clients of each kind, and number of kinds of SDK clients and raw streams.
const EACH: usize = 2;
const KINDS: usize = 4;
const OLD: &str = "the old token, 7f0c";
const NEW: &str = "the new token, 91be";
const LONG_S: i64 = 600;

/// Log of the clients in this process, shared by all tests.
static LOG: LazyLock<LogCapture> = LazyLock::new(LogCapture::start);

/// Brokers, and the files of their clients.
struct Fixture {
    locked: MutualTlsFixture,
    dir: TempDir,
}

/// A client and its guards.
struct Holder {
    guards: Vec<(String, Guard)>,
    _client: Client,
}

/// A raw stream and its leases: lock, lease id and fencing token.
struct RawStream {
    stream: StreamClient,
    held: Vec<(String, String, i64)>,
}

impl Fixture {
    async fn start() -> Self {
        Self {
            locked: MutualTlsFixture::start(&[OLD]).await,
            dir: TempDir::new("rotation"),
        }
    }

    /// Returns the token file of clients of this kind.
    fn file(&self, kind: &str) -> PathBuf {
        self.dir.path().join(kind)
    }

    /// Connects a client that trusts these authorities and presents a certificate, and optionally
    /// the token in a file.
    async fn connect(
        &self,
        authorities: &[&Authority],
        identity: &SignedCertificate,
        kind: Option<&str>,
    ) -> Result<Client, ConnectError> {
        let mut builder =
            Client::builder(&self.locked.url()).tls(client_tls_config(authorities, identity));
        if let Some(kind) = kind {
            builder = builder.bearer_token_file(self.file(kind));
        }
        builder.connect().await
    }

    /// Starts a client of the SDK that holds `locks` locks.
    async fn holder(&self, kind: Option<&str>, name: &str, locks: usize) -> Holder {
        let certificate = self.locked.worker_certificate();
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

    /// Opens a raw stream that holds `locks` locks and presents only a certificate.
    async fn raw(&self, name: &str, locks: usize) -> RawStream {
        let mut stream = StreamClient::open_on(self.locked.channel().await).await;
        let mut held = Vec::new();
        for lock in 0..locks {
            let lock = format!("{name}-{lock}");
            let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
            let call = stream.acquire(&call, 1).await;
            let lease = stream.expect_granted(call).await;
            held.push((lock, lease.lease_id, lease.grants[0].fencing_token));
        }
        stream.start_heartbeats(TTL / 3);
        RawStream { stream, held }
    }

    /// Returns the number of leases that the store no longer has as they were granted.
    async fn lost_count(&self, held: &[(String, String, i64)]) -> usize {
        let mut lost = 0;
        for (lock, lease_id, token) in held {
            let state = self
                .locked
                .observer
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

    /// Makes clients with tokens send the next token, and waits until the broker has accepted the
    /// token of every client.
    async fn identity(&self, kind: &str, token: &str) {
        let accepted = || {
            let log = LOG.text();
            log.matches("the lease stream uses the new credential")
                .count()
        };
        let before = accepted();
        replace_file(&self.file(kind), token);
        until("all show the next token", async || {
            (accepted() == before + EACH).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_replaced_under_held_leases_and_none_is_lost() {
    LazyLock::force(&LOG);
    let mut fixture = Fixture::start().await;
    let old_certificate = fixture.locked.worker_certificate();
    let old_jwt = fixture
        .locked
        .access_files
        .issuer
        .token("worker", LONG_S, json!({}));
    replace_file(&fixture.file("static"), OLD);
    replace_file(&fixture.file("jwt"), &old_jwt);
    let locks = scaled_count(1_000, 100) / (EACH * KINDS);
    let mut holders = Vec::new();
    let mut raw = Vec::new();
    for number in 0..EACH {
        for kind in [None, Some("static"), Some("jwt")] {
            let name = format!("{}-{number}", kind.unwrap_or("mtls"));
            holders.push(fixture.holder(kind, &name, locks).await);
        }
        raw.push(fixture.raw(&format!("raw-{number}"), locks).await);
    }
    let held: Vec<_> = held_by(&holders, &raw);
    let streams = open_client_ports(fixture.locked.broker.addr());
    assert_eq!(streams.len(), EACH * KINDS, "one of each client");
    let started_at = boottime();

    certificates_are_replaced(&mut fixture).await;
    static_tokens_are_replaced(&fixture).await;
    keys_are_replaced(&fixture, &old_jwt).await;

    // The pause exceeds the expiry without heartbeats.
    sleep(store_expiry(TTL) + TTL / 2).await;
    let took = boottime() - started_at;
    let lost = fixture.lost_count(&held).await;
    let untrusted = holders.iter().flat_map(|holder| &holder.guards);
    let untrusted = untrusted.filter(|(_, guard)| !guard.is_valid()).count();
    let still: BTreeSet<_> = open_client_ports(fixture.locked.broker.addr());
    let dropped = streams.difference(&still).count();
    print_figures(&format!(
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
        one.stream.read_to_end().await;
    }
    assert_eq!(fixture.lost_count(&held).await, held.len(), "all released");
    old_certificates_are_withdrawn(&fixture, &old_certificate).await;
}

fn held_by(holders: &[Holder], raw: &[RawStream]) -> Vec<(String, String, i64)> {
    let guards = holders.iter().flat_map(|holder| &holder.guards);
    let of_sdk = guards.map(|(lock, guard)| {
        let lease_id = guard.lease_id().to_owned();
        (lock.clone(), lease_id, guard.fencing_token())
    });
    let others = raw.iter().flat_map(|raw| raw.held.clone());
    of_sdk.chain(others).collect()
}

/// Replaces the broker's certificate, by the same and by another authority, and then the clients'
/// certificates.
async fn certificates_are_replaced(fixture: &mut Fixture) {
    let worker = fixture.locked.worker_certificate();
    let old = &fixture.locked.tls.authority;
    let renewed = old.server(&[HOST]);
    fixture.locked.tls.replace_certificate(&renewed);
    let config = client_config(old, Some(&worker));
    let seen = handshake(fixture.locked.broker.addr(), config)
        .await
        .expect("TLS");
    let (_, tls) = seen.get_ref();
    let seen = tls.peer_certificates().expect("a certificate");
    assert_eq!(seen[0], renewed.certificate(), "the new key");

    let new = Authority::new("brokers, later");
    fixture
        .connect(&[old, &new], &worker, None)
        .await
        .expect("the bundle");
    fixture.locked.tls.replace_certificate(&new.server(&[HOST]));
    for trusted in [vec![old, &new], vec![&new]] {
        let client = fixture.connect(&trusted, &worker, None).await;
        client.expect("the new authority");
    }
    let refused = fixture.connect(&[old], &worker, None).await;
    refused.expect_err("the old authority alone");

    let clients = fixture
        .locked
        .tls
        .client_authority
        .as_ref()
        .expect("mutual");
    let later = Authority::new("clients, later");
    let next = later.client("worker");
    fixture
        .connect(&[&new], &next, None)
        .await
        .expect_err("not yet");
    fixture
        .locked
        .tls
        .write("clients.pem", &(clients.pem() + &later.pem()));
    for identity in [&worker, &next] {
        let client = fixture.connect(&[&new], identity, None).await;
        client.expect("both count");
    }
    fixture.locked.tls.authority = new;
    fixture.locked.tls.client_authority = Some(later);
}

/// Removes the old authority of clients. Only the connections opened with its certificates are
/// closed.
async fn old_certificates_are_withdrawn(fixture: &Fixture, old: &SignedCertificate) {
    let addr = fixture.locked.broker.addr();
    let before = open_client_ports(addr);
    let authorities = [&fixture.locked.tls.authority];
    let worker = fixture.locked.worker_certificate();
    let stays = fixture.connect(&authorities, &worker, None).await;
    let stays = stays.expect("the new authority");
    let still_open: BTreeSet<_> = open_client_ports(addr)
        .difference(&before)
        .copied()
        .collect();
    assert_eq!(still_open.len(), 1, "one connection of a client");
    let later = fixture
        .locked
        .tls
        .client_authority
        .as_ref()
        .expect("mutual");
    fixture.locked.tls.write("clients.pem", &later.pem());
    until("the old connections are closed", async || {
        open_client_ports(addr).is_disjoint(&before).then_some(())
    })
    .await;
    assert!(
        open_client_ports(addr).is_superset(&still_open),
        "it counts"
    );
    drop(stays);
    let refused = fixture.connect(&authorities, old, None).await;
    refused.expect_err("it counts no more");
}

async fn static_tokens_are_replaced(fixture: &Fixture) {
    let worker = fixture.locked.worker_certificate();
    let with = async |token: &str| {
        replace_file(&fixture.file("try"), token);
        let authorities = [&fixture.locked.tls.authority];
        fixture.connect(&authorities, &worker, Some("try")).await
    };
    with(NEW).await.expect_err("not yet");
    fixture
        .locked
        .access_files
        .set_tokens(&[("worker", OLD), ("worker", NEW)]);
    fixture.identity("static", NEW).await;
    for token in [OLD, NEW] {
        with(token).await.expect("both count");
    }
    fixture.locked.access_files.set_tokens(&[("worker", NEW)]);
    until("the old token opens nothing", async || {
        with(OLD).await.err()
    })
    .await;
    with(NEW).await.expect("it counts");
}

async fn keys_are_replaced(fixture: &Fixture, old: &str) {
    let worker = fixture.locked.worker_certificate();
    let with = async |token: &str| {
        replace_file(&fixture.file("try"), token);
        let authorities = [&fixture.locked.tls.authority];
        fixture.connect(&authorities, &worker, Some("try")).await
    };
    let issuer = Issuer::new("key-2");
    let new = issuer.token("worker", LONG_S, json!({}));
    with(&new).await.expect_err("not yet");
    fixture
        .locked
        .access_files
        .set_keys(&[&fixture.locked.access_files.issuer, &issuer]);
    fixture.identity("jwt", &new).await;
    for token in [old, &new] {
        with(token).await.expect("both count");
    }
    fixture.locked.access_files.set_keys(&[&issuer]);
    until("the old key opens nothing", async || with(old).await.err()).await;
    with(&new).await.expect("it counts");
}
