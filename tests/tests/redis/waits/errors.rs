//! A real Redis that rejects commands but keeps running. Callers receive accurate errors, no
//! command is lost or repeated, and service resumes as soon as Redis accepts commands again.

#![expect(
    clippy::disallowed_methods,
    reason = "a script that keeps Redis busy is a task of the test"
)]

use std::{fs, time::Duration};

use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    client::{stream::StreamClient, unary::AcquireCall},
    clock::boottime,
    load::store_expiry::store_expiry,
    redis::{
        connection::Reply,
        rejecting_fixture::{
            CommandCounts, INTERNAL, LEASE_NOT_FOUND, RejectingRedisFixture, STORE_FULL,
            UNAVAILABLE, assert_all_failed, error_summary, expect_all_ok, numbered_names,
            repeat_until_accepted, repeat_until_rejected,
        },
    },
    scale::{print_figures, scaled_count},
    status::error_reason,
};
use tokio::time::sleep;

const RECOVERED: Duration = Duration::from_secs(1);
/// Maximum delay until the next waiter is notified after an expiry.
const HANDED_ON_WITHIN: Duration = Duration::from_secs(2);
/// Pause that exceeds the time within which a broker detects a server that does not respond.
const LASTING: Duration = Duration::from_millis(2_500);
/// Number of scripts that a broker runs without a call during a test.
const BACKGROUND_SCRIPTS: usize = 20;
const SCRIPTS: usize = 9;

fn calls() -> usize {
    scaled_count(1_000, 50)
}

/// Asserts that the broker kept using the store, sent few commands meanwhile, and recovered in
/// time.
async fn assert_used_store(
    fixture: &mut RejectingRedisFixture,
    what: &str,
    (sent, most): (CommandCounts, usize),
) {
    let took = fixture.wait_for_recovery().await;
    fixture.assert_healthy().await;
    assert!(
        !fixture.has_logged_lost_connection(),
        "{}",
        fixture.broker.log()
    );
    print_figures(&format!(
        "redis_errors {what}: commands_due={most} commands_sent={} recovered_after={}ms",
        sent.scripts,
        took.as_millis()
    ));
    assert!(took < RECOVERED, "{took:?}");
    assert!(
        sent.scripts <= most + BACKGROUND_SCRIPTS,
        "{} of {most}",
        sent.scripts
    );
    assert_eq!((sent.loads, sent.connections), (0, 0), "{sent:?}");
}

#[tokio::test]
async fn a_busy_server_is_waited_for() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let mut busy = fixture.redis.connect().await;
    let mut killer = fixture.redis.connect().await;
    let before = fixture.command_counts().await;
    let raw = &mut fixture.raw;
    raw.must(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let script = ["EVAL", "while true do end", "0"];
    let running = tokio::spawn(async move { busy.command(&script).await });
    repeat_until_rejected(&mut killer, &["PING"], "BUSY").await;
    fixture.expect_all_rejected(&held, UNAVAILABLE).await;
    assert_eq!(
        fixture.count_log_lines("runs a script of another program"),
        1
    );
    killer.must(&["SCRIPT", "KILL"]).await;
    let ended = running.await.expect("no panic").expect("a reply");
    assert!(matches!(ended, Reply::Error(_)), "{ended:?}");
    let sent = fixture.command_counts().await.since(before);
    assert_used_store(&mut fixture, "BUSY", (sent, calls())).await;
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn a_script_that_cannot_be_killed_is_waited_for() {
    const WRITES: &str = "redis.call('SET', KEYS[1], 'x')
        local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
        local begin = now()
        while now() < begin + 2 do end";
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let mut busy = fixture.redis.connect().await;
    let mut killer = fixture.redis.connect().await;
    let before = fixture.command_counts().await;
    let raw = &mut fixture.raw;
    raw.must(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let running = tokio::spawn(async move { busy.command(&["EVAL", WRITES, "1", "x"]).await });
    repeat_until_rejected(&mut killer, &["SCRIPT", "KILL"], "UNKILLABLE").await;
    fixture.expect_all_rejected(&held, UNAVAILABLE).await;
    let ended = running.await.expect("no panic").expect("a reply");
    assert_eq!(ended, Reply::Text(String::new()));
    let sent = fixture.command_counts().await.since(before);
    assert_used_store(&mut fixture, "UNKILLABLE", (sent, calls())).await;
    expect_all_ok(fixture.renew_all(&held).await);
}

#[tokio::test]
async fn without_memory_leases_go_on_and_nothing_is_added() {
    let mut fixture = RejectingRedisFixture::start().await;
    let (held, gone) = (
        numbered_names("held", calls()),
        numbered_names("full", calls()),
    );
    let held = expect_all_ok(fixture.acquire_all(&held).await);
    let long = AcquireCall::new("handed-on", Duration::from_secs(60), Duration::ZERO);
    let first = fixture
        .client
        .acquire_at(0, &long)
        .await
        .expect("it is free");
    let waits = |lock, wait| AcquireCall::new(lock, Duration::from_secs(60), wait);
    let next = fixture
        .client
        .start_acquire_at(0, &waits("handed-on", Duration::from_secs(30)));
    let short = waits("held-0", LASTING);
    let leaves = fixture.client.start_acquire_at(0, &short);
    fixture
        .client
        .wait_for_queue_length_at(0, "handed-on", 1)
        .await;
    fixture
        .client
        .wait_for_queue_length_at(0, "held-0", 1)
        .await;
    let filler = "x".repeat(2 << 20);
    fixture.raw.must(&["SET", "filler", &filler]).await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "maxmemory", "1mb"])
        .await;
    let before = fixture.command_counts().await;
    assert_all_failed(fixture.acquire_all(&gone).await, STORE_FULL);
    let sent = fixture.command_counts().await.since(before);
    let limited = fixture.set_limit("full-limit").await;
    assert_eq!(
        error_summary(&limited.expect_err("it adds a limit")),
        STORE_FULL
    );
    assert_eq!(fixture.count_log_lines("has no memory for more locks"), 1);
    let held = expect_all_ok(fixture.renew_all(&held).await);
    let mut stream = StreamClient::open(fixture.broker.addr()).await;
    stream.attach(&held[1].lease, 1).await;
    let attached = stream.next_event().await;
    assert!(matches!(attached, Response::Attached(_)), "{attached:?}");
    let heartbeat = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(heartbeat).await, 1);
    fixture
        .client
        .release_at(0, &first)
        .await
        .expect("its holder");
    let second = next.await.expect("no panic").expect("its turn");
    assert!(second.token() > first.token());
    let left = leaves.await.expect("no panic").expect_err("it is held");
    assert_eq!(
        error_reason(&left),
        Some(ErrorReason::WaitTimeout),
        "{left}"
    );
    drop(stream);
    expect_all_ok(fixture.release_all(&held[2..]).await);
    let traces = fixture
        .raw
        .keys_with_pttl(&RejectingRedisFixture::record_key("full"))
        .await;
    assert_eq!(traces, [], "what was refused left something behind");
    fixture.raw.must(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_used_store(&mut fixture, "OOM", (sent, calls())).await;
}

#[tokio::test]
async fn a_lock_that_expires_while_redis_is_full_is_granted_to_the_next_waiter() {
    let mut fixture = RejectingRedisFixture::start().await;
    let short = AcquireCall::new("run-out", Duration::from_secs(1), Duration::ZERO);
    let waits = AcquireCall::new("run-out", Duration::from_secs(60), Duration::from_secs(60));
    let first = fixture
        .client
        .acquire_at(0, &short)
        .await
        .expect("it is free");
    let next = fixture.client.start_acquire_at(0, &waits);
    fixture
        .client
        .wait_for_queue_length_at(0, "run-out", 1)
        .await;
    let filler = "x".repeat(2 << 20);
    fixture.raw.must(&["SET", "filler", &filler]).await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "maxmemory", "1mb"])
        .await;
    assert_all_failed(
        fixture.acquire_all(&numbered_names("full", 1)).await,
        STORE_FULL,
    );
    let second = next.await.expect("no panic").expect("its turn");
    let took = boottime() - first.valid_until();
    print_figures(&format!(
        "redis_errors OOM: the next waiter was granted {}ms after the validity of the first",
        took.as_millis()
    ));
    assert!(second.token() > first.token());
    let runs_out_after = store_expiry(first.ttl()) - first.ttl();
    assert!(took < runs_out_after + HANDED_ON_WITHIN, "{took:?}");
    assert_all_failed(
        fixture.acquire_all(&numbered_names("full", 1)).await,
        STORE_FULL,
    );
}

#[tokio::test]
async fn too_few_replicas_are_waited_for() {
    let mut fixture = RejectingRedisFixture::start().await;
    let locks = numbered_names("held", calls());
    let held = expect_all_ok(fixture.acquire_all(&locks).await);
    let before = fixture.command_counts().await;
    fixture
        .raw
        .must(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    assert_all_failed(
        fixture.acquire_all(&numbered_names("new", calls())).await,
        UNAVAILABLE,
    );
    assert_all_failed(fixture.renew_all(&held).await, UNAVAILABLE);
    assert_all_failed(fixture.release_all(&held).await, UNAVAILABLE);
    expect_all_ok(fixture.get_all(&locks).await);
    assert_eq!(fixture.count_log_lines("min-replicas-to-write"), 1);
    let sent = fixture.command_counts().await.since(before);
    fixture
        .raw
        .must(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    assert_used_store(&mut fixture, "NOREPLICAS", (sent, 4 * calls())).await;
    expect_all_ok(fixture.release_all(&held).await);
}

/// Replaces the snapshot by a directory, so that Redis cannot save.
#[tokio::test]
async fn a_server_that_cannot_save_is_waited_for() {
    let mut fixture = RejectingRedisFixture::start().await;
    let locks = numbered_names("held", calls());
    let held = expect_all_ok(fixture.acquire_all(&locks).await);
    let never = ["CONFIG", "SET", "save", "3600 1000000"];
    fixture.raw.must(&never).await;
    fs::create_dir(fixture.redis.snapshot_path()).expect("nothing is saved yet");
    fixture.raw.must(&["BGSAVE"]).await;
    repeat_until_rejected(&mut fixture.raw, &["SET", "other", "x"], "MISCONF").await;
    let before = fixture.command_counts().await;
    assert_all_failed(
        fixture.acquire_all(&numbered_names("new", calls())).await,
        UNAVAILABLE,
    );
    assert_all_failed(fixture.renew_all(&held).await, UNAVAILABLE);
    assert_all_failed(fixture.release_all(&held).await, UNAVAILABLE);
    expect_all_ok(fixture.get_all(&locks).await);
    let sent = fixture.command_counts().await.since(before);
    sleep(LASTING).await;
    expect_all_ok(fixture.get_all(&locks).await);
    assert_eq!(
        fixture.count_log_lines("because it cannot save its data"),
        1
    );
    fs::remove_dir(fixture.redis.snapshot_path()).expect("it is empty");
    fixture.raw.must(&["BGSAVE"]).await;
    repeat_until_accepted(&mut fixture.raw, &["SET", "other", "x"]).await;
    assert_used_store(&mut fixture, "MISCONF", (sent, 4 * calls())).await;
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn a_user_without_permissions_is_reported_in_the_log_only() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let before = fixture.command_counts().await;
    // Without the right to `hset` a script fails at its first write.
    for right in ["evalsha", "hset"] {
        let (take, give) = (format!("-{right}"), format!("+{right}"));
        let user = ["ACL", "SETUSER", "default"];
        fixture.raw.must(&[&user[..], &[&take]].concat()).await;
        assert_all_failed(
            fixture.acquire_all(&numbered_names("new", calls())).await,
            UNAVAILABLE,
        );
        assert_all_failed(fixture.renew_all(&held).await, UNAVAILABLE);
        assert_all_failed(fixture.release_all(&held).await, UNAVAILABLE);
        fixture.raw.must(&[&user[..], &[&give]].concat()).await;
    }
    assert_eq!(fixture.count_log_lines("rejects this broker's user"), 1);
    let sent = fixture.command_counts().await.since(before);
    // Acquires that may have been executed in part are rolled back.
    assert_used_store(&mut fixture, "NOPERM", (sent, 7 * calls())).await;
    expect_all_ok(fixture.release_all(&held).await);
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_once_for_all_calls() {
    let mut fixture = RejectingRedisFixture::start().await;
    let held = expect_all_ok(fixture.acquire_all(&numbered_names("held", calls())).await);
    let before = fixture.command_counts().await;
    fixture.raw.must(&["SCRIPT", "FLUSH"]).await;
    expect_all_ok(fixture.renew_all(&held).await);
    let sent = fixture.command_counts().await.since(before);
    assert!(
        (SCRIPTS..=3 * SCRIPTS).contains(&sent.loads),
        "{} loads for {} calls",
        sent.loads,
        calls()
    );
    let loads = sent.loads;
    let sent = CommandCounts { loads: 0, ..sent };
    print_figures(&format!(
        "redis_errors NOSCRIPT: {loads} loads for {} calls",
        calls()
    ));
    assert_used_store(&mut fixture, "NOSCRIPT", (sent, 2 * calls())).await;
}

#[tokio::test]
async fn scripts_that_are_flushed_again_and_again_are_reported_in_the_log() {
    let fixture = RejectingRedisFixture::start().await;
    let mut other = fixture.redis.connect().await;
    let flushing = tokio::spawn(async move {
        loop {
            other.must(&["SCRIPT", "FLUSH"]).await;
        }
    });
    let lost = "has lost the scripts repeatedly. Find the program that runs SCRIPT FLUSH.";
    let mut rounds = 0..100;
    while fixture.count_log_lines(lost) == 0 && rounds.next().is_some() {
        drop(fixture.acquire_all(&numbered_names("new", calls())).await);
    }
    flushing.abort();
    assert_eq!(fixture.count_log_lines(lost), 1);
    expect_all_ok(fixture.acquire_all(&numbered_names("last", calls())).await);
}

#[tokio::test]
async fn foreign_data_under_a_lock_is_reported_and_left_unchanged() {
    let mut fixture = RejectingRedisFixture::start().await;
    let others = numbered_names("other", calls());
    let held = expect_all_ok(fixture.acquire_all(&others).await);
    let (string, newer) = (
        RejectingRedisFixture::record_key("a-string"),
        RejectingRedisFixture::record_key("newer"),
    );
    fixture.raw.must(&["SET", &string, "x"]).await;
    fixture.raw.must(&["HSET", &newer, "v", "9"]).await;
    let damaged = RejectingRedisFixture::record_key("damaged");
    fixture
        .raw
        .must(&["HSET", &damaged, "v", "1", "q", "?"])
        .await;
    let before = fixture.command_counts().await;
    for lock in ["a-string", "newer", "damaged"] {
        let same = vec![lock.to_owned(); calls()];
        assert_all_failed(fixture.acquire_all(&same).await, INTERNAL);
        assert_all_failed(fixture.get_all(&same).await, INTERNAL);
        let mut copy = held[0].clone();
        let target = copy.lease.grants[0].target.as_mut();
        lock.clone_into(&mut target.expect("a grant names its lock").name);
        let copies = vec![copy; calls()];
        assert_all_failed(fixture.release_all(&copies).await, INTERNAL);
        // The script finds without the damaged field that the record does not have this holder.
        if lock != "damaged" {
            assert_all_failed(fixture.renew_all(&copies).await, INTERNAL);
        }
    }
    let sent = fixture.command_counts().await.since(before);
    assert_eq!(fixture.raw.must(&["GET", &string]).await.text(), "x");
    assert_eq!(fixture.raw.must(&["HLEN", &newer]).await.integer(), 1);
    assert_eq!(fixture.raw.must(&["HLEN", &damaged]).await.integer(), 2);
    for key in [&string, &newer, &damaged] {
        assert_eq!(fixture.count_log_lines(key), 1, "{}", fixture.broker.log());
    }
    assert_eq!(
        fixture.count_log_lines("an acquire ended without a result"),
        0
    );
    assert_used_store(&mut fixture, "WRONGTYPE, SCHEMA", (sent, 11 * calls())).await;
    expect_all_ok(fixture.renew_all(&held).await);
    fixture.raw.must(&["DEL", &string]).await;
    let free = fixture.get_all(&["a-string".to_owned()]).await;
    assert_all_failed(free, LEASE_NOT_FOUND);
}
