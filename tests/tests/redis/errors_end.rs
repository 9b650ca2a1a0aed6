//! A real Redis that cannot be used any more as it was verified: the broker leaves it, says why once,
//! asks for it now and then, and serves again as soon as it may.

use std::{fs, time::Duration};

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::BrokerOptions,
    client::{AcquireCall, Held},
    port::free_port,
    redis_proxy::RedisProxy,
    redis_server::RedisServer,
    refusing::{
        IDLE, INTERNAL, Refusing, UNAVAILABLE, assert_told, done, names, told, until_refused,
    },
    scale::{count, figures},
    until::until,
};
use tokio::time::Instant;

/// At most half a second until the next attempt, and what it takes to open a node on a busy machine:
/// three connections and all scripts.
const RECOVERED: Duration = Duration::from_millis(1_500);
const QUICK: &[(&str, &str)] = &[
    ("LIMITS__TTL_MAX", "1s"),
    ("LIMITS__TTL_DEFAULT", "1s"),
    ("LIMITS__LOCK_DELAY_MAX", "0s"),
    ("STORE__FORMER_MASTER_MAX", "0s"),
];
/// E(1 s) and 1 s.
const QUARANTINE: Duration = Duration::from_millis(2_450);
/// Connections that a broker may open in a second while it is refused: three for a node, and two
/// attempts.
const OPENED_A_SECOND: usize = 6;
const CUTS: usize = 5;
/// Calls of a verb for which the broker waits to make a full run, while two others have no answer.
const LEFT_WAITING_MAX: usize = 15;

fn calls() -> usize {
    count(1_000, 50)
}

/// A store that is out of use: what it is sent, and for how long.
struct Outage {
    begun: Instant,
    connections: usize,
}

impl Outage {
    async fn begin(site: &mut Refusing) -> Self {
        Self {
            begun: Instant::now(),
            connections: site.sent().await.connections,
        }
    }

    /// Calls of every kind are refused, and the log says so much once.
    async fn refuses(&self, site: &Refusing, held: &[Held], says: &str) {
        site.refuses_all(held, UNAVAILABLE).await;
        assert_eq!(site.logged(says), 1, "{}", site.broker.log());
    }

    /// It was asked for now and then only, and is used again in time.
    async fn ends(self, site: &mut Refusing, what: &str) {
        let took = site.recovers().await;
        let seconds = usize::try_from(self.begun.elapsed().as_secs()).expect("few") + 1;
        let connections = site.sent().await.connections - self.connections;
        site.is_sound().await;
        figures(&format!(
            "redis_errors {what}: connections={connections} in {seconds}s recovered_after={}ms",
            took.as_millis()
        ));
        assert!(took < RECOVERED, "{took:?}");
        assert!(connections <= seconds * OPENED_A_SECOND, "{connections}");
    }
}

/// A former master starts a quarantine: grants resume after it, and not before. `cured` is before the command
/// that cures it: the broker may have written the new era when the command is answered.
async fn resumes_after_quarantine(site: &Refusing, cured: Instant) {
    let call = AcquireCall::new("quarantine", Duration::from_secs(1), Duration::ZERO);
    let mut recovering = None;
    let granted = loop {
        match site.client.acquire_at(0, &call).await {
            Ok(_) => break cured.elapsed(),
            Err(status) if told(&status).1 == Some(ErrorReason::StoreRecovering) => {
                recovering.get_or_insert_with(|| cured.elapsed());
            }
            Err(status) => assert_eq!(told(&status), UNAVAILABLE),
        }
        assert!(cured.elapsed() < 10 * QUARANTINE, "grants resume");
    };
    let recovering = recovering.expect("no grant at once");
    figures(&format!(
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
    let mut site = Refusing::start_with(RedisServer::start().await, QUICK).await;
    let other = RedisServer::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let port = other.addr().port().to_string();
    site.raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let outage = Outage::begin(&mut site).await;
    assert_told(site.acquires(&names("new", calls())).await, UNAVAILABLE);
    outage.refuses(&site, &held, "is lost: it is a ").await;
    // It may load the data of its master for a moment, which is told besides.
    assert!((1..=3).contains(&site.logged("not a master")));
    let cured = Instant::now();
    site.raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    resumes_after_quarantine(&site, cured).await;
    outage.ends(&mut site, "READONLY").await;
}

#[tokio::test]
async fn a_replica_without_a_master_grants_nothing() {
    let mut site = Refusing::start_with(RedisServer::start().await, QUICK).await;
    let held = done(site.acquires(&names("held", calls())).await);
    let nobody = free_port().to_string();
    let raw = &mut site.raw;
    raw.must(&["CONFIG", "SET", "replica-serve-stale-data", "no"])
        .await;
    raw.must(&["REPLICAOF", "127.0.0.1", &nobody]).await;
    until_refused(raw, &["GET", "x"], "MASTERDOWN").await;
    let outage = Outage::begin(&mut site).await;
    outage.refuses(&site, &held, "is lost: it is a ").await;
    let cured = Instant::now();
    site.raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    resumes_after_quarantine(&site, cured).await;
    outage.ends(&mut site, "MASTERDOWN").await;
}

#[tokio::test]
async fn an_era_that_somebody_overwrote_is_a_loss_of_data() {
    let site = &mut Refusing::start_with(RedisServer::start().await, QUICK).await;
    site.raw.must(&["DEL", "lh:era"]).await;
    site.raw.must(&["RPUSH", "lh:era", "x"]).await;
    let locks = names("new", calls());
    let mut internal = 0;
    while !site.was_lost() {
        let answers = site.acquires(&locks).await.into_iter();
        let refusals = answers.map(|answer| told(&answer.expect_err("no era, no grant")));
        internal += refusals.filter(|refusal| *refusal == INTERNAL).count();
    }
    assert_eq!(site.logged("is lost: its era was overwritten"), 1);
    assert_told(site.acquires(&locks).await, UNAVAILABLE);
    // On a busy machine the broker's own check of the server can come before the first call, and a call
    // can be told of the loss although its script has read the key. It is logged once for all scripts.
    let logged = site.logged("of others under a key of the brokers: WRONG");
    assert!(
        logged <= 1 && (logged == 1 || internal == 0),
        "{logged} {internal}"
    );
    let cured = Instant::now();
    site.raw.must(&["DEL", "lh:era"]).await;
    resumes_after_quarantine(site, cured).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_anew_is_waited_for() {
    let redis = RedisServer::start_with(&["--enable-debug-command", "yes"]).await;
    let mut site = Refusing::start_with(redis, &[]).await;
    let held = done(site.acquires(&names("held", calls())).await);
    let raw = &mut site.raw;
    raw.must(&["DEBUG", "POPULATE", "2500"]).await;
    for (setting, value) in [
        ("key-load-delay", "1000"),
        ("loading-process-events-interval-bytes", "1024"),
    ] {
        raw.must(&["CONFIG", "SET", setting, value]).await;
    }
    let mut loader = site.redis.connect().await;
    let outage = Outage::begin(&mut site).await;
    let load = async {
        loader.must(&["DEBUG", "RELOAD"]).await;
        Instant::now()
    };
    let refused = async {
        until_refused(&mut site.raw, &["PING"], "LOADING").await;
        site.refuses_all(&held, UNAVAILABLE).await;
        Instant::now()
    };
    let (loaded, refused) = tokio::join!(load, refused);
    assert!(refused < loaded, "it was loading all the time");
    let lines = site.logged("is loading its data");
    assert!((1..=2).contains(&lines), "{}", site.broker.log());
    outage.ends(&mut site, "LOADING").await;
    assert_eq!(site.logged("may have lost locks"), 0);
    done(site.releases(&held).await);
}

#[tokio::test]
async fn a_password_that_came_or_changed_is_told_to_the_operator() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::on(format!("redis://:first-secret@{}/0", redis.addr()));
    let mut raw = redis.connect().await;
    raw.must(&["CONFIG", "SET", "requirepass", "first-secret"])
        .await;
    raw.must(&["AUTH", "first-secret"]).await;
    let mut site = Refusing::start_on(redis, &options).await;
    site.raw = raw;
    let held = done(site.acquires(&names("held", calls())).await);
    let outage = Outage::begin(&mut site).await;
    let raw = &mut site.raw;
    raw.must(&["CONFIG", "SET", "requirepass", "second-secret"])
        .await;
    cut(&mut site).await;
    outage.refuses(&site, &held, "user: WRONGPASS").await;
    site.raw
        .must(&["CONFIG", "SET", "requirepass", "first-secret"])
        .await;
    outage.ends(&mut site, "WRONGPASS").await;
    done(site.releases(&held).await);
    assert_eq!(site.logged("secret"), 0);
}

#[tokio::test]
async fn a_password_that_the_broker_does_not_know_is_told_to_the_operator() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let outage = Outage::begin(&mut site).await;
    site.raw
        .must(&["CONFIG", "SET", "requirepass", "a-secret"])
        .await;
    done(site.renews(&held).await);
    cut(&mut site).await;
    outage.refuses(&site, &held, "user: NOAUTH").await;
    site.raw.must(&["CONFIG", "SET", "requirepass", ""]).await;
    outage.ends(&mut site, "NOAUTH").await;
    done(site.releases(&held).await);
}

#[tokio::test]
async fn a_server_that_may_not_be_looked_at_is_not_served() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let outage = Outage::begin(&mut site).await;
    site.raw.must(&["ACL", "SETUSER", "default", "-info"]).await;
    let one = &held[..1];
    while site.renews(one).await.iter().all(Result::is_ok) {}
    outage.refuses(&site, &held, "user: NOPERM").await;
    assert_eq!(site.logged("3 probes failed (NOPERM"), 1);
    site.raw.must(&["ACL", "SETUSER", "default", "+info"]).await;
    outage.ends(&mut site, "NOPERM to look").await;
    done(site.releases(&held).await);
}

/// It refuses writes and even PING, but what can be looked at still counts.
#[tokio::test]
async fn a_server_that_cannot_save_is_left_when_it_is_demoted() {
    let mut site = Refusing::start().await;
    let locks = names("held", calls());
    done(site.acquires(&locks).await);
    let other = RedisServer::start().await;
    let raw = &mut site.raw;
    raw.must(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    fs::create_dir(site.redis.snapshot()).expect("nothing is saved yet");
    raw.must(&["BGSAVE"]).await;
    until_refused(raw, &["PING"], "MISCONF").await;
    let port = other.addr().port().to_string();
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let start = Instant::now();
    while !site.was_lost() {
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{}",
            site.broker.log()
        );
        site.looks(&locks[..1]).await;
    }
    assert_eq!(site.logged("is lost: it is a master no more"), 1);
    assert_told(site.looks(&locks).await, UNAVAILABLE);
}

#[tokio::test]
async fn a_cut_connection_is_opened_anew() {
    let redis = RedisServer::start().await;
    let proxy = RedisProxy::start(redis.addr()).await;
    let mut site = Refusing::start_on(redis, &BrokerOptions::on(proxy.url())).await;
    let half = calls() / 2;
    let held = done(site.acquires(&names("held", half)).await);
    for cut in 1..=CUTS {
        let outage = Outage::begin(&mut site).await;
        let before = ["GRANTED", "EXTENDED"].map(|word| (word, proxy.swallowed(word)));
        proxy.swallow(true);
        let lost = async {
            for (word, before) in before {
                let sent = before + half - LEFT_WAITING_MAX;
                proxy.wait_for_swallowed(word, sent).await;
            }
            proxy.cut().await;
            proxy.swallow(false);
        };
        let cut_locks = names(&format!("cut-{cut}"), half);
        let renews = async {
            let calls = tokio::join!(site.acquires(&cut_locks), site.renews(&held));
            assert_told(calls.0, UNAVAILABLE);
            assert_told(calls.1, UNAVAILABLE);
        };
        tokio::join!(lost, renews);
        outage.ends(&mut site, "cut").await;
        assert_eq!(site.logged("is lost"), cut);
        gone(&site, &cut_locks).await;
    }
    done(site.releases(&held).await);
}

#[tokio::test]
async fn what_a_stopped_server_gets_late_does_nothing() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let outage = Outage::begin(&mut site).await;
    site.redis.process().pause().await;
    let new = names("late", calls());
    assert_told(site.acquires(&new).await, UNAVAILABLE);
    assert_told(site.renews(&held).await, UNAVAILABLE);
    assert_told(site.acquires(&new).await, UNAVAILABLE);
    let noticed = until("the stop is noticed", async || {
        (site.logged("no answer to 3 probes") > 0).then_some(())
    });
    noticed.await;
    assert_eq!(site.logged("no answer to 3 probes"), 1);
    site.redis.process().resume();
    outage.ends(&mut site, "stopped").await;
    gone(&site, &new).await;
    done(site.releases(&held).await);
}

#[tokio::test]
async fn what_a_pausing_server_gets_late_does_nothing() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let outage = Outage::begin(&mut site).await;
    site.raw.must(&["CLIENT", "PAUSE", "100000", "WRITE"]).await;
    let new = names("late", calls());
    assert_told(site.acquires(&new).await, UNAVAILABLE);
    assert_told(site.renews(&held).await, UNAVAILABLE);
    assert_eq!(site.logged("does not answer in time"), 1);
    site.raw.must(&["CLIENT", "UNPAUSE"]).await;
    outage.ends(&mut site, "CLIENT PAUSE").await;
    assert!(!site.was_lost(), "it answers what the broker looks at");
    gone(&site, &new).await;
    done(site.releases(&held).await);
}

async fn cut(site: &mut Refusing) {
    for kind in ["normal", "pubsub"] {
        let kill = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
        site.raw.must(&kill).await;
    }
}

/// Nobody holds these locks: at once, or as soon as the broker has taken back what it must.
async fn gone(site: &Refusing, locks: &[String]) {
    let start = Instant::now();
    for locks in locks.chunks(100) {
        let is_free =
            |answer: &Result<_, _>| answer.as_ref().is_err_and(|status| told(status) == IDLE);
        while !site.looks(locks).await.iter().all(is_free) {
            assert!(start.elapsed() < Duration::from_secs(5), "they are held");
        }
    }
}
