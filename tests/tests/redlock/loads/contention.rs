//! Mutual exclusion between callers of several brokers on one lock of a RedLock store, while nodes
//! fail.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use leasehold_server::{
    broker::Broker,
    lock::{ExpectedAttachment, LeaseRef, ReleaseScope},
    store::Acquired,
};
use leasehold_tests::{
    clock::boottime,
    load::mutual_exclusion_oracle::{LockUse, Oracle, Share},
    redis::server::RestartData,
    redlock::{
        broker::{NO_QUORUM_ERROR_WITHIN, TTL_MAX_MS, TTL_MS, waiting_call},
        deployment::RedlockDeployment,
    },
    scale::{print_figures, scaled_count, scaled_duration},
    store_fixture::{lease_of, lock_key, new_call, with_ttl},
};
use rand::Rng as _;
use tokio::time::{Instant, sleep};

const BROKERS: usize = 3;
const CALLERS: usize = 8;
const WAIT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_millis(TTL_MS);
const WORK: Duration = Duration::from_millis(2);
const VANISHES_ONE_IN: usize = 40;

#[derive(Debug, Default)]
struct Results {
    grants: usize,
    failed: usize,
    vanished: usize,
    longest: Duration,
}

/// Acquires the lock repeatedly. Sometimes keeps the lock until its validity ends, without a
/// release.
async fn take(broker: &Broker, oracle: &Oracle, grants: &AtomicUsize, until: Instant) -> Results {
    let lock = lock_key("default", "contended");
    let mut seen = Results::default();
    while Instant::now() < until {
        let (sent, start) = (boottime(), Instant::now());
        let acquired = broker
            .acquire(&"caller".into(), waiting_call(&lock, WAIT))
            .await;
        let Ok(lease) = acquired else {
            seen.failed += 1;
            continue;
        };
        seen.longest = seen.longest.max(start.elapsed());
        let grant = lease.locks[0].grant;
        let reference = LeaseRef {
            lock: lock.clone(),
            lease_id: lease.lease_id,
            fencing_token: grant.fencing_token,
        };
        // A caller that has waited renews before it relies on the lease.
        let mut trusted_until = sent + TTL;
        if sent.abs_diff(boottime()) > TTL / 2 {
            let sent = boottime();
            let renewed = broker
                .renew(
                    std::slice::from_ref(&reference),
                    None,
                    ExpectedAttachment::None,
                )
                .await;
            if renewed.is_err() {
                continue;
            }
            trusted_until = sent + TTL;
        }
        seen.grants += 1;
        let entered = boottime();
        let vanishes = grants.fetch_add(1, Ordering::Relaxed) % VANISHES_ONE_IN == 1;
        if vanishes {
            sleep(trusted_until.saturating_sub(entered)).await;
        } else {
            sleep(WORK).await;
        }
        let ended = boottime().min(trusted_until);
        if entered < ended {
            oracle.record(LockUse {
                lock: 0,
                share: Share::ALL,
                token: grant.fencing_token.get().cast_signed(),
                started_at: entered,
                ended_at: ended,
            });
        }
        if vanishes {
            seen.vanished += 1;
        } else {
            // A release that no quorum receives costs an expiry.
            let _ = broker
                .release(&[reference], ReleaseScope::All, ExpectedAttachment::None)
                .await;
        }
    }
    seen
}

/// Repeatedly pauses two nodes, or restarts one node without its data. Returns the numbers of
/// pauses and of restarts.
async fn break_nodes(nodes: &mut RedlockDeployment, until: Instant) -> (usize, usize) {
    let (mut stopped, mut emptied) = (0, 0);
    while Instant::now() < until {
        let node = rand::thread_rng().gen_range(0..5);
        let pause = Duration::from_millis(rand::thread_rng().gen_range(20..900));
        if emptied * 6 < stopped {
            nodes.restart(node, RestartData::Deleted).await;
            emptied += 1;
            // One node at a time, because a quorum of the others keeps the lost data until the node
            // may vote again.
            sleep(leasehold_tests::redlock::broker::QUARANTINE + Duration::from_millis(500)).await;
        } else {
            nodes.pause([node, (node + 1) % 5]).await;
            sleep(pause).await;
            nodes.resume([node, (node + 1) % 5]);
            sleep(pause).await;
            stopped += 1;
        }
    }
    (stopped, emptied)
}

async fn contend(faults: bool, least: usize) -> Results {
    let mut nodes = RedlockDeployment::start(5).await;
    let mut brokers = Vec::new();
    for _ in 0..BROKERS {
        brokers.push(nodes.start_broker().await);
    }
    let (oracle, grants) = (Oracle::new(1), AtomicUsize::new(0));
    let time = scaled_duration(Duration::from_secs(60), Duration::from_secs(7));
    let until = Instant::now() + time;
    let callers = (0..CALLERS).map(|caller| {
        let broker = &brokers[caller % BROKERS].broker;
        take(broker, &oracle, &grants, until)
    });
    let breaking = async {
        match faults {
            true => break_nodes(&mut nodes, until).await,
            false => (0, 0),
        }
    };
    let (all, (stopped, emptied)) = futures::join!(join_all(callers), breaking);
    let mut seen = Results::default();
    for one in all {
        seen.grants += one.grants;
        seen.failed += one.failed;
        seen.vanished += one.vanished;
        seen.longest = seen.longest.max(one.longest);
    }
    let verdict = oracle.verdict();
    print_figures(&format!(
        "redlock: {CALLERS} callers on {BROKERS} brokers for {time:?}, two nodes stopped {stopped} \
         times, one emptied {emptied} times: {seen:?}, {verdict:?}"
    ));
    assert_eq!(
        (verdict.overlaps, verdict.regressions),
        (0, 0),
        "{verdict:?}"
    );
    assert!(seen.grants >= least && seen.vanished > 0, "{seen:?}");
    seen
}

#[tokio::test]
async fn callers_of_three_brokers_never_hold_one_lock_at_once() {
    let seen = contend(false, scaled_count(1_000, 100)).await;
    assert_eq!(
        seen.failed, 0,
        "no caller is refused while all nodes are there"
    );
}

#[tokio::test]
async fn callers_never_hold_one_lock_at_once_while_nodes_stop_and_forget() {
    contend(true, scaled_count(200, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_who_try_for_a_free_lock_at_once_one_gets_it() {
    let nodes = RedlockDeployment::start(5).await;
    let mut brokers = Vec::new();
    for _ in 0..BROKERS {
        brokers.push(nodes.start_broker().await);
    }
    let lock = lock_key("default", "tried");
    let rounds = scaled_count(300, 100);
    let (mut longest, mut undecided) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let tries = (0..CALLERS).map(|caller| {
            (
                &brokers[caller % BROKERS],
                with_ttl(new_call(&lock), TTL_MAX_MS),
            )
        });
        let tries: Vec<_> = tries.collect();
        let answers = tries
            .iter()
            .map(|(broker, call)| broker.acquire_timed(call));
        let answers = join_all(answers).await;
        let mut winners = Vec::new();
        for ((broker, call), (answer, took)) in tries.iter().zip(answers) {
            longest = longest.max(took);
            match answer {
                Ok(Acquired::Granted(grant)) => {
                    winners.push((broker, lease_of(call, grant.fencing_token)))
                }
                Ok(Acquired::Held(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        undecided += usize::from(winners.is_empty());
        assert!(
            winners.len() <= 1,
            "round {round}: {} winners",
            winners.len()
        );
        for (broker, lease) in winners {
            broker.expect_released(&lease).await;
        }
    }
    print_figures(&format!(
        "redlock: {CALLERS} callers of {BROKERS} brokers tried at once {rounds} times, {undecided} times in vain; longest {longest:?}"
    ));
    assert_eq!(undecided, 0);
    assert!(longest < NO_QUORUM_ERROR_WITHIN, "{longest:?}");
}
