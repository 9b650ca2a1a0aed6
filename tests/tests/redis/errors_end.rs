//! A real Redis that is no longer in the state that the broker verified. The broker stops using it,
//! logs the reason once, retries at intervals, and serves again as soon as the server permits.

use std::{fs, time::Duration};

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::process::BrokerOptions,
    client::unary::{AcquireCall, HeldLease},
    process::ports::free_port,
    redis::{
        rejecting_fixture::{
            INTERNAL, LEASE_NOT_FOUND, RejectingRedisFixture, UNAVAILABLE, assert_all_failed,
            error_summary, expect_all_ok, numbered_names, repeat_until_rejected,
        },
        reply_dropping_proxy::RedisProxy,
        server::RedisServer,
    },
    scale::{print_figures, scaled_count},
    until::until,
};
use tokio::time::Instant;

/// Maximum time until the next attempt (500 ms) and for opening a node on a busy machine, which
/// takes three connections and all scripts.
const RECOVERED: Duration = Duration::from_millis(1_500);
const QUICK: &[(&str, &str)] = &[
    ("LIMITS__TTL_MAX", "1s"),
    ("LIMITS__TTL_DEFAULT", "1s"),
    ("LIMITS__LOCK_DELAY_MAX", "0s"),
    ("STORE__FORMER_MASTER_MAX", "0s"),
];
/// E(1 s) + 1 s.
const QUARANTINE: Duration = Duration::from_millis(2_450);
/// Maximum number of connections that a broker opens per second while the server rejects it: three
/// for a node, and two attempts.
const OPENED_A_SECOND: usize = 6;
const CUTS: usize = 5;
/// Maximum number of calls of a verb that have not been sent when the connection is cut: the broker
/// holds back a partial batch while two other batches have no reply.
const LEFT_WAITING_MAX: usize = 15;

fn calls() -> usize {
    scaled_count(1_000, 50)
}

/// A store that is out of use: start of the outage, and number of connections opened before.
struct Outage {
    begun: Instant,
    connections: usize,
}

impl Outage {
    async fn begin(fixture: &mut RejectingRedisFixture) -> Self {
        Self {
            begun: Instant::now(),
            connections: fixture.command_counts().await.connections,
        }
    }

    /// Asserts that calls of every kind are rejected, and that the log contains the reason once.
    async fn refuses(&self, fixture: &RejectingRedisFixture, held: &[HeldLease], says: &str) {
        fixture.expect_all_rejected(held, UNAVAILABLE).await;
        assert_eq!(fixture.count_log_lines(says), 1, "{}", fixture.broker.log());
    }

    /// Asserts that the broker opened few connections during the outage, and used the store again
    /// in time.
    async fn assert_recovers(self, fixture: &mut RejectingRedisFixture, what: &str) {
        let took = fixture.wait_for_recovery().await;
        let seconds = usize::try_from(self.begun.elapsed().as_secs()).expect("few") + 1;
        let connections = fixture.command_counts().await.connections - self.connections;
        fixture.assert_healthy().await;
        print_figures(&format!(
            "redis_errors {what}: connections={connections} in {seconds}s recovered_after={}ms",
            took.as_millis()
        ));
        assert!(took < RECOVERED, "{took:?}");
        assert!(connections <= seconds * OPENED_A_SECOND, "{connections}");
    }
}

/// Asserts that grants resume after the quarantine of a former master, and not before. `cured` is a
/// time before the command that repairs the server, because the broker may have written the new era
/// when the reply to the command arrives.
async fn resumes_after_quarantine(fixture: &RejectingRedisFixture, cured: Instant) {
    let call = AcquireCall::new("quarantine", Duration::from_secs(1), Duration::ZERO);
    let mut recovering = None;
    let granted = loop {
        match fixture.client.acquire_at(0, &call).await {
            Ok(_) => break cured.elapsed(),
            Err(status) if error_summary(&status).1 == Some(ErrorReason::StoreRecovering) => {
                recovering.get_or_insert_with(|| cured.elapsed());
            }
            Err(status) => assert_eq!(error_summary(&status), UNAVAILABLE),
        }
        assert!(cured.elapsed() < 10 * QUARANTINE, "grants resume");
    };
    let recovering = recovering.expect("no grant at once");
    print_figures(&format!(
        "redis_errors promoted again: STORE_RECOVERING after {}ms, granted after {}ms, Q={}ms",
        recovering.as_millis(),
        granted.as_millis(),
        QUARANTINE.as_millis()
    ));
    assert!(recovering < RECOVERED, "{recovering:?}");
    assert!(granted >= QUARANTINE, "{granted:?}");
}

#[tokio::test]
async fn a_demoted_server_grants_nothing() {
    let mut fixture = RejectingRedisFixture::start_with(RedisServer::start().await, QUICK).await;
    let other = RedisServer::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let port = other.addr().port().to_string();
    fixture.raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let outage = Outage::begin(&mut fixture).await;
    assert_all_failed(
        fixture.acquire_all(&numbered_names("new", calls())).await,
        UNAVAILABLE,
    );
    outage.refuses(&fixture, &held, "is lost: it is a ").await;
    // The server may load the data of its master for a moment, which is logged as well.
    assert!((1..=3).contains(&fixture.count_log_lines("not a master")));
    let cured = Instant::now();
    fixture.raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    resumes_after_quarantine(&fixture, cured).await;
    outage.assert_recovers(&mut fixture, "READONLY").await;
}

#[tokio::test]
async fn a_replica_without_a_master_grants_nothing() {
    let mut fixture = RejectingRedisFixture::start_with(RedisServer::start().await, QUICK).await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let nobody = free_port().to_string();
    let raw = &mut fixture.raw;
    raw.must(&["CONFIG", "SET", "replica-serve-stale-data", "no"])
        .await;
    raw.must(&["REPLICAOF", "127.0.0.1", &nobody]).await;
    repeat_until_rejected(raw, &["GET", "x"], "MASTERDOWN").await;
    let outage = Outage::begin(&mut fixture).await;
    outage.refuses(&fixture, &held, "is lost: it is a ").await;
    let cured = Instant::now();
    fixture.raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    resumes_after_quarantine(&fixture, cured).await;
    outage.assert_recovers(&mut fixture, "MASTERDOWN").await;
}

#[tokio::test]
async fn an_overwritten_era_counts_as_a_loss_of_data() {
    let fixture = &mut RejectingRedisFixture::start_with(RedisServer::start().await, QUICK).await;
    fixture.raw.must(&["DEL", "lh:era"]).await;
    fixture.raw.must(&["RPUSH", "lh:era", "x"]).await;
    let locks = numbered_names("new", calls());
    let mut internal = 0;
    while !fixture.has_logged_lost_connection() {
        let answers = fixture.acquire_all(&locks).await.into_iter();
        let refusals = answers.map(|answer| error_summary(&answer.expect_err("no era, no grant")));
        internal += refusals.filter(|refusal| *refusal == INTERNAL).count();
    }
    assert_eq!(
        fixture.count_log_lines("is lost: its era was overwritten"),
        1
    );
    assert_all_failed(fixture.acquire_all(&locks).await, UNAVAILABLE);
    // On a busy machine the broker's own check of the server may precede the first call, and a call
    // may be rejected because of the loss although its script has read the key. The error is logged
    // once for all scripts.
    let logged = fixture.count_log_lines("of another program under a key of the brokers: WRONG");
    assert!(
        logged <= 1 && (logged == 1 || internal == 0),
        "{logged} {internal}"
    );
    let cured = Instant::now();
    fixture.raw.must(&["DEL", "lh:era"]).await;
    resumes_after_quarantine(fixture, cured).await;
}

#[tokio::test]
async fn a_server_that_reloads_its_data_is_waited_for() {
    let redis = RedisServer::start_with(&["--enable-debug-command", "yes"]).await;
    let mut fixture = RejectingRedisFixture::start_with(redis, &[]).await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let raw = &mut fixture.raw;
    raw.must(&["DEBUG", "POPULATE", "2500"]).await;
    for (setting, value) in [
        ("key-load-delay", "1000"),
        ("loading-process-events-interval-bytes", "1024"),
    ] {
        raw.must(&["CONFIG", "SET", setting, value]).await;
    }
    let mut loader = fixture.redis.connect().await;
    let outage = Outage::begin(&mut fixture).await;
    let load = async {
        loader.must(&["DEBUG", "RELOAD"]).await;
        Instant::now()
    };
    let refused = async {
        repeat_until_rejected(&mut fixture.raw, &["PING"], "LOADING").await;
        fixture.expect_all_rejected(&held, UNAVAILABLE).await;
        Instant::now()
    };
    let (loaded, refused) = tokio::join!(load, refused);
    assert!(refused < loaded, "it was loading all the time");
    let lines = fixture.count_log_lines("is loading its data");
    assert!((1..=2).contains(&lines), "{}", fixture.broker.log());
    outage.assert_recovers(&mut fixture, "LOADING").await;
    assert_eq!(fixture.count_log_lines("may have lost locks"), 0);
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn a_password_that_was_set_or_changed_is_logged() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(format!("redis://:first-secret@{}/0", redis.addr()));
    let mut raw = redis.connect().await;
    raw.must(&["CONFIG", "SET", "requirepass", "first-secret"])
        .await;
    raw.must(&["AUTH", "first-secret"]).await;
    let mut fixture = RejectingRedisFixture::start_on(redis, &options).await;
    fixture.raw = raw;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let outage = Outage::begin(&mut fixture).await;
    let raw = &mut fixture.raw;
    raw.must(&["CONFIG", "SET", "requirepass", "second-secret"])
        .await;
    cut(&mut fixture).await;
    outage.refuses(&fixture, &held, "user: WRONGPASS").await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "requirepass", "first-secret"])
        .await;
    outage.assert_recovers(&mut fixture, "WRONGPASS").await;
    expect_all_ok(fixture.release_all(&held).await);
    assert_eq!(fixture.count_log_lines("secret"), 0);
}

#[tokio::test]
async fn a_rejected_password_is_logged() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let outage = Outage::begin(&mut fixture).await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "requirepass", "a-secret"])
        .await;
    expect_all_ok(fixture.renew_all(&held).await);
    cut(&mut fixture).await;
    outage.refuses(&fixture, &held, "user: NOAUTH").await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "requirepass", ""])
        .await;
    outage.assert_recovers(&mut fixture, "NOAUTH").await;
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn a_server_that_cannot_be_inspected_is_not_used() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let outage = Outage::begin(&mut fixture).await;
    fixture
        .raw
        .must(&["ACL", "SETUSER", "default", "-info"])
        .await;
    let one = &held[..1];
    while fixture.renew_all(one).await.iter().all(Result::is_ok) {}
    outage.refuses(&fixture, &held, "user: NOPERM").await;
    assert_eq!(fixture.count_log_lines("3 probes failed (NOPERM"), 1);
    fixture
        .raw
        .must(&["ACL", "SETUSER", "default", "+info"])
        .await;
    outage.assert_recovers(&mut fixture, "NOPERM to look").await;
    expect_all_ok(fixture.release_all(&held).await);
}

/// Demotes a server that rejects writes and even PING. The broker still evaluates the information
/// that it can read.
#[tokio::test]
async fn a_server_that_cannot_save_is_left_when_it_is_demoted() {
    let mut fixture = RejectingRedisFixture::start().await;
    let locks = numbered_names("held", calls());
    expect_all_ok(fixture.acquire_all(&locks).await);
    let other = RedisServer::start().await;
    let raw = &mut fixture.raw;
    raw.must(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    fs::create_dir(fixture.redis.snapshot_path()).expect("nothing is saved yet");
    raw.must(&["BGSAVE"]).await;
    repeat_until_rejected(raw, &["PING"], "MISCONF").await;
    let port = other.addr().port().to_string();
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let start = Instant::now();
    while !fixture.has_logged_lost_connection() {
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{}",
            fixture.broker.log()
        );
        fixture.get_all(&locks[..1]).await;
    }
    assert_eq!(
        fixture.count_log_lines("is lost: it is no longer a master"),
        1
    );
    assert_all_failed(fixture.get_all(&locks).await, UNAVAILABLE);
}

#[tokio::test]
async fn a_cut_connection_is_reopened() {
    let redis = RedisServer::start().await;
    let proxy = RedisProxy::start(redis.addr()).await;
    let mut fixture =
        RejectingRedisFixture::start_on(redis, &BrokerOptions::for_store(proxy.url())).await;
    let half = calls() / 2;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", half)).await);
    for cut in 1..=CUTS {
        let outage = Outage::begin(&mut fixture).await;
        let before = ["GRANTED", "EXTENDED"].map(|word| (word, proxy.dropped_replies(word)));
        proxy.set_dropping(true);
        let lost = async {
            for (word, before) in before {
                let sent = before + half - LEFT_WAITING_MAX;
                proxy.wait_for_dropped_replies(word, sent).await;
            }
            proxy.close_connections().await;
            proxy.set_dropping(false);
        };
        let cut_locks = numbered_names(&format!("cut-{cut}"), half);
        let renews = async {
            let calls = tokio::join!(fixture.acquire_all(&cut_locks), fixture.renew_all(&held));
            // A call that had not arrived before the cut is executed after it.
            let (granted, rejected): (Vec<_>, _) = calls.0.into_iter().partition(Result::is_ok);
            let (renewed, not_renewed): (Vec<_>, _) = calls.1.into_iter().partition(Result::is_ok);
            let late = granted.len().max(renewed.len());
            assert!(late <= LEFT_WAITING_MAX, "{late} calls were not cut");
            assert_all_failed(rejected, UNAVAILABLE);
            assert_all_failed(not_renewed, UNAVAILABLE);
            expect_all_ok(granted)
        };
        let ((), late) = tokio::join!(lost, renews);
        outage.assert_recovers(&mut fixture, "cut").await;
        assert_eq!(fixture.count_log_lines("is lost"), cut);
        expect_all_ok(fixture.release_all(&late).await);
        wait_until_free(&fixture, &cut_locks).await;
    }
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn late_commands_at_a_stopped_server_have_no_effect() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let outage = Outage::begin(&mut fixture).await;
    fixture.redis.process().pause().await;
    let new = numbered_names("late", calls());
    assert_all_failed(fixture.acquire_all(&new).await, UNAVAILABLE);
    assert_all_failed(fixture.renew_all(&held).await, UNAVAILABLE);
    assert_all_failed(fixture.acquire_all(&new).await, UNAVAILABLE);
    // By a call or by a probe, whichever is first.
    let noticed = until("the stop is noticed", async || {
        (fixture.count_log_lines("is lost: no answer") > 0).then_some(())
    });
    noticed.await;
    assert_eq!(fixture.count_log_lines("is lost: no answer"), 1);
    fixture.redis.process().resume();
    outage.assert_recovers(&mut fixture, "stopped").await;
    wait_until_free(&fixture, &new).await;
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn late_commands_at_a_pausing_server_have_no_effect() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let outage = Outage::begin(&mut fixture).await;
    fixture
        .raw
        .must(&["CLIENT", "PAUSE", "100000", "WRITE"])
        .await;
    let new = numbered_names("late", calls());
    assert_all_failed(fixture.acquire_all(&new).await, UNAVAILABLE);
    assert_all_failed(fixture.renew_all(&held).await, UNAVAILABLE);
    assert_eq!(fixture.count_log_lines("does not answer in time"), 1);
    fixture.raw.must(&["CLIENT", "UNPAUSE"]).await;
    outage.assert_recovers(&mut fixture, "CLIENT PAUSE").await;
    assert!(
        !fixture.has_logged_lost_connection(),
        "it answers what the broker looks at"
    );
    wait_until_free(&fixture, &new).await;
    expect_all_ok(fixture.release_all(&held).await);
}

async fn cut(fixture: &mut RejectingRedisFixture) {
    for kind in ["normal", "pubsub"] {
        let kill = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
        fixture.raw.must(&kill).await;
    }
}

/// Waits until these locks are free. The broker may have to roll back attempts before.
async fn wait_until_free(fixture: &RejectingRedisFixture, locks: &[String]) {
    let start = Instant::now();
    for locks in locks.chunks(100) {
        let is_free = |answer: &Result<_, _>| {
            answer
                .as_ref()
                .is_err_and(|status| error_summary(status) == LEASE_NOT_FOUND)
        };
        while !fixture.get_all(locks).await.iter().all(is_free) {
            assert!(start.elapsed() < Duration::from_secs(5), "they are held");
        }
    }
}
