//! Hand-off to a waiter on a stream whose broker is stopped, killed or cut off from messages. The
//! lock is granted in queue order, and no two clients rely on it at the same time.

use std::time::Duration;

use leasehold_proto::v1::lock::State;
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::{
        grant_recorder::{GrantRecorder, StoreComparison},
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::{mutual_exclusion_oracle::Oracle, store_expiry::format_spread},
    redis::{
        server::RedisServer,
        subscriptions::{
            close_and_block, subscriber_ids, subscription_count, unblock, wait_for_subscriptions,
        },
    },
    scale::{print_figures, scaled_count},
};
use rand::Rng;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const STOPPED: Duration = Duration::from_secs(8);
const NO_ANSWER: Duration = Duration::from_millis(500);
/// Time after which a hand-off to another broker lapses without a claim.
const CLAIM: Duration = Duration::from_secs(3);

fn name(lock: usize) -> String {
    format!("lock-{lock}")
}

fn waiting_call(lock: usize) -> AcquireCall {
    AcquireCall::new(&name(lock), TTL, WAIT)
}

/// Acquires all of these locks on the stream.
async fn hold(stream: StreamClient, observer: &Client, locks: &[usize]) -> GrantRecorder {
    let mut holder = GrantRecorder::start(stream, observer);
    for lock in locks {
        let call = AcquireCall::new(&name(*lock), 5 * TTL, Duration::ZERO);
        holder.acquire(*lock, &call, 1).await;
    }
    assert!(holder.receive_results(locks.len()).await);
    assert_eq!(holder.granted.len(), locks.len());
    holder
}

/// Queues calls for all of these locks on the stream, each behind `behind` other waiters. Returns
/// the calls.
async fn wait(
    stream: StreamClient,
    observer: &Client,
    locks: &[usize],
    behind: usize,
) -> (GrantRecorder, Vec<AcquireCall>) {
    let mut waiter = GrantRecorder::start(stream, observer);
    let calls: Vec<_> = locks.iter().map(|lock| waiting_call(*lock)).collect();
    for (lock, call) in locks.iter().zip(&calls) {
        waiter.acquire(*lock, call, 1).await;
    }
    for lock in locks {
        observer
            .wait_for_queue_length_at(0, &name(*lock), behind + 1)
            .await;
    }
    (waiter, calls)
}

async fn is_silent(broker: &BrokerProcess) {
    let probe = Client::new("probe", &[broker.addr()], 0);
    let answer = timeout(NO_ANSWER, probe.get_lock_at(0, "nobody-s")).await;
    assert!(answer.is_err(), "a stopped broker answers: {answer:?}");
}

/// Checks and reports a run, given its name and figures, its number of locks and all participants.
async fn assert_run(figure: &str, locks: usize, all: Vec<GrantRecorder>) {
    let [oracle, naive] = [Oracle::new(locks), Oracle::new(locks)];
    let (mut all_slack, mut stale) = (Vec::new(), 0);
    for turns in all {
        turns.record_naive_use(&naive);
        let StoreComparison {
            slack,
            stale: of_it,
        } = turns.check(&oracle).await;
        all_slack.extend(slack);
        stale += of_it;
    }
    let verdict = oracle.verdict();
    let least_slack = all_slack.iter().min().copied().unwrap_or_default();
    print_figures(&format!(
        "hold_hand_off: {figure} locks={locks} visits={} overlaps={} regressions={} stale_grants={stale} \
         overlaps_if_counted_from_receipt={} store_holds_longer_by_at_least={}ms",
        verdict.uses,
        verdict.overlaps,
        verdict.regressions,
        naive.verdict().overlaps,
        least_slack.as_millis()
    ));
    assert!(verdict.uses >= 2 * locks, "every lock was held twice");
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_to_a_stopped_broker_is_trusted_by_one_client_only() {
    let total = scaled_count(80, 8);
    let all: Vec<_> = (0..total).collect();
    let followed: Vec<_> = (0..total).step_by(2).collect();
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let observer = Client::new("observer", &addrs, 0);
    let mut first = hold(StreamClient::open(addrs[0]).await, &observer, &all).await;
    let stream = StreamClient::open_without_keepalive(addrs[1]).await;
    let (mut waiter, _) = wait(stream, &observer, &all, 0).await;
    let stream = StreamClient::open(addrs[0]).await;
    let (mut follower, _) = wait(stream, &observer, &followed, 1).await;
    // Some locks are handed over before the stop, and some at the moment of the stop.
    let (at_stop, later): (Vec<_>, Vec<_>) = all.iter().partition(|lock| lock.is_multiple_of(4));
    let releases = at_stop.len();
    let before = releases / 2;
    for (index, lock) in at_stop.into_iter().enumerate() {
        first.release(lock).await;
        if index < before {
            first.receive_releases(index + 1).await;
        }
    }
    let at_once = rand::thread_rng().gen_range(0..=releases - before);
    first.receive_releases(before + at_once).await;
    let broker = &deployment.brokers[1];
    broker.process().pause().await;
    let resume_at = boottime() + STOPPED;
    for lock in later {
        first.release(lock).await;
    }
    first.receive_releases(total).await;
    is_silent(broker).await;
    tokio::join!(
        waiter.receive_until(resume_at),
        follower.receive_until(resume_at)
    );
    assert_eq!(
        follower.granted.len(),
        followed.len(),
        "the next waiter go first"
    );
    let answers = waiter.result_count();
    broker.process().resume();
    let resumed = boottime();
    // The hand-offs of locks without a further waiter have lapsed and are made again.
    while (1..total)
        .step_by(2)
        .any(|lock| waiter.granted_lock(lock).is_none())
    {
        assert!(waiter.receive_results(waiter.result_count() + 1).await);
    }
    let back_after = boottime() - resumed;
    follower.receive_until(boottime() + NO_ANSWER).await;
    for lock in &followed {
        follower.release(*lock).await;
    }
    follower.receive_releases(followed.len()).await;
    assert!(waiter.receive_results(total).await);
    let claimed_before = |lock: &usize| lock.is_multiple_of(4);
    let expired = &waiter.expired;
    assert!(expired.iter().all(claimed_before), "lost: {expired:?}");
    let figure = format!(
        "stopped=8s told_before_the_stop={answers} expired_untold={} alone_granted_after_resume={}ms",
        expired.len(),
        back_after.as_millis()
    );
    assert_run(&figure, total, vec![first, waiter, follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_broker_dies_before_its_claim_keeps_its_place() {
    let total = scaled_count(80, 8);
    let all: Vec<_> = (0..total).collect();
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let observer = Client::new("observer", &addrs, 0);
    let mut first = hold(StreamClient::open(addrs[0]).await, &observer, &all).await;
    let stream = StreamClient::open(addrs[1]).await;
    let (mut waiter, calls) = wait(stream, &observer, &all, 0).await;
    let stream = StreamClient::open(addrs[0]).await;
    let (mut follower, _) = wait(stream, &observer, &all, 1).await;
    let broker = &mut deployment.brokers[1];
    broker.process().pause().await;
    let stopped = boottime();
    for lock in &all {
        first.release(*lock).await;
    }
    first.receive_releases(total).await;
    for lock in &all {
        let state = observer.get_lock_at(0, &name(*lock)).await;
        let state = state.expect("it is waited for");
        assert_eq!(state.state(), State::Granting, "handed over, unclaimed");
    }
    broker.kill().await;
    assert!(!waiter.receive_results(1).await, "its stream is broken");
    let mut again = GrantRecorder::start(StreamClient::open(addrs[0]).await, &observer);
    for (lock, call) in calls.iter().enumerate() {
        again.acquire(lock, call, 2).await;
    }
    assert!(again.receive_results(total).await);
    let granted_after = boottime() - stopped;
    for lock in &all {
        again.release(*lock).await;
    }
    again.receive_releases(total).await;
    assert!(follower.receive_results(total).await);
    let is_behind = |lock: &usize| {
        let tokens =
            [&again, &follower].map(|turns| turns.granted_lock(*lock).expect("granted").token());
        tokens[0] < tokens[1]
    };
    assert!(all.iter().all(is_behind), "the queue position");
    // After a longer time the hand-offs would have lapsed, and the test would show something else.
    assert!(granted_after < CLAIM, "{granted_after:?}");
    let figure = format!(
        "killed all_granted_after_stop={}ms",
        granted_after.as_millis()
    );
    assert_run(&figure, total, vec![first, again, follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_whose_message_was_lost_is_found_by_touch() {
    let half = scaled_count(40, 4);
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    let mut deployment = Deployment::start_on(redis, &options, 1).await;
    let mut raw = deployment.redis.connect().await;
    wait_for_subscriptions(&mut raw, 1).await;
    let of_first = subscriber_ids(&mut raw).await;
    let second = BrokerProcess::start(&options).await;
    deployment.brokers.push(second);
    wait_for_subscriptions(&mut raw, 2).await;
    let addrs = deployment.addrs();
    let observer = Client::new("observer", &addrs, 0);
    let all: Vec<_> = (0..2 * half).collect();
    let mut first = hold(StreamClient::open(addrs[0]).await, &observer, &all).await;
    let stream = StreamClient::open(addrs[1]).await;
    let (mut waiter, _) = wait(stream, &observer, &all, 0).await;
    for lock in &all[..half] {
        first.release(*lock).await;
    }
    assert!(waiter.receive_results(half).await);
    let mut of_second = subscriber_ids(&mut raw).await;
    of_second.retain(|id| !of_first.contains(id));
    close_and_block(&mut raw, &of_second).await;
    assert_eq!(
        subscription_count(&mut raw).await,
        1,
        "only the first broker listens"
    );
    for lock in &all[half..] {
        first.release(*lock).await;
    }
    first.receive_releases(all.len()).await;
    assert_eq!(
        subscription_count(&mut raw).await,
        1,
        "the messages are lost"
    );
    unblock(&mut raw).await;
    let restored = boottime();
    assert!(waiter.receive_results(all.len()).await);
    let after = |lock: &usize| {
        let released = first.granted_lock(*lock).and_then(|turn| turn.ended_at);
        let entered = waiter.granted_lock(*lock).expect("granted").granted_at;
        entered - released.expect("released")
    };
    let [normal, lost] = [&all[..half], &all[half..]].map(|l| l.iter().map(after).collect());
    let (normal, lost): (Vec<_>, Vec<_>) = (normal, lost);
    let figure = format!(
        "message_lost granted: {} with_message: {}",
        format_spread(lost.clone()),
        format_spread(normal.clone())
    );
    for lock in &all[half..] {
        let entered = waiter.granted_lock(*lock).expect("granted").granted_at;
        assert!(entered > restored, "notified by the message after all");
    }
    assert!(lost.iter().min() > normal.iter().max(), "{figure}");
    assert_run(&figure, all.len(), vec![first, waiter]).await;
}
