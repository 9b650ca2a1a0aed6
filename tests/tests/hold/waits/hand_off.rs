//! A lock is handed to a waiter on a stream while the waiter's broker is stopped, killed, or deaf:
//! somebody gets it in the order of the line, and nobody trusts it beside somebody else.

use std::time::Duration;

use leasehold_proto::v1::lock::State;
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    redis_server::RedisServer,
    scale::{count, figures},
    stream_client::StreamClient,
    subscriptions::{channels, cut, listening, restore, subscribers},
    time_left::spread,
    turns::{Backing, Turns},
    witness::Witness,
};
use rand::Rng;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const STOPPED: Duration = Duration::from_secs(8);
const NO_ANSWER: Duration = Duration::from_millis(500);
/// How long a hand-off to another broker stands without its claim.
const CLAIM: Duration = Duration::from_secs(3);

fn name(lock: usize) -> String {
    format!("lock-{lock}")
}

fn in_line(lock: usize) -> AcquireCall {
    AcquireCall::new(&name(lock), TTL, WAIT)
}

/// A stream that holds all of these locks.
async fn hold(stream: StreamClient, observer: &Client, locks: &[usize]) -> Turns {
    let mut holder = Turns::on(stream, observer);
    for lock in locks {
        let call = AcquireCall::new(&name(*lock), 5 * TTL, Duration::ZERO);
        holder.ask(*lock, &call, 1).await;
    }
    assert!(holder.until_answered(locks.len()).await);
    assert_eq!(holder.turns.len(), locks.len());
    holder
}

/// A stream that waits for all of these locks, behind so many others; and its calls.
async fn wait(
    stream: StreamClient,
    observer: &Client,
    locks: &[usize],
    behind: usize,
) -> (Turns, Vec<AcquireCall>) {
    let mut waiter = Turns::on(stream, observer);
    let calls: Vec<_> = locks.iter().map(|lock| in_line(*lock)).collect();
    for (lock, call) in locks.iter().zip(&calls) {
        waiter.ask(*lock, call, 1).await;
    }
    for lock in locks {
        observer.queued_at(0, &name(*lock), behind + 1).await;
    }
    (waiter, calls)
}

async fn is_silent(broker: &BrokerProcess) {
    let probe = Client::new("probe", &[broker.addr()], 0);
    let answer = timeout(NO_ANSWER, probe.get_lock_at(0, "nobody-s")).await;
    assert!(answer.is_err(), "a stopped broker answers: {answer:?}");
}

/// Judges a run: its name and figures, and all who took part.
async fn judge(figure: &str, locks: usize, all: Vec<Turns>) {
    let [witness, naive] = [Witness::new(locks), Witness::new(locks)];
    let (mut all_slack, mut stale) = (Vec::new(), 0);
    for turns in all {
        turns.judge_naive(&naive);
        let Backing {
            slack,
            stale: of_it,
        } = turns.judge(&witness).await;
        all_slack.extend(slack);
        stale += of_it;
    }
    let verdict = witness.verdict();
    let least = all_slack.iter().min().copied().unwrap_or_default();
    figures(&format!(
        "hold_hand_off: {figure} locks={locks} visits={} overlaps={} regressions={} stale_grants={stale} \
         overlaps_if_counted_from_receipt={} store_holds_longer_by_at_least={}ms",
        verdict.visits,
        verdict.overlaps,
        verdict.regressions,
        naive.verdict().overlaps,
        least.as_millis()
    ));
    assert!(verdict.visits >= 2 * locks, "every lock was held twice");
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_to_a_stopped_broker_is_trusted_by_one_client_only() {
    let total = count(80, 8);
    let all: Vec<_> = (0..total).collect();
    let followed: Vec<_> = (0..total).step_by(2).collect();
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let observer = Client::new("observer", &addrs, 0);
    let mut first = hold(StreamClient::open(addrs[0]).await, &observer, &all).await;
    let stream = StreamClient::open_patient(addrs[1]).await;
    let (mut waiter, _) = wait(stream, &observer, &all, 0).await;
    let stream = StreamClient::open(addrs[0]).await;
    let (mut follower, _) = wait(stream, &observer, &followed, 1).await;
    // Some are handed over before the stop, and some in its moment.
    let (at_stop, later): (Vec<_>, Vec<_>) = all.iter().partition(|lock| lock.is_multiple_of(4));
    let releases = at_stop.len();
    let before = releases / 2;
    for (index, lock) in at_stop.into_iter().enumerate() {
        first.release(lock).await;
        if index < before {
            first.until_released(index + 1).await;
        }
    }
    let at_once = rand::thread_rng().gen_range(0..=releases - before);
    first.until_released(before + at_once).await;
    let broker = &deployment.brokers[1];
    broker.process().pause().await;
    let resume_at = boottime() + STOPPED;
    for lock in later {
        first.release(lock).await;
    }
    first.until_released(total).await;
    is_silent(broker).await;
    tokio::join!(waiter.listen(resume_at), follower.listen(resume_at));
    assert_eq!(
        follower.turns.len(),
        followed.len(),
        "the next in line go first"
    );
    let told = waiter.answers();
    broker.process().resume();
    let resumed = boottime();
    // Those with nobody behind them: their hand-offs have lapsed, and come again.
    while (1..total)
        .step_by(2)
        .any(|lock| waiter.turn(lock).is_none())
    {
        assert!(waiter.until_answered(waiter.answers() + 1).await);
    }
    let back_after = boottime() - resumed;
    follower.listen(boottime() + NO_ANSWER).await;
    for lock in &followed {
        follower.release(*lock).await;
    }
    follower.until_released(followed.len()).await;
    assert!(waiter.until_answered(total).await);
    let claimed_before = |lock: &usize| lock.is_multiple_of(4);
    let expired = &waiter.expired;
    assert!(expired.iter().all(claimed_before), "lost: {expired:?}");
    let figure = format!(
        "stopped=8s told_before_the_stop={told} expired_untold={} alone_granted_after_resume={}ms",
        expired.len(),
        back_after.as_millis()
    );
    judge(&figure, total, vec![first, waiter, follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_broker_dies_before_its_claim_keeps_its_place() {
    let total = count(80, 8);
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
    first.until_released(total).await;
    for lock in &all {
        let state = observer.get_lock_at(0, &name(*lock)).await;
        let state = state.expect("it is waited for");
        assert_eq!(state.state(), State::Granting, "handed over, unclaimed");
    }
    broker.kill().await;
    assert!(!waiter.until_answered(1).await, "its stream is broken");
    let mut again = Turns::on(StreamClient::open(addrs[0]).await, &observer);
    for (lock, call) in calls.iter().enumerate() {
        again.ask(lock, call, 2).await;
    }
    assert!(again.until_answered(total).await);
    let granted_after = boottime() - stopped;
    for lock in &all {
        again.release(*lock).await;
    }
    again.until_released(total).await;
    assert!(follower.until_answered(total).await);
    let is_behind = |lock: &usize| {
        let tokens = [&again, &follower].map(|turns| turns.turn(*lock).expect("granted").token());
        tokens[0] < tokens[1]
    };
    assert!(all.iter().all(is_behind), "the place in line");
    // Else the hand-offs lapsed, and this shows something else.
    assert!(granted_after < CLAIM, "{granted_after:?}");
    let figure = format!(
        "killed all_granted_after_stop={}ms",
        granted_after.as_millis()
    );
    judge(&figure, total, vec![first, again, follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_whose_message_was_lost_is_found_by_touch() {
    let half = count(40, 4);
    let redis = RedisServer::start().await;
    let options = BrokerOptions::on(redis.url());
    let mut deployment = Deployment::start_on(redis, &options, 1).await;
    let mut raw = deployment.redis.connect().await;
    listening(&mut raw, 1).await;
    let of_first = subscribers(&mut raw).await;
    let second = BrokerProcess::start(&options).await;
    deployment.brokers.push(second);
    listening(&mut raw, 2).await;
    let addrs = deployment.addrs();
    let observer = Client::new("observer", &addrs, 0);
    let all: Vec<_> = (0..2 * half).collect();
    let mut first = hold(StreamClient::open(addrs[0]).await, &observer, &all).await;
    let stream = StreamClient::open(addrs[1]).await;
    let (mut waiter, _) = wait(stream, &observer, &all, 0).await;
    for lock in &all[..half] {
        first.release(*lock).await;
    }
    assert!(waiter.until_answered(half).await);
    let mut of_second = subscribers(&mut raw).await;
    of_second.retain(|id| !of_first.contains(id));
    cut(&mut raw, &of_second).await;
    assert_eq!(channels(&mut raw).await, 1, "only the first broker listens");
    for lock in &all[half..] {
        first.release(*lock).await;
    }
    first.until_released(all.len()).await;
    assert_eq!(channels(&mut raw).await, 1, "the messages are lost");
    restore(&mut raw).await;
    let restored = boottime();
    assert!(waiter.until_answered(all.len()).await);
    let after = |lock: &usize| {
        let released = first.turn(*lock).and_then(|turn| turn.ended);
        let entered = waiter.turn(*lock).expect("granted").entered;
        entered - released.expect("released")
    };
    let [normal, lost] = [&all[..half], &all[half..]].map(|l| l.iter().map(after).collect());
    let (normal, lost): (Vec<_>, Vec<_>) = (normal, lost);
    let figure = format!(
        "message_lost granted: {} with_message: {}",
        spread(lost.clone()),
        spread(normal.clone())
    );
    for lock in &all[half..] {
        let entered = waiter.turn(*lock).expect("granted").entered;
        assert!(entered > restored, "told by the message after all");
    }
    assert!(lost.iter().min() > normal.iter().max(), "{figure}");
    judge(&figure, all.len(), vec![first, waiter]).await;
}
