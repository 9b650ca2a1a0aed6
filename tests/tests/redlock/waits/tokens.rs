//! Fencing tokens of a RedLock store, which rise whichever quorum grants.

use std::time::Duration;

use leasehold_server::{
    lock::{COMMAND_DEADLINE_MS, ExpectedAttachment, LockKey},
    store::{Acquired, LeaseRejection, Renewal, Store as _, StoreError},
};
use leasehold_tests::{
    broker::process::KEY_PREFIX,
    redlock::{
        broker::{RedlockBroker, TTL_MS, immediate_call},
        deployment::RedlockDeployment,
    },
    scale::{print_figures, scaled_count},
    store_fixture::{lock_key, new_attempt, scripts_with_skew, with_ttl},
};
use rand::seq::SliceRandom as _;
use tokio::time::{Instant, sleep};

const SKEW_KEY: &str = "skew";
/// Time after which a node rejects a command that was sent before, with a margin of 250 ms.
const TOO_LATE: Duration = Duration::from_millis(COMMAND_DEADLINE_MS + 250);
const STORE_EXPIRY: Duration = Duration::from_millis(TTL_MS + TTL_MS / 5 + 250);
/// Time without a record of a lock. It exceeds the maximum distance of two tokens that is caused by
/// clocks within these bounds.
const FORGOTTEN_FOR: Duration = Duration::from_millis(2_700);

fn lock(name: &str) -> LockKey {
    lock_key("default", name)
}

#[tokio::test]
async fn the_next_token_is_above_that_of_a_node_that_is_ahead() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let (mut two_rounds, rounds) = (0, scaled_count(100, 10));
    for round in 0..rounds {
        let lock = lock(&format!("ahead {round}"));
        let first = broker.expect_granted(&immediate_call(&lock)).await;
        broker.expect_released(&first).await;
        // The record of node 0, which is in every quorum, is 1 s ahead of all clocks.
        let ahead = first.fencing_token.get() + 1_000_000;
        let key = format!("{KEY_PREFIX}{}", lock.encoded());
        let mut connection = nodes.servers()[0].connect().await;
        connection
            .must(&["HSET", &key, "f", &ahead.to_string()])
            .await;
        let away = [1 + round % 4, 1 + (round + 1) % 4];
        nodes.pause(away).await;
        let second = broker
            .expect_granted(&with_ttl(immediate_call(&lock), 2_000))
            .await;
        assert!(second.fencing_token.get() > ahead, "{second:?} {ahead}");
        let held = nodes
            .holder_at(0, &lock)
            .await
            .expect("it is in the quorum");
        assert_eq!(held.token, second.fencing_token.get());
        two_rounds += 1;
        nodes.resume(away);
        broker.expect_released(&second).await;
    }
    print_figures(&format!(
        "redlock: {two_rounds} tokens above a node that was a second ahead, each in two rounds"
    ));
}

#[tokio::test]
async fn a_repeat_gets_a_newer_token_when_the_quorum_of_the_older_one_is_gone() {
    let mut nodes = RedlockDeployment::start(5).await;
    let [broker, other] = [nodes.start_broker().await, nodes.start_broker().await];
    let lock = lock("eroded");
    let wanted = with_ttl(immediate_call(&lock), 2_000);
    // The lock is held at nodes 0, 1 and 2 only. Nodes 3 and 4 receive the command too late to
    // execute it.
    nodes.pause([3, 4]).await;
    let first = broker.expect_granted(&wanted).await;
    sleep(TOO_LATE).await;
    nodes.resume([3, 4]);
    nodes.kill(2).await;
    while nodes.holder_at(3, &lock).await.is_some() || nodes.holder_at(4, &lock).await.is_some() {}
    let renewed = broker
        .store
        .renew(&first, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert!(
        matches!(renewed, Err(StoreError::Unavailable(_))),
        "{renewed:?}"
    );
    let second = other.expect_granted(&new_attempt(&wanted)).await;
    assert!(second.fencing_token > first.fencing_token);
    for node in [0, 1, 3, 4] {
        let held = nodes
            .holder_at(node, &lock)
            .await
            .expect("all that are left hold it");
        assert_eq!(held.token, second.fencing_token.get(), "node {node}");
    }
    let renewed = broker
        .store
        .renew(&first, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert_eq!(
        renewed,
        Ok(Err(LeaseRejection::NotFound)),
        "the older token is over"
    );
    let renewed = broker
        .store
        .renew(&second, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    let stranger = broker.store.acquire(&immediate_call(&lock)).await;
    assert!(matches!(stranger, Ok(Acquired::Held(_))), "{stranger:?}");
}

#[tokio::test]
async fn a_token_is_near_the_clocks_of_the_nodes_that_grant_it() {
    const AHEAD_US: u64 = 5_000_000;
    let nodes = RedlockDeployment::start(5).await;
    let broker = RedlockBroker::start(nodes.configs(), scripts_with_skew(SKEW_KEY)).await;
    let broker = broker.expect("the nodes are fit");
    // The broker has not measured this skew yet.
    for node in nodes.servers() {
        node.connect().await.must(&["SET", SKEW_KEY, "5000"]).await;
    }
    let time = nodes.servers()[0].connect().await.must(&["TIME"]).await;
    let [seconds, micros] = [0, 1].map(|part| time.array()[part].text().parse::<u64>());
    let now_us = seconds.expect("a number") * 1_000_000 + micros.expect("a number");
    let token = broker
        .expect_granted(&immediate_call(&lock("near")))
        .await
        .fencing_token
        .get();
    let apart_us = token.abs_diff(now_us + AHEAD_US);
    assert!(apart_us < 1_325_000, "{apart_us}");
}

#[tokio::test]
async fn tokens_rise_over_all_quorums_although_clocks_differ_and_nodes_forget() {
    let nodes = RedlockDeployment::start(5).await;
    let mut brokers = Vec::new();
    for _ in 0..3 {
        let broker = RedlockBroker::start(nodes.configs(), scripts_with_skew(SKEW_KEY)).await;
        brokers.push(broker.expect("the nodes are fit"));
    }
    // Skews within the allowed distance between tokens and clocks for these bounds.
    for (node, skew_ms) in [(0, -900), (1, 0), (2, 30), (3, 500), (4, 900)] {
        let mut connection = nodes.servers()[node].connect().await;
        connection
            .must(&["SET", SKEW_KEY, &i32::to_string(&skew_ms)])
            .await;
    }
    let lock = lock("rising");
    let key = format!("{KEY_PREFIX}{}", lock.encoded());
    let (mut newest, mut grants, mut first_of_a_record) = (0, 0, 0);
    for round in 0..scaled_count(320, 32) {
        let mut order = [0, 1, 2, 3, 4];
        order.shuffle(&mut rand::thread_rng());
        let away = order[..2].to_vec();
        nodes.pause(away.iter().copied()).await;
        let broker = &brokers[round % brokers.len()];
        let wanted = immediate_call(&lock);
        let lease = broker.expect_granted(&wanted).await;
        let token = lease.fencing_token.get();
        assert!(token > newest, "round {round}: {token} after {newest}");
        newest = token;
        if round % 8 == 3 {
            // A repeated call at another broker returns the same grant.
            let other = &brokers[(round + 1) % brokers.len()];
            let repeated = other.expect_granted(&new_attempt(&wanted)).await;
            assert_eq!(repeated.fencing_token.get(), token, "round {round}");
        }
        broker.expect_released(&lease).await;
        nodes.resume(away.iter().copied());
        // Nodes that were paused execute the delayed commands in any order.
        let released = Instant::now();
        while nodes.holder_count(&lock).await > 0 {
            assert!(released.elapsed() < 2 * STORE_EXPIRY, "held after E");
        }
        grants += 1;
        if round % 16 == 15 {
            // The record is deleted at every node, as after five idle minutes.
            for node in nodes.servers() {
                node.connect().await.must(&["DEL", &key]).await;
            }
            sleep(FORGOTTEN_FOR).await;
            first_of_a_record += 1;
        }
    }
    print_figures(&format!(
        "redlock: {grants} tokens rose over random quorums of nodes whose clocks differ by 1.8 s, \
         {first_of_a_record} of them after all nodes had forgotten the lock"
    ));
}
