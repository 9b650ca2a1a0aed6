//! RedLock stores of five servers of which some are lost, slow or empty.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_server::{
    lock::{AcquireCommand, ExpectedAttachment, LockKey, Mode},
    store::{
        Acquired, Checked, LeaseRejection, Renewal, Store as _, StoreError,
        redis::{connection::NodeError, scripts::Scripts},
    },
};
use leasehold_tests::{
    load::store_expiry::store_expiry,
    redis::server::RestartData,
    redlock::{
        broker::{
            NO_QUORUM_ERROR_WITHIN, QUARANTINE, RedlockBroker, TTL_MS, immediate_call, waiting_call,
        },
        deployment::RedlockDeployment,
    },
    scale::{print_figures, scaled_count},
    status::error_reason,
    store_fixture::{lock_key, new_call, with_mode, with_ttl},
};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// The store's expiry of a lease with the shortest TTL.
const STORE_EXPIRY: Duration = Duration::from_millis(TTL_MS + TTL_MS / 5 + 250);
/// Part of the validity of a lease within which a quorum must answer.
const QUARTER: Duration = Duration::from_millis(TTL_MS / 4);
/// Maximum duration of a call that waits for no timeout.
const AT_ONCE: Duration = Duration::from_millis(200);
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);
/// Number of concurrent acquires of a held lock.
const RIVALS: usize = 8;

fn lock(name: &str) -> LockKey {
    lock_key("default", name)
}

fn is_unavailable(result: &Result<Acquired, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable(_)))
}

/// Repeats a call with new ids until it is granted, and returns the time that this took.
async fn granted_again(broker: &RedlockBroker, within: Duration) -> Duration {
    let start = Instant::now();
    while start.elapsed() < within {
        let again = immediate_call(&lock("again"));
        if let (Ok(Acquired::Granted(grant)), _) = broker.acquire_timed(&again).await {
            let lease = leasehold_tests::store_fixture::lease_of(&again, grant.fencing_token);
            broker.expect_released(&lease).await;
            return start.elapsed();
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("no grant within {within:?}");
}

/// Acquires, renews, checks, inspects and releases `times` locks. Returns the longest duration of
/// an acquire, or of the calls from a renewal to the release.
async fn pairs(broker: &RedlockBroker, times: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0..times {
        let call = immediate_call(&lock(&format!("pair {number}")));
        let start = Instant::now();
        let lease = broker.expect_granted(&call).await;
        longest = longest.max(start.elapsed());
        let start = Instant::now();
        let renewed = broker
            .store
            .renew(&lease, Renewal::undelivered(ExpectedAttachment::None))
            .await;
        assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
        let live = broker.store.check(&lease.lock, lease.fencing_token).await;
        assert!(matches!(live, Ok(Checked::Live { .. })), "{live:?}");
        let state = broker
            .store
            .get(&lease.lock)
            .await
            .expect("a quorum answers");
        let state = state.expect("the lock is known");
        assert_eq!(state.holders[0].lease_id, lease.lease_id);
        broker.expect_released(&lease).await;
        longest = longest.max(start.elapsed());
        let state = broker
            .store
            .get(&lease.lock)
            .await
            .expect("a quorum answers");
        assert_eq!(state.map_or(0, |state| state.holder_count), 0);
    }
    longest
}

#[tokio::test]
async fn two_of_five_nodes_may_be_lost_or_stopped_and_cost_nothing() {
    let mut nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let times = scaled_count(300, 30);
    let all = pairs(&broker, times).await;
    nodes.pause([1, 3]).await;
    let stopped = pairs(&broker, times).await;
    nodes.resume([1, 3]);
    nodes.kill(0).await;
    nodes.kill(4).await;
    granted_again(&broker, RECOVERED_WITHIN).await;
    let killed = pairs(&broker, times).await;
    print_figures(&format!(
        "redlock: longest call of {times} rounds: all five {all:?}, two stopped {stopped:?}, two \
         killed {killed:?}"
    ));
    assert!(stopped < AT_ONCE && killed < AT_ONCE);
}

#[tokio::test]
async fn without_a_quorum_nothing_is_granted_and_callers_know_within_a_second() {
    let mut nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let held = broker
        .expect_granted(&with_ttl(immediate_call(&lock("held")), 2_000))
        .await;
    nodes.pause([0, 2, 4]).await;
    let (mut longest, mut calls) = (Duration::ZERO, Vec::new());
    for number in 0..scaled_count(60, 6) {
        let ttl_ms = if number % 2 == 0 { 1_000 } else { 60_000 };
        let call = with_ttl(immediate_call(&lock(&format!("stopped {number}"))), ttl_ms);
        let (refused, took) = broker.acquire_timed(&call).await;
        assert!(is_unavailable(&refused), "{refused:?}");
        longest = longest.max(took);
        calls.push(call);
    }
    let start = Instant::now();
    let renewed = broker
        .store
        .renew(&held, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert!(
        matches!(renewed, Err(StoreError::Unavailable(_))),
        "{renewed:?}"
    );
    longest = longest.max(start.elapsed());
    nodes.resume([0, 2, 4]);
    let back = granted_again(&broker, RECOVERED_WITHIN).await;
    // Commands in the sockets of the paused nodes were rejected or rolled back.
    sleep(STORE_EXPIRY).await;
    for call in &calls {
        assert_eq!(nodes.holder_count(&call.lock).await, 0, "{}", call.lock);
    }
    for node in [0, 2, 4] {
        nodes.kill(node).await;
    }
    for number in 0..scaled_count(60, 6) {
        let call = immediate_call(&lock(&format!("killed {number}")));
        let (refused, took) = broker.acquire_timed(&call).await;
        assert!(is_unavailable(&refused), "{refused:?}");
        longest = longest.max(took);
    }
    let restarted = Instant::now();
    nodes.restart(2, RestartData::Deleted).await;
    let after_restart = granted_again(&broker, QUARANTINE + RECOVERED_WITHIN).await;
    print_figures(&format!(
        "redlock: without a quorum the longest call took {longest:?}; granted {back:?} after three \
         stopped nodes went on, {after_restart:?} after one of three lost nodes came back empty"
    ));
    assert!(longest < NO_QUORUM_ERROR_WITHIN, "{longest:?}");
    assert!(restarted.elapsed() >= QUARANTINE);
}

#[tokio::test]
async fn a_node_that_restarted_empty_has_no_vote_until_its_quarantine_is_over() {
    let mut nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    // The lock is held at nodes 0, 1 and 2 only.
    nodes.pause([3, 4]).await;
    let asked_at = Instant::now();
    let ttl = Duration::from_secs(2);
    let held = broker
        .expect_granted(&with_ttl(immediate_call(&lock("held")), 2_000))
        .await;
    let restarted = Instant::now();
    nodes.restart(0, RestartData::Deleted).await;
    nodes.resume([3, 4]);
    let mut tried = 0;
    while asked_at.elapsed() < ttl {
        let strangers: Vec<_> = (0..RIVALS).map(|_| immediate_call(&held.lock)).collect();
        let answers = join_all(
            strangers
                .iter()
                .map(|stranger| broker.acquire_timed(stranger)),
        );
        for (answer, _) in answers.await {
            // An attempt that began within the TTL may end after the lease has expired.
            let is_over = asked_at.elapsed() >= store_expiry(ttl);
            let is_granted = matches!(answer, Ok(Acquired::Granted(_)));
            assert!(is_over || !is_granted, "{answer:?}");
            tried += 1;
        }
    }
    let (mut others, mut refused) = (0, 0);
    let first = loop {
        let other = immediate_call(&lock(&format!("other {}", others + refused)));
        let (answer, _) = broker.acquire_timed(&other).await;
        // The command for node 0, which the quorum does not need, may still be in transit.
        sleep(Duration::from_millis(20)).await;
        if nodes.holder_at(0, &other.lock).await.is_some() {
            break restarted.elapsed();
        }
        match answer {
            Ok(Acquired::Granted(_)) => others += 1,
            // On a busy machine two of the other four may answer too late for a quorum.
            Err(StoreError::Recovering { .. } | StoreError::Unavailable(_)) => refused += 1,
            answer => panic!("{answer:?} instead of a grant"),
        }
        assert!(
            restarted.elapsed() < QUARANTINE + RECOVERED_WITHIN,
            "it votes again"
        );
    };
    print_figures(&format!(
        "redlock: {tried} calls refused beside a lease whose third node came back empty; {others} \
         granted without it, and its first vote came after {first:?}",
    ));
    assert!(tried > 0 && others > 0);
    assert!(first >= QUARANTINE, "{first:?}");
}

#[tokio::test]
async fn a_quorum_that_is_slower_than_a_quarter_of_the_validity_is_undone() {
    let nodes = RedlockDeployment::start(5).await;
    let [broker, other] = [nodes.start_broker().await, nodes.start_broker().await];
    let rounds = scaled_count(20, 3);
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let call = immediate_call(&lock(&format!("slow {round}")));
        nodes.pause([0, 1, 2]).await;
        let (refused, took) = broker.acquire_timed(&call).await;
        assert!(is_unavailable(&refused), "{refused:?}");
        assert!(took >= QUARTER && took < QUARTER + AT_ONCE, "{took:?}");
        nodes.resume([0, 1, 2]);
        // The slow nodes still execute the commands, which are younger than `COMMAND_DEADLINE_MS`.
        let start = Instant::now();
        while nodes.holder_count(&call.lock).await > 0 {
            assert!(start.elapsed() < STORE_EXPIRY, "held after E");
        }
        longest = longest.max(start.elapsed());
        let next = AcquireCommand {
            lock: call.lock.clone(),
            ..leasehold_tests::redlock::broker::immediate_call(&call.lock)
        };
        let lease = other.expect_granted(&next).await;
        other.expect_released(&lease).await;
    }
    print_figures(&format!(
        "redlock: {rounds} quorums that were too slow, all undone within {longest:?} after the slow \
         nodes went on"
    ));
}

#[tokio::test]
async fn a_lease_that_was_released_while_nodes_were_away_is_no_lease_when_they_are_back() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let first = broker.expect_granted(&immediate_call(&lock("away"))).await;
    nodes.pause([3, 4]).await;
    broker.expect_released(&first).await;
    let second = broker.expect_granted(&immediate_call(&first.lock)).await;
    nodes.resume([3, 4]);
    let renewed = broker
        .store
        .renew(&first, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert_eq!(renewed, Ok(Err(LeaseRejection::Released)));
    let renewed = broker
        .store
        .renew(&second, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    assert!(second.fencing_token > first.fencing_token);
}

#[tokio::test]
async fn shared_locks_and_semaphores_are_rejected_with_one_sentence() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let semaphore = Mode::Semaphore {
        permits: 1,
        limit: 5,
    };
    for mode in [Mode::Shared, semaphore] {
        let call = with_mode(new_call(&lock("counted")), mode);
        let refused = broker.store.acquire(&call).await;
        let Err(StoreError::Unsupported(reason)) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("exclusive"), "{reason}");
        assert_eq!(nodes.holder_count(&call.lock).await, 0);
    }
    let mut counted = waiting_call(&lock("counted"), Duration::ZERO);
    counted.targets[0].mode = Mode::Shared;
    let refused = broker.broker.acquire(&"caller".into(), counted).await;
    let status = Status::from(refused.expect_err("it is refused"));
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(error_reason(&status), Some(ErrorReason::UnsupportedByStore));
    assert!(
        status.message().contains("exclusive"),
        "{}",
        status.message()
    );
    let refused = broker.store.set_limit(&lock("counted"), Some(5)).await;
    assert!(
        matches!(refused, Err(StoreError::Unsupported(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_start_says_what_is_wrong_with_the_nodes() {
    let mut nodes = RedlockDeployment::start(5).await;
    let start = async |configs| match RedlockBroker::start(configs, Scripts::standard()).await {
        Ok(_) => panic!("the nodes are unfit"),
        Err(error) => error,
    };
    for few in [1, 2, 4] {
        let error = start(nodes.configs()[..few].to_vec()).await.to_string();
        assert!(
            error.contains("odd number") && error.contains("3 or more"),
            "{error}"
        );
    }
    let mut keyless = nodes.configs();
    for config in &mut keyless {
        config.deployment_key = None;
    }
    let error = start(keyless).await.to_string();
    assert!(error.contains("deployment key in a file"), "{error}");
    let twice = [0, 1, 2, 3, 1].map(|node| nodes.servers()[node].addr());
    let error = start(nodes.configs_at(twice)).await.to_string();
    let named = nodes.servers()[1].addr().to_string();
    assert!(
        error.contains("one process") && error.contains(&named),
        "{error}"
    );

    for node in [0, 1] {
        nodes.kill(node).await;
    }
    let broker = nodes.start_broker().await;
    granted_again(&broker, RECOVERED_WITHIN).await;
    nodes.kill(2).await;
    let error = start(nodes.configs()).await;
    assert!(matches!(error, NodeError::Unreachable(_)), "{error}");
    let error = error.to_string();
    for node in [0, 1, 2] {
        let named = nodes.servers()[node].addr().to_string();
        assert!(
            error.contains("Only 2 of 5") && error.contains(&named),
            "{error}"
        );
    }
}
