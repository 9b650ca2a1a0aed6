//! A store that stops, comes back empty, or forgets its scripts, under lease streams: what it still
//! has lives on, what it has not is never acknowledged, and everything goes on by itself.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker_process::BrokerOptions,
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    holder::{End, Holder, Kept},
    redis_connection::RedisConnection,
    redis_server::RedisServer,
    scale::{duration, figures},
};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

const BROKERS: usize = 2;
const LEASES: usize = 100;
const IN_LINE: usize = 20;
const LINE: &str = "line";
const TTL: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_secs(2);
/// The ttl while scripts are flushed: a renewal may need several tries on a busy machine.
const FLUSHED: Duration = Duration::from_secs(5);
const GIVE_UP: Duration = Duration::from_secs(60);
const NO_ANSWER: Duration = Duration::from_millis(200);
const FLUSH_EVERY: Duration = Duration::from_millis(100);

const SMALL_QUARANTINE: &[(&str, &str)] = &[
    ("LIMITS__TTL_MAX", "2s"),
    ("LIMITS__TTL_DEFAULT", "2s"),
    ("LIMITS__LOCK_DELAY_MAX", "0s"),
    ("STORE__FORMER_MASTER_MAX", "0s"),
];
/// E(2 s) and 1 s.
const QUARANTINE: Duration = Duration::from_millis(3_650);

/// Streams at both brokers with leases, and a line behind one of them.
struct Scene {
    /// End first.
    line: Vec<AbortOnDropHandle<Turn>>,
    holders: Vec<Holder>,
    kept: Vec<Kept>,
    owner: Kept,
    observer: Client,
    deployment: Deployment,
}

/// One in line: its token, and when it was granted.
type Turn = (i64, Duration);

/// How it stands with the leases after the store came back.
#[derive(Debug, Default)]
struct Outcome {
    /// Held by the store, acknowledged, and trusted without a break.
    alive: usize,
    /// Not held by the store, told to be over, and not acknowledged.
    over: usize,
    /// Until the last of them was acknowledged or told.
    settled_after: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_store_that_stops_for_a_moment() {
    let outcome = stop(TTL, Duration::from_millis(500)).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_store_that_stops_for_half_their_time() {
    // In the worst case a sixth of the ttl is left when the store answers again.
    let outcome = stop(2 * TTL, TTL).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ran_out_in_a_stopped_store_are_told_to_be_over() {
    let ttl = duration(TTL, SHORT);
    let outcome = stop(ttl, 3 * ttl).await;
    assert_eq!((outcome.alive, outcome.over), (0, LEASES));
}

async fn stop(ttl: Duration, time: Duration) -> Outcome {
    let scene = Scene::set(ttl, &[]).await;
    let redis = scene.deployment.redis.process();
    let mut raw = scene.deployment.redis.connect().await;
    redis.pause().await;
    let stopped_at = boottime();
    let ping = timeout(NO_ANSWER, raw.command(&["PING"])).await;
    assert!(ping.is_err(), "a stopped Redis answers nothing");
    sleep((stopped_at + time).saturating_sub(boottime())).await;
    redis.resume();
    let outcome = scene.outcome(boottime()).await;
    let (inversions, _) = scene.serve_line(outcome.over > 0).await;
    let served_after = (boottime() - stopped_at - time).as_millis();
    figures(&format!(
        "hold_store_down: ttl={ttl:?} stopped={time:?} alive={} over={} settled_after={}ms \
         in_line={IN_LINE} served_after={served_after}ms inversions={inversions}",
        outcome.alive,
        outcome.over,
        outcome.settled_after.as_millis()
    ));
    assert_eq!(inversions, 0, "grants out of the order of joining");
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_lines_that_a_restarted_store_has_kept_live_on() {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let mut scene = Scene::set_on(redis, SHORT, SMALL_QUARANTINE).await;
    scene.deployment.redis.kill().await;
    let killed_at = boottime();
    scene.deployment.redis.restart().await;
    let outcome = scene.outcome(boottime()).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
    let (inversions, first) = scene.serve_line(false).await;
    let resumed_after = first - killed_at;
    figures(&format!(
        "hold_store_down: restarted with its data alive={} over=0 settled_after={}ms Q={}ms \
         first_grant_after={}ms in_line={IN_LINE} inversions={inversions}",
        outcome.alive,
        outcome.settled_after.as_millis(),
        QUARANTINE.as_millis(),
        resumed_after.as_millis()
    ));
    assert!(resumed_after >= QUARANTINE, "{resumed_after:?}");
    assert_eq!(inversions, 0, "grants out of the order of joining");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_a_restarted_store_has_forgotten_are_told_to_be_over() {
    let mut scene = Scene::set(SHORT, SMALL_QUARANTINE).await;
    scene.deployment.redis.kill().await;
    let killed_at = boottime();
    scene.deployment.redis.restart().await;
    let outcome = scene.outcome(boottime()).await;
    assert_eq!((outcome.alive, outcome.over), (0, LEASES));
    let trusted_until = scene.owner.known().valid_until;
    let (inversions, first) = scene.serve_line(true).await;
    assert!(first > trusted_until, "granted while another trusted it");
    let resumed_after = first - killed_at;
    figures(&format!(
        "hold_store_down: restarted empty alive=0 over={} settled_after={}ms Q={}ms \
         first_grant_after={}ms in_line={IN_LINE} inversions={inversions}",
        outcome.over,
        outcome.settled_after.as_millis(),
        QUARANTINE.as_millis(),
        resumed_after.as_millis()
    ));
    assert!(resumed_after >= QUARANTINE, "{resumed_after:?}");
    assert!(
        resumed_after <= QUARANTINE + Duration::from_secs(5),
        "{resumed_after:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_live_on_while_scripts_are_flushed() {
    let scene = Scene::set(FLUSHED, &[]).await;
    let mut raw = scene.deployment.redis.connect().await;
    let begun = boottime();
    let until = begun + duration(5 * FLUSHED, 2 * FLUSHED);
    let (mut flushes, mut reloads) = (0, 0);
    while boottime() < until {
        raw.must(&["SCRIPT", "FLUSH"]).await;
        flushes += 1;
        sleep(FLUSH_EVERY).await;
        reloads += usize::from(cached_scripts(&mut raw).await > 0);
    }
    assert!(flushes > 20 && reloads > 0, "{flushes} {reloads}");
    let outcome = scene.outcome(boottime()).await;
    let flushing = tokio::spawn(async move {
        loop {
            raw.must(&["SCRIPT", "FLUSH"]).await;
            sleep(FLUSH_EVERY).await;
        }
    });
    let flushing = AbortOnDropHandle::new(flushing);
    let (inversions, _) = scene.serve_line(false).await;
    drop(flushing);
    figures(&format!(
        "hold_store_down: scripts flushed {flushes} times, loaded again within 100 ms {reloads} \
         times, alive={} over={} in_line={IN_LINE} inversions={inversions}",
        outcome.alive, outcome.over
    ));
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
    assert_eq!(inversions, 0, "grants out of the order of joining");
}

async fn cached_scripts(redis: &mut RedisConnection) -> usize {
    let cached = redis.info("memory", "number_of_cached_scripts").await;
    let cached = cached.and_then(|cached| cached.parse().ok());
    cached.expect("INFO memory counts cached scripts")
}

impl Scene {
    async fn set(ttl: Duration, settings: &[(&str, &str)]) -> Self {
        Self::set_on(RedisServer::start().await, ttl, settings).await
    }

    async fn set_on(redis: RedisServer, ttl: Duration, settings: &[(&str, &str)]) -> Self {
        let mut options = BrokerOptions::on(redis.url());
        let setting = |(key, value): &(&str, &str)| (format!("LEASEHOLD__{key}"), (*value).into());
        options.env = settings.iter().map(setting).collect();
        let deployment = Deployment::start_on(redis, &options, BROKERS).await;
        let addrs = deployment.addrs();
        let holders = addrs.iter().map(|addr| Holder::patient("holder", *addr));
        let holders: Vec<_> = holders.collect();
        let takes = (0..LEASES).map(|index| {
            let call = AcquireCall::new(&lock_name(index), ttl, Duration::ZERO);
            let holder = &holders[index % BROKERS];
            async move { holder.acquire(&call).await.expect("it is free") }
        });
        let kept = join_all(takes).await;
        let call = AcquireCall::new(LINE, ttl, Duration::ZERO);
        let owner = holders[0].acquire(&call).await.expect("it is free");
        let observer = Client::new("observer", &addrs, 0);
        let waiters = addrs.iter().map(|addr| Holder::patient("waiter", *addr));
        let waiters: Vec<_> = waiters.map(Arc::new).collect();
        let mut line = Vec::new();
        for place in 0..IN_LINE {
            let waiter = Arc::clone(&waiters[place % BROKERS]);
            let call = AcquireCall::new(LINE, ttl, 2 * GIVE_UP);
            line.push(AbortOnDropHandle::new(tokio::spawn(take_turn(
                waiter, call,
            ))));
            observer.queued_at(0, LINE, place + 1).await;
        }
        let renewed = kept.iter().chain([&owner]).map(|kept| async {
            let known = kept.until(|known| known.acknowledged_at.is_some()).await;
            assert_eq!(known.ended, None);
        });
        let renewed = timeout(GIVE_UP, join_all(renewed)).await;
        renewed.expect("every lease is renewed");
        Self {
            line,
            holders,
            kept,
            owner,
            observer,
            deployment,
        }
    }

    /// Waits until every lease was acknowledged or told to be over after the store came back, and
    /// compares that with what the store has.
    async fn outcome(&self, back_at: Duration) -> Outcome {
        let settled = self.kept.iter().map(|kept| {
            kept.until(|known| {
                let acknowledged = known.acknowledged_at.is_some_and(|at| at > back_at);
                acknowledged || known.ended.is_some()
            })
        });
        let settled = timeout(GIVE_UP, join_all(settled)).await;
        settled.expect("every lease is acknowledged or told to be over");
        let settled_after = boottime().saturating_sub(back_at);
        let mut outcome = Outcome {
            settled_after,
            ..Outcome::default()
        };
        for (index, kept) in self.kept.iter().enumerate() {
            let is_held = self.is_held(&lock_name(index), kept).await;
            let known = kept.known();
            let acknowledged = known.acknowledged_at.is_some_and(|at| at > back_at);
            match known.ended {
                None => {
                    assert!(is_held, "acknowledged, and not held: {known:?}");
                    assert!(kept.trusted(), "{known:?}");
                    outcome.alive += 1;
                }
                Some((_, end)) => {
                    assert!(!is_held && !acknowledged, "over, and held: {known:?}");
                    assert!(matches!(end, End::Told(_)), "{end:?}");
                    outcome.over += 1;
                }
            }
        }
        outcome
    }

    async fn is_held(&self, lock: &str, kept: &Kept) -> bool {
        let give_up = boottime() + GIVE_UP;
        let state = loop {
            // A store that has just come back is looked at again.
            match self.observer.get_lock(lock).await {
                Ok(state) => break state,
                Err(status) => assert!(boottime() < give_up, "GetLock works again: {status}"),
            }
        };
        let holders = state.map_or_else(Vec::new, |state| state.holders);
        holders
            .iter()
            .any(|holder| holder.lease_id == kept.lease.lease_id)
    }

    /// Everybody in line gets a turn; how many out of order, and when the first did.
    async fn serve_line(self, owner_is_over: bool) -> (usize, Duration) {
        if owner_is_over {
            let over = self.owner.until(|known| known.ended.is_some());
            timeout(GIVE_UP, over).await.expect("it is told");
        } else {
            let end = self.holders[0].release(&self.owner).await;
            assert_eq!(end, End::Released);
        }
        let turns = timeout(GIVE_UP, join_all(self.line)).await;
        let turns = turns.expect("everybody in line gets a turn");
        let turns = turns.into_iter().map(|turn| turn.expect("no panic"));
        let (tokens, granted): (Vec<_>, Vec<_>) = turns.unzip();
        assert!(tokens.iter().all(|token| *token > self.owner.token()));
        let inversions = tokens.windows(2).filter(|two| two[0] >= two[1]).count();
        (inversions, granted.into_iter().min().expect("a line"))
    }
}

fn lock_name(index: usize) -> String {
    format!("lock-{index}")
}

async fn take_turn(waiter: Arc<Holder>, call: AcquireCall) -> Turn {
    let kept = waiter.acquire(&call).await.expect("its turn");
    let granted = boottime();
    assert_eq!(waiter.release(&kept).await, End::Released);
    (kept.token(), granted)
}
