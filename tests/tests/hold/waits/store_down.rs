//! A store that stops, restarts empty, or loses its scripts, under lease streams. Leases that the
//! store has kept stay valid, lost leases are never acknowledged, and service resumes without
//! intervention.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::{
        session::{LeaseEnd, SessionClient, SessionLease},
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    redis::{connection::RedisConnection, server::RedisServer},
    scale::{print_figures, scaled_duration},
};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

const BROKERS: usize = 2;
const LEASES: usize = 100;
const WAITERS: usize = 20;
const QUEUE: &str = "line";
const TTL: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_secs(2);
/// TTL while scripts are flushed. A renewal may need several attempts on a busy machine.
const FLUSHED: Duration = Duration::from_secs(5);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const NO_ANSWER: Duration = Duration::from_millis(200);
const FLUSH_EVERY: Duration = Duration::from_millis(100);

const SMALL_QUARANTINE: &[(&str, &str)] = &[
    ("LIMITS__TTL_MAX", "2s"),
    ("LIMITS__TTL_DEFAULT", "2s"),
    ("LIMITS__LOCK_DELAY_MAX", "0s"),
    ("STORE__FORMER_MASTER_MAX", "0s"),
];
/// E(2 s) + 1 s.
const QUARANTINE: Duration = Duration::from_millis(3_650);

/// Streams at both brokers with leases, and a queue behind one of these leases.
struct Fixture {
    /// Waiters, which are dropped first.
    line: Vec<AbortOnDropHandle<WaiterGrant>>,
    holders: Vec<SessionClient>,
    session_lease: Vec<SessionLease>,
    owner: SessionLease,
    observer: Client,
    deployment: Deployment,
}

/// Token and time of the grant of one waiter.
type WaiterGrant = (i64, Duration);

/// State of the leases after the store came back.
#[derive(Debug, Default)]
struct Outcome {
    /// Number of leases that the store holds, that were acknowledged, and that stayed valid
    /// throughout.
    alive: usize,
    /// Number of leases that the store has lost, whose clients were notified, and that were not
    /// acknowledged.
    over: usize,
    /// Time until the last lease was acknowledged or reported as ended.
    settled_after: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_store_that_stops_for_a_moment() {
    let outcome = stop(TTL, Duration::from_millis(500)).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_store_that_stops_for_half_their_time() {
    // In the worst case a sixth of the TTL is left when the store responds again.
    let outcome = stop(2 * TTL, TTL).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_expired_in_a_stopped_store_are_reported_as_expired() {
    let ttl = scaled_duration(TTL, SHORT);
    let outcome = stop(ttl, 3 * ttl).await;
    assert_eq!((outcome.alive, outcome.over), (0, LEASES));
}

async fn stop(ttl: Duration, time: Duration) -> Outcome {
    let fixture = Fixture::set(ttl, &[]).await;
    let redis = fixture.deployment.redis.process();
    let mut raw = fixture.deployment.redis.connect().await;
    redis.pause().await;
    let stopped_at = boottime();
    let ping = timeout(NO_ANSWER, raw.command(&["PING"])).await;
    assert!(ping.is_err(), "a stopped Redis answers nothing");
    sleep((stopped_at + time).saturating_sub(boottime())).await;
    redis.resume();
    let outcome = fixture.outcome(boottime()).await;
    let (inversions, _) = fixture.serve_line(outcome.over > 0).await;
    let served_after = (boottime() - stopped_at - time).as_millis();
    print_figures(&format!(
        "hold_store_down: ttl={ttl:?} stopped={time:?} alive={} over={} settled_after={}ms \
         in_line={WAITERS} served_after={served_after}ms inversions={inversions}",
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
    let mut fixture = Fixture::set_on(redis, SHORT, SMALL_QUARANTINE).await;
    fixture.deployment.redis.kill().await;
    let killed_at = boottime();
    fixture.deployment.redis.restart().await;
    let outcome = fixture.outcome(boottime()).await;
    assert_eq!((outcome.alive, outcome.over), (LEASES, 0));
    let (inversions, first) = fixture.serve_line(false).await;
    let resumed_after = first - killed_at;
    print_figures(&format!(
        "hold_store_down: restarted with its data alive={} over=0 settled_after={}ms Q={}ms \
         first_grant_after={}ms in_line={WAITERS} inversions={inversions}",
        outcome.alive,
        outcome.settled_after.as_millis(),
        QUARANTINE.as_millis(),
        resumed_after.as_millis()
    ));
    assert!(resumed_after >= QUARANTINE, "{resumed_after:?}");
    assert_eq!(inversions, 0, "grants out of the order of joining");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_a_restarted_store_has_lost_are_reported_as_lost() {
    let mut fixture = Fixture::set(SHORT, SMALL_QUARANTINE).await;
    fixture.deployment.redis.kill().await;
    let killed_at = boottime();
    fixture.deployment.redis.restart().await;
    let outcome = fixture.outcome(boottime()).await;
    assert_eq!((outcome.alive, outcome.over), (0, LEASES));
    let trusted_until = fixture.owner.state().valid_until;
    let (inversions, first) = fixture.serve_line(true).await;
    assert!(first > trusted_until, "granted while another trusted it");
    let resumed_after = first - killed_at;
    print_figures(&format!(
        "hold_store_down: restarted empty alive=0 over={} settled_after={}ms Q={}ms \
         first_grant_after={}ms in_line={WAITERS} inversions={inversions}",
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
    let fixture = Fixture::set(FLUSHED, &[]).await;
    let mut raw = fixture.deployment.redis.connect().await;
    let started_at = boottime();
    let until = started_at + scaled_duration(5 * FLUSHED, 2 * FLUSHED);
    let (mut flushes, mut reloads) = (0, 0);
    while boottime() < until {
        raw.must(&["SCRIPT", "FLUSH"]).await;
        flushes += 1;
        sleep(FLUSH_EVERY).await;
        reloads += usize::from(cached_scripts(&mut raw).await > 0);
    }
    assert!(flushes > 20 && reloads > 0, "{flushes} {reloads}");
    let outcome = fixture.outcome(boottime()).await;
    let flushing = tokio::spawn(async move {
        loop {
            raw.must(&["SCRIPT", "FLUSH"]).await;
            sleep(FLUSH_EVERY).await;
        }
    });
    let flushing = AbortOnDropHandle::new(flushing);
    let (inversions, _) = fixture.serve_line(false).await;
    drop(flushing);
    print_figures(&format!(
        "hold_store_down: scripts flushed {flushes} times, loaded again within 100 ms {reloads} \
         times, alive={} over={} in_line={WAITERS} inversions={inversions}",
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

impl Fixture {
    async fn set(ttl: Duration, settings: &[(&str, &str)]) -> Self {
        Self::set_on(RedisServer::start().await, ttl, settings).await
    }

    async fn set_on(redis: RedisServer, ttl: Duration, settings: &[(&str, &str)]) -> Self {
        let mut options = BrokerOptions::for_store(redis.url());
        let setting = |(key, value): &(&str, &str)| (format!("LEASEHOLD__{key}"), (*value).into());
        options.env = settings.iter().map(setting).collect();
        let deployment = Deployment::start_on(redis, &options, BROKERS).await;
        let addrs = deployment.addrs();
        let holders = addrs
            .iter()
            .map(|addr| SessionClient::without_silence_timeout("holder", *addr));
        let holders: Vec<_> = holders.collect();
        let takes = (0..LEASES).map(|index| {
            let call = AcquireCall::new(&lock_name(index), ttl, Duration::ZERO);
            let holder = &holders[index % BROKERS];
            async move { holder.acquire(&call).await.expect("it is free") }
        });
        let session_lease = join_all(takes).await;
        let call = AcquireCall::new(QUEUE, ttl, Duration::ZERO);
        let owner = holders[0].acquire(&call).await.expect("it is free");
        let observer = Client::new("observer", &addrs, 0);
        let waiters = addrs
            .iter()
            .map(|addr| SessionClient::without_silence_timeout("waiter", *addr));
        let waiters: Vec<_> = waiters.map(Arc::new).collect();
        let mut line = Vec::new();
        for place in 0..WAITERS {
            let waiter = Arc::clone(&waiters[place % BROKERS]);
            let call = AcquireCall::new(QUEUE, ttl, 2 * TEST_TIMEOUT);
            line.push(AbortOnDropHandle::new(tokio::spawn(take_turn(
                waiter, call,
            ))));
            observer.wait_for_queue_length_at(0, QUEUE, place + 1).await;
        }
        let renewed = session_lease
            .iter()
            .chain([&owner])
            .map(|session_lease| async {
                let known = session_lease
                    .wait_until(|known| known.acknowledged_at.is_some())
                    .await;
                assert_eq!(known.end, None);
            });
        let renewed = timeout(TEST_TIMEOUT, join_all(renewed)).await;
        renewed.expect("every lease is renewed");
        Self {
            line,
            holders,
            session_lease,
            owner,
            observer,
            deployment,
        }
    }

    /// Waits until every lease was acknowledged or reported as ended after the store came back, and
    /// compares the result with the state of the store.
    async fn outcome(&self, back_at: Duration) -> Outcome {
        let settled = self.session_lease.iter().map(|session_lease| {
            session_lease.wait_until(|known| {
                let acknowledged = known.acknowledged_at.is_some_and(|at| at > back_at);
                acknowledged || known.end.is_some()
            })
        });
        let settled = timeout(TEST_TIMEOUT, join_all(settled)).await;
        settled.expect("every lease is acknowledged or reported as ended");
        let settled_after = boottime().saturating_sub(back_at);
        let mut outcome = Outcome {
            settled_after,
            ..Outcome::default()
        };
        for (index, session_lease) in self.session_lease.iter().enumerate() {
            let is_held = self.is_held(&lock_name(index), session_lease).await;
            let known = session_lease.state();
            let acknowledged = known.acknowledged_at.is_some_and(|at| at > back_at);
            match known.end {
                None => {
                    assert!(is_held, "acknowledged, and not held: {known:?}");
                    assert!(session_lease.is_trusted(), "{known:?}");
                    outcome.alive += 1;
                }
                Some((_, end)) => {
                    assert!(!is_held && !acknowledged, "over, and held: {known:?}");
                    assert!(matches!(end, LeaseEnd::Reported(_)), "{end:?}");
                    outcome.over += 1;
                }
            }
        }
        outcome
    }

    async fn is_held(&self, lock: &str, session_lease: &SessionLease) -> bool {
        let give_up = boottime() + TEST_TIMEOUT;
        let state = loop {
            // The read is repeated, because the store has just come back.
            match self.observer.get_lock(lock).await {
                Ok(state) => break state,
                Err(status) => assert!(boottime() < give_up, "GetLock works again: {status}"),
            }
        };
        let holders = state.map_or_else(Vec::new, |state| state.holders);
        holders
            .iter()
            .any(|holder| holder.lease_id == session_lease.lease.lease_id)
    }

    /// Waits until every waiter has been granted the lock. Returns the number of grants out of
    /// order, and the time of the first grant.
    async fn serve_line(self, owner_is_over: bool) -> (usize, Duration) {
        if owner_is_over {
            let over = self.owner.wait_until(|known| known.end.is_some());
            timeout(TEST_TIMEOUT, over).await.expect("notified");
        } else {
            let end = self.holders[0].release(&self.owner).await;
            assert_eq!(end, LeaseEnd::Released);
        }
        let turns = timeout(TEST_TIMEOUT, join_all(self.line)).await;
        let turns = turns.expect("every waiter gets a turn");
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

async fn take_turn(waiter: Arc<SessionClient>, call: AcquireCall) -> WaiterGrant {
    let session_lease = waiter.acquire(&call).await.expect("its turn");
    let granted = boottime();
    assert_eq!(waiter.release(&session_lease).await, LeaseEnd::Released);
    (session_lease.token(), granted)
}
