//! The Redis Cluster of the tests: failovers and a migrating slot, checked by their effects.

use std::{slice::from_ref, time::Duration};

use leasehold_tests::{
    clock::boottime,
    cluster::deployment::{ClusterDeployment, ClusterOptions, SLOTS, hash_tag_for, slot_of},
    redis::{
        connection::{RedisConnection, Reply},
        server::RestartData,
    },
    scale::print_figures,
    until::until,
};
use tokio::time::{sleep, timeout};

const WRITE_EVERY: Duration = Duration::from_millis(10);
const WRITES_END: Duration = Duration::from_secs(20);
const KEYS: usize = 20;
const TTL_MS: i64 = 60_000;
const STEP_S: i64 = 90;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_by_its_replica() {
    let started_at = boottime();
    let mut all = ClusterDeployment::start(ClusterOptions::default()).await;
    let started = boottime() - started_at;
    assert_eq!(all.masters().await, [0, 1, 2]);
    assert!(all.url().starts_with("redis-cluster://127.0.0.1:"));
    assert_eq!((all.count(), all.url().split(',').count()), (6, 3));
    let [mut here, mut there] = [all.connect(0).await, all.connect(1).await];
    for key in ["kept", "a{b}c", "{}x", "}{", "{{a}}", "x{y}{z}"] {
        let slot = here.must(&["CLUSTER", "KEYSLOT", key]).await;
        assert_eq!(slot.integer(), i64::from(slot_of(key)), "{key}");
    }

    let (key, other) = (key_at(0), key_at(SLOTS / 2));
    assert_eq!(all.replicas_of(0).await, [3]);
    here.must(&["SET", &key, "x"]).await;
    let replicas = here.must(&["WAIT", "1", "10000"]).await.integer();
    assert_eq!(replicas, 1);
    let before = all.server(0).identity().await;
    let killed = boottime();
    all.kill(0).await;
    let promoted = async {
        let next = all.wait_for_promotion(0, 0).await;
        (next, boottime() - killed)
    };
    let ((next, after), undisturbed) = tokio::join!(promoted, async {
        there.must(&["SET", &other, "x"]).await;
        boottime() - killed
    });
    assert_eq!(next, 3);
    let identity = all.server(next).identity().await;
    assert_eq!(identity.replid2, before.replid);
    assert_ne!(identity.replid, before.replid);
    let moved = there.expect_error(&["GET", &key]).await;
    assert_eq!(moved, format!("MOVED 0 {}", all.addr(next)));
    let mut raw = all.connect(next).await;
    assert_eq!(raw.must(&["GET", &key]).await.text(), "x");

    let started_at = boottime();
    all.restart(0, RestartData::Deleted).await;
    all.wait_until_ready().await;
    let again = boottime() - started_at;
    let asked_at = boottime();
    all.start_failover(0).await;
    assert_eq!(all.wait_for_promotion(0, next).await, 0);
    let planned = boottime() - asked_at;
    let mut raw = all.connect(0).await;
    assert_eq!(raw.must(&["GET", &key]).await.text(), "x");
    print_figures(&format!(
        "topologies cluster kill -9: started_in={started:?} promoted_after={after:?}, another shard wrote \
         after {undisturbed:?}; restarted_as_replica_in={again:?}; CLUSTER FAILOVER took {planned:?}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_a_replica_stays_down_until_it_is_back() {
    let mut all = ClusterDeployment::start(ClusterOptions::default()).await;
    let (key, other) = (key_at(0), key_at(SLOTS - 1));
    all.connect(0).await.must(&["SET", &key, "x"]).await;
    let mut raw = all.connect(2).await;
    let killed = boottime();
    all.kill(3).await;
    all.kill(0).await;
    all.wait_until_failed(0).await;
    let failed = boottime() - killed;
    raw.must(&["SET", &other, "x"]).await;
    let moved = raw.expect_error(&["GET", &key]).await;
    assert_eq!(moved, format!("MOVED 0 {}", all.addr(0)), "to a dead one");
    assert_eq!(all.cluster_state(2).await, "ok");

    // Without two of three masters, no majority exists.
    all.kill(1).await;
    let killed = boottime();
    let down = until("the last master gives up", async || {
        match raw.command(&["GET", &other]).await {
            Ok(Reply::Error(text)) => Some(text),
            Ok(_) | Err(_) => None,
        }
    })
    .await;
    let alone = boottime() - killed;
    assert!(
        down.starts_with("CLUSTERDOWN The cluster is down"),
        "{down}"
    );
    let started_at = boottime();
    all.restart(0, RestartData::Kept).await;
    assert_eq!(all.wait_for_promotion(SLOTS / 2, 1).await, 4);
    until("it serves again", async || {
        let mut raw = all.connect(0).await;
        let found = raw.command(&["GET", &key]).await.ok()?;
        (found == Reply::Text("x".to_owned())).then_some(())
    })
    .await;
    print_figures(&format!(
        "topologies cluster without a replica: failed_after={failed:?}, {moved}; a second master lost: \
         {alone:?} later {down}; the first started again: serves_after={:?}",
        boottime() - started_at
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrated_slot_keeps_its_keys() {
    let all = ClusterDeployment::start(ClusterOptions::default()).await;
    let slot = slot_of("{here}");
    let from = all.master_of(slot).await;
    let to = (from + 1) % 3;
    let [mut source, mut target] = [all.connect(from).await, all.connect(to).await];
    let ttl = TTL_MS.to_string();
    for key in (0..KEYS).map(key_of) {
        source.must(&["HSET", &key, "field", &key]).await;
        source.must(&["PEXPIRE", &key, &ttl]).await;
    }
    let [first, last, none] = [key_of(0), key_of(KEYS - 1), key_of(KEYS)];
    let moved = |node| format!("MOVED {slot} {}", all.addr(node));
    let ask = format!("ASK {slot} {}", all.addr(to));

    let mut migration = all.start_migration(slot, to).await;
    assert_eq!(
        (migration.source_master(), migration.target_master()),
        (from, to)
    );
    assert_eq!(field(&mut source, &first).await, first);
    assert_eq!(source.expect_error(&["HGET", &none, "field"]).await, ask);
    assert_eq!(
        target.expect_error(&["HGET", &none, "field"]).await,
        moved(from)
    );
    let keys = migration.remaining_keys().await;
    assert_eq!(keys.len(), KEYS);
    migration.move_keys(from_ref(&first)).await;
    assert_eq!(source.expect_error(&["HGET", &first, "field"]).await, ask);
    target.must(&["ASKING"]).await;
    assert_eq!(field(&mut target, &first).await, first);
    let try_again = source.expect_error(&["EXISTS", &first, &last]).await;
    let script = ["EVAL", "return 1", "2", &last, &none];
    let script = source.expect_error(&script).await;
    target.must(&["ASKING"]).await;
    let asked_at = target.expect_error(&["EXISTS", &first, &last]).await;
    for text in [&try_again, &script, &asked_at] {
        assert!(text.starts_with("TRYAGAIN"), "{text}");
    }
    // An existing key is served, and so is a script with only this key.
    let one = ["EVAL", "return redis.call('HLEN', KEYS[1])", "1", &last];
    assert_eq!(source.must(&one).await.integer(), 1);

    let started_at = boottime();
    migration.move_remaining_keys().await;
    migration.finish().await;
    let finished = boottime() - started_at;
    assert_eq!(all.master_of(slot).await, to);
    let gone = source.expect_error(&["HGET", &first, "field"]).await;
    assert_eq!(gone, moved(to));
    for key in (0..KEYS).map(key_of) {
        assert_eq!(field(&mut target, &key).await, key);
        let ttl_left = target.must(&["PTTL", &key]).await.integer();
        assert!((1..=TTL_MS).contains(&ttl_left), "{ttl_left}");
    }
    target
        .must(&["CLUSTER", "DELSLOTS", &slot.to_string()])
        .await;
    let unserved = target.expect_error(&["HGET", &first, "field"]).await;
    assert!(unserved.starts_with("CLUSTERDOWN"), "{unserved}");
    print_figures(&format!(
        "topologies cluster migration: {ask} | {} | {try_again} | after DELSLOTS: {unserved}; the rest moved \
         and everybody told in {finished:?}",
        moved(from)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_master_of_a_cluster_stops_serving() {
    let options = ClusterOptions {
        has_partition_proxies: true,
        has_private_clocks: true,
        ..ClusterOptions::default()
    };
    let node_timeout = options.node_timeout;
    let all = ClusterDeployment::start(options).await;
    let tag = hash_tag_for(0);
    let mut client = all.connect(0).await;
    client.must(&["SET", &format!("{tag}kept"), "x"]).await;
    client.must(&["WAIT", "1", "10000"]).await;
    let parted = boottime();
    all.isolate(0);
    let successor = async {
        let next = all.wait_for_promotion(0, 0).await;
        let mut raw = all.connect(next).await;
        raw.must(&["SET", &format!("{tag}new"), "x"]).await;
        (next, boottime() - parted)
    };
    let (writes, (next, first)) = tokio::join!(write_until_rejected(&mut client, &tag), successor);
    let (taken, last, refusal) = writes;
    let last = last - parted;
    assert!(refusal.starts_with("CLUSTERDOWN"), "{refusal}");
    assert!(last <= 2 * node_timeout, "{last:?}");
    assert!(taken > 0);

    let healed = boottime();
    all.heal();
    all.wait_until_ready().await;
    print_figures(&format!(
        "topologies cluster partition: the isolated master took {taken} writes, the last after {last:?}, \
         then: {refusal}; successor writes_after={first:?}; healed, all in order after {:?}",
        boottime() - healed
    ));
    let mut raw = all.connect(next).await;
    let lost: Vec<_> = (0..taken).map(|number| format!("{tag}{number}")).collect();
    let mut words = vec!["EXISTS"];
    words.extend(lost.iter().map(String::as_str));
    assert_eq!(raw.must(&words).await.integer(), 0, "lost");
    for key in ["kept", "new"] {
        let key = format!("{tag}{key}");
        assert_eq!(raw.must(&["GET", &key]).await.text(), "x");
    }
    assert_eq!(
        client.expect_error(&["GET", &tag]).await,
        format!("MOVED 0 {}", all.addr(next))
    );

    // Isolation from clients only causes no failover.
    all.isolate_from_clients(next);
    let unheard = timeout(2 * node_timeout, raw.command(&["PING"])).await;
    assert!(unheard.is_err(), "{unheard:?}");
    assert_eq!(all.master_of(0).await, next);
    all.heal();
    raw.next_message()
        .await
        .expect("what was sent arrives late");
    all.server(next).clock().step(STEP_S * 1_000);
    until("one clock is ahead", async || {
        let other = seconds(&all, 1).await;
        let ahead = seconds(&all, next).await;
        (ahead >= other + STEP_S).then_some(())
    })
    .await;
}

/// Returns the seconds of a node's clock.
async fn seconds(all: &ClusterDeployment, index: usize) -> i64 {
    let time = all.server(index).connect().await.must(&["TIME"]).await;
    let seconds = time.array()[0].text().parse();
    seconds.expect("seconds")
}

fn key_at(slot: u16) -> String {
    format!("{}key", hash_tag_for(slot))
}

fn key_of(number: usize) -> String {
    format!("{{here}}{number}")
}

async fn field(raw: &mut RedisConnection, key: &str) -> String {
    raw.must(&["HGET", key, "field"]).await.text().to_owned()
}

/// Writes keys until a write is rejected. Returns the number of accepted writes, the time of the
/// last one, and the error.
async fn write_until_rejected(
    client: &mut RedisConnection,
    tag: &str,
) -> (usize, Duration, String) {
    let mut taken = 0;
    let mut last = boottime();
    let refused = async {
        loop {
            match client
                .command(&["SET", &format!("{tag}{taken}"), "x"])
                .await
            {
                Ok(Reply::Error(refusal)) => return refusal,
                Ok(_) => (taken, last) = (taken + 1, boottime()),
                Err(error) => panic!("the connection ended: {error}"),
            }
            sleep(WRITE_EVERY).await;
        }
    };
    let refusal = timeout(WRITES_END, refused).await;
    let refusal = refusal.expect("an isolated master refuses writes in the end");
    (taken, last, refusal)
}
