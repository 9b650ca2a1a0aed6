//! A real Redis that refuses and lives: callers are told what is so, nothing is lost or repeated, and
//! all is well as soon as it takes commands again.

#![expect(
    clippy::disallowed_methods,
    reason = "a script that keeps Redis busy is a task of the test"
)]

use std::{fs, time::Duration};

use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    client::AcquireCall,
    clock::boottime,
    redis_connection::Reply,
    refusing::{
        FULL, IDLE, INTERNAL, Refusing, Sent, UNAVAILABLE, assert_told, done, names, told,
        until_refused, until_taken,
    },
    scale::{count, figures},
    status::reason,
    stream_client::StreamClient,
    time_left::expiry,
};
use tokio::time::sleep;

const RECOVERED: Duration = Duration::from_secs(1);
/// How late the next in line may hear that a lock has run out.
const HANDED_ON_WITHIN: Duration = Duration::from_secs(2);
/// Longer than a broker looks for a server that does not answer.
const LASTING: Duration = Duration::from_millis(2_500);
/// Scripts that a broker runs by itself in a test's time.
const FEW: usize = 20;
const SCRIPTS: usize = 9;

fn calls() -> usize {
    count(1_000, 50)
}

/// What became of a store that refused for a while and lived on.
async fn lived_on(site: &mut Refusing, what: &str, (sent, most): (Sent, usize)) {
    let took = site.recovers().await;
    site.is_sound().await;
    assert!(!site.was_lost(), "{}", site.broker.log());
    figures(&format!(
        "redis_errors {what}: commands_due={most} commands_sent={} recovered_after={}ms",
        sent.scripts,
        took.as_millis()
    ));
    assert!(took < RECOVERED, "{took:?}");
    assert!(sent.scripts <= most + FEW, "{} of {most}", sent.scripts);
    assert_eq!((sent.loads, sent.connections), (0, 0), "{sent:?}");
}

#[tokio::test]
async fn a_busy_server_is_waited_for() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let mut busy = site.redis.connect().await;
    let mut killer = site.redis.connect().await;
    let before = site.sent().await;
    let raw = &mut site.raw;
    raw.must(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let script = ["EVAL", "while true do end", "0"];
    let running = tokio::spawn(async move { busy.command(&script).await });
    until_refused(&mut killer, &["PING"], "BUSY").await;
    site.refuses_all(&held, UNAVAILABLE).await;
    assert_eq!(site.logged("runs a script of somebody else"), 1);
    killer.must(&["SCRIPT", "KILL"]).await;
    let ended = running.await.expect("no panic").expect("a reply");
    assert!(matches!(ended, Reply::Error(_)), "{ended:?}");
    let sent = site.sent().await.since(before);
    lived_on(&mut site, "BUSY", (sent, calls())).await;
    done(site.releases(&held).await);
}

#[tokio::test]
async fn a_script_that_cannot_be_killed_is_waited_for() {
    const WRITES: &str = "redis.call('SET', KEYS[1], 'x')
        local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
        local begin = now()
        while now() < begin + 2 do end";
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let mut busy = site.redis.connect().await;
    let mut killer = site.redis.connect().await;
    let before = site.sent().await;
    let raw = &mut site.raw;
    raw.must(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let running = tokio::spawn(async move { busy.command(&["EVAL", WRITES, "1", "x"]).await });
    until_refused(&mut killer, &["SCRIPT", "KILL"], "UNKILLABLE").await;
    site.refuses_all(&held, UNAVAILABLE).await;
    let ended = running.await.expect("no panic").expect("a reply");
    assert_eq!(ended, Reply::Text(String::new()));
    let sent = site.sent().await.since(before);
    lived_on(&mut site, "UNKILLABLE", (sent, calls())).await;
    done(site.renews(&held).await);
}

#[tokio::test]
async fn without_memory_leases_go_on_and_nothing_is_added() {
    let mut site = Refusing::start().await;
    let (held, gone) = (names("held", calls()), names("full", calls()));
    let held = done(site.acquires(&held).await);
    let long = AcquireCall::new("handed-on", Duration::from_secs(60), Duration::ZERO);
    let first = site.client.acquire_at(0, &long).await.expect("it is free");
    let waits = |lock, wait| AcquireCall::new(lock, Duration::from_secs(60), wait);
    let next = site
        .client
        .open_at(0, &waits("handed-on", Duration::from_secs(30)));
    let short = waits("held-0", LASTING);
    let leaves = site.client.open_at(0, &short);
    site.client.queued_at(0, "handed-on", 1).await;
    site.client.queued_at(0, "held-0", 1).await;
    let filler = "x".repeat(2 << 20);
    site.raw.must(&["SET", "filler", &filler]).await;
    site.raw.must(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let before = site.sent().await;
    assert_told(site.acquires(&gone).await, FULL);
    let sent = site.sent().await.since(before);
    let limited = site.set_limit("full-limit").await;
    assert_eq!(told(&limited.expect_err("it adds a limit")), FULL);
    assert_eq!(site.logged("has no memory for more locks"), 1);
    let held = done(site.renews(&held).await);
    let mut stream = StreamClient::open(site.broker.addr()).await;
    stream.attach(&held[1].lease, 1).await;
    let attached = stream.told().await;
    assert!(matches!(attached, Response::Attached(_)), "{attached:?}");
    let heartbeat = stream.heartbeat().await;
    assert_eq!(stream.acknowledged(heartbeat).await, 1);
    site.client.release_at(0, &first).await.expect("its holder");
    let second = next.await.expect("no panic").expect("its turn");
    assert!(second.token() > first.token());
    let left = leaves.await.expect("no panic").expect_err("it is held");
    assert_eq!(reason(&left), Some(ErrorReason::WaitTimeout), "{left}");
    drop(stream);
    done(site.releases(&held[2..]).await);
    let traces = site.raw.keys_with_pttl(&Refusing::key("full")).await;
    assert_eq!(traces, [], "what was refused left something behind");
    site.raw.must(&["CONFIG", "SET", "maxmemory", "0"]).await;
    lived_on(&mut site, "OOM", (sent, calls())).await;
}

#[tokio::test]
async fn a_lock_that_expires_while_redis_is_full_is_granted_to_the_next_waiter() {
    let mut site = Refusing::start().await;
    let short = AcquireCall::new("run-out", Duration::from_secs(1), Duration::ZERO);
    let waits = AcquireCall::new("run-out", Duration::from_secs(60), Duration::from_secs(60));
    let first = site.client.acquire_at(0, &short).await.expect("it is free");
    let next = site.client.open_at(0, &waits);
    site.client.queued_at(0, "run-out", 1).await;
    let filler = "x".repeat(2 << 20);
    site.raw.must(&["SET", "filler", &filler]).await;
    site.raw.must(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    assert_told(site.acquires(&names("full", 1)).await, FULL);
    let second = next.await.expect("no panic").expect("its turn");
    let took = boottime() - first.valid_until();
    figures(&format!(
        "redis_errors OOM: the next in line was granted {}ms after the validity of the first",
        took.as_millis()
    ));
    assert!(second.token() > first.token());
    let runs_out_after = expiry(first.ttl()) - first.ttl();
    assert!(took < runs_out_after + HANDED_ON_WITHIN, "{took:?}");
    assert_told(site.acquires(&names("full", 1)).await, FULL);
}

#[tokio::test]
async fn too_few_replicas_are_waited_for() {
    let mut site = Refusing::start().await;
    let locks = names("held", calls());
    let held = done(site.acquires(&locks).await);
    let before = site.sent().await;
    site.raw
        .must(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    assert_told(site.acquires(&names("new", calls())).await, UNAVAILABLE);
    assert_told(site.renews(&held).await, UNAVAILABLE);
    assert_told(site.releases(&held).await, UNAVAILABLE);
    done(site.looks(&locks).await);
    assert_eq!(site.logged("min-replicas-to-write"), 1);
    let sent = site.sent().await.since(before);
    site.raw
        .must(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    lived_on(&mut site, "NOREPLICAS", (sent, 4 * calls())).await;
    done(site.releases(&held).await);
}

/// The snapshot's place is taken by a directory, so that Redis cannot save.
#[tokio::test]
async fn a_server_that_cannot_save_is_waited_for() {
    let mut site = Refusing::start().await;
    let locks = names("held", calls());
    let held = done(site.acquires(&locks).await);
    let never = ["CONFIG", "SET", "save", "3600 1000000"];
    site.raw.must(&never).await;
    fs::create_dir(site.redis.snapshot()).expect("nothing is saved yet");
    site.raw.must(&["BGSAVE"]).await;
    until_refused(&mut site.raw, &["SET", "other", "x"], "MISCONF").await;
    let before = site.sent().await;
    assert_told(site.acquires(&names("new", calls())).await, UNAVAILABLE);
    assert_told(site.renews(&held).await, UNAVAILABLE);
    assert_told(site.releases(&held).await, UNAVAILABLE);
    done(site.looks(&locks).await);
    let sent = site.sent().await.since(before);
    sleep(LASTING).await;
    done(site.looks(&locks).await);
    assert_eq!(site.logged("since it cannot save its data"), 1);
    fs::remove_dir(site.redis.snapshot()).expect("it is empty");
    site.raw.must(&["BGSAVE"]).await;
    until_taken(&mut site.raw, &["SET", "other", "x"]).await;
    lived_on(&mut site, "MISCONF", (sent, 4 * calls())).await;
    done(site.releases(&held).await);
}

#[tokio::test]
async fn a_user_without_rights_is_told_to_the_operator_only() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let before = site.sent().await;
    // Without the second right a script fails at its first write.
    for right in ["evalsha", "hset"] {
        let (take, give) = (format!("-{right}"), format!("+{right}"));
        let user = ["ACL", "SETUSER", "default"];
        site.raw.must(&[&user[..], &[&take]].concat()).await;
        assert_told(site.acquires(&names("new", calls())).await, UNAVAILABLE);
        assert_told(site.renews(&held).await, UNAVAILABLE);
        assert_told(site.releases(&held).await, UNAVAILABLE);
        site.raw.must(&[&user[..], &[&give]].concat()).await;
    }
    assert_eq!(site.logged("refuses this broker's user"), 1);
    let sent = site.sent().await.since(before);
    // Acquires that may have been executed in part are taken back.
    lived_on(&mut site, "NOPERM", (sent, 7 * calls())).await;
    done(site.releases(&held).await);
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_once_for_all_calls() {
    let mut site = Refusing::start().await;
    let held = done(site.acquires(&names("held", calls())).await);
    let before = site.sent().await;
    site.raw.must(&["SCRIPT", "FLUSH"]).await;
    done(site.renews(&held).await);
    let sent = site.sent().await.since(before);
    assert!(
        (SCRIPTS..=3 * SCRIPTS).contains(&sent.loads),
        "{} loads for {} calls",
        sent.loads,
        calls()
    );
    let loads = sent.loads;
    let sent = Sent { loads: 0, ..sent };
    figures(&format!(
        "redis_errors NOSCRIPT: {loads} loads for {} calls",
        calls()
    ));
    lived_on(&mut site, "NOSCRIPT", (sent, 2 * calls())).await;
}

#[tokio::test]
async fn what_others_wrote_under_a_lock_is_found_and_left_alone() {
    let mut site = Refusing::start().await;
    let others = names("other", calls());
    let held = done(site.acquires(&others).await);
    let (string, newer) = (Refusing::key("a-string"), Refusing::key("newer"));
    site.raw.must(&["SET", &string, "x"]).await;
    site.raw.must(&["HSET", &newer, "v", "2"]).await;
    let damaged = Refusing::key("damaged");
    site.raw.must(&["HSET", &damaged, "v", "1", "q", "?"]).await;
    let before = site.sent().await;
    for lock in ["a-string", "newer", "damaged"] {
        let same = vec![lock.to_owned(); calls()];
        assert_told(site.acquires(&same).await, INTERNAL);
        assert_told(site.looks(&same).await, INTERNAL);
        let mut copy = held[0].clone();
        let target = copy.lease.grants[0].target.as_mut();
        lock.clone_into(&mut target.expect("a grant names its lock").name);
        let copies = vec![copy; calls()];
        assert_told(site.releases(&copies).await, INTERNAL);
        // Nothing of the damaged record is needed to find that it has no such holder.
        if lock != "damaged" {
            assert_told(site.renews(&copies).await, INTERNAL);
        }
    }
    let sent = site.sent().await.since(before);
    assert_eq!(site.raw.must(&["GET", &string]).await.text(), "x");
    assert_eq!(site.raw.must(&["HLEN", &newer]).await.integer(), 1);
    assert_eq!(site.raw.must(&["HLEN", &damaged]).await.integer(), 2);
    for key in [&string, &newer, &damaged] {
        assert_eq!(site.logged(key), 1, "{}", site.broker.log());
    }
    assert_eq!(site.logged("by a fault of the broker"), 0);
    lived_on(&mut site, "WRONGTYPE, SCHEMA", (sent, 11 * calls())).await;
    done(site.renews(&held).await);
    site.raw.must(&["DEL", &string]).await;
    let free = site.looks(&["a-string".to_owned()]).await;
    assert_told(free, IDLE);
}
