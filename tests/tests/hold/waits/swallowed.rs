//! A network that drops all data while its connections stay open. The holder behind it stops
//! relying on its lease in time, and the next waiter is granted the lock at the expiry in the
//! store, neither sooner nor much later.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::time::Duration;

use leasehold_proto::v1::{LeaseEndReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        session::{LeaseEnd, SessionClient, SessionLease, safety_margin},
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::mutual_exclusion_oracle::{LockUse, Oracle, Share},
    net::http2_proxy::{Direction, Http2Proxy, PING, ProxyMode},
    scale::{print_figures, scaled_count},
};
use tokio::{
    sync::oneshot::error::TryRecvError,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(1);
/// Expiry in the store for this TTL.
const EXPIRY: Duration = Duration::from_millis(1_450);
const TOLERANCE: Duration = Duration::from_millis(200);
/// Rounding of the store's times, which are whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// Time within which data that was in flight at the failure has arrived.
const TRANSIT_TIME: Duration = Duration::from_millis(300);
/// Time that exceeds any remaining validity. A holder whose heartbeats arrive keeps the lock for
/// longer, although it receives no responses.
const NO_HEARTBEAT_FOR: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stops_in_time_without_traffic_in_both_directions() {
    run_direction(Direction::Both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stops_in_time_without_traffic_to_the_broker() {
    run_direction(Direction::ToBroker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stops_in_time_without_traffic_to_the_client() {
    run_direction(Direction::ToClient).await;
}

/// A holder behind a proxy, and a waiter with a direct connection.
struct Fixture {
    /// Holder, which is dropped first.
    holder: SessionClient,
    waiter: SessionClient,
    observer: Client,
    proxy: Http2Proxy,
    oracle: Oracle,
    _deployment: Deployment,
}

/// Delay of the next grant after the expiry in the store, and time from the end of the former
/// holder's validity until that grant.
struct GrantDelays {
    after_expiry: Duration,
    distrusted_before: Duration,
}

async fn run_direction(way: Direction) {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let proxy = Http2Proxy::start(addr).await;
    let fixture = Fixture {
        holder: SessionClient::without_silence_timeout("holder", proxy.addr()),
        waiter: SessionClient::start("waiter", &[addr], 0),
        observer: Client::new("observer", &[addr], 0),
        proxy,
        oracle: Oracle::new(1),
        _deployment: deployment,
    };
    let rounds = scaled_count(20, 2);
    let (mut latest, mut least_gap) = (Duration::ZERO, Duration::MAX);
    for round in 0..rounds {
        let round = fixture.round(way, &format!("lock-{round}")).await;
        latest = latest.max(round.after_expiry);
        least_gap = least_gap.min(round.distrusted_before);
    }
    let verdict = fixture.oracle.verdict();
    print_figures(&format!(
        "hold_swallowed {way:?}: rounds={rounds} early=0 latest_after_E={}ms \
         distrusted_before_the_next_grant>={}ms visits={} overlaps={} regressions={}",
        latest.as_millis(),
        least_gap.as_millis(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions
    ));
    assert_eq!(verdict.uses, 2 * rounds);
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

impl Fixture {
    async fn round(&self, way: Direction, lock: &str) -> GrantDelays {
        let session_lease = self.hold(lock).await;
        let entered = boottime();
        let in_line = AcquireCall::new(lock, TTL, WAIT);
        let mut turn = self.waiter.start_acquire(&in_line);
        self.observer.wait_for_queue_length_at(0, lock, 1).await;
        // The data is dropped at a random phase of the heartbeats.
        sleep((TTL / 3).mul_f64(rand::random())).await;

        let lost = self.proxy.dropped_frames();
        self.proxy.set_mode(ProxyMode::DropFrames(way));
        let swallowed_at = boottime();
        self.proxy.wait_for_dropped_frames(lost + 1).await;
        sleep((swallowed_at + TRANSIT_TIME).saturating_sub(boottime())).await;
        let mut expiry = self.expiry(lock, &session_lease).await;
        let distrusted = session_lease.wait_until_untrusted().await;
        assert!(
            distrusted <= swallowed_at + TRANSIT_TIME + TTL - safety_margin(TTL),
            "nothing that it heard since could make it trust for longer"
        );
        if way == Direction::ToClient {
            // The lease is renewed although the holder receives no acknowledgements, so the lock
            // stays held.
            sleep(NO_HEARTBEAT_FOR).await;
            assert_eq!(turn.try_recv().map(drop), Err(TryRecvError::Empty));
            let later = self.expiry(lock, &session_lease).await;
            assert!(later.0 > expiry.1 + TTL / 2, "heartbeats arrive");
            self.proxy.close_connections().await;
            sleep(TRANSIT_TIME).await;
            expiry = self.expiry(lock, &session_lease).await;
        }
        let next = timeout(TEST_TIMEOUT, turn).await.expect("granted in time");
        let granted = boottime();
        let next = next.expect("the keeper answers").expect("its turn");
        let (soonest, latest) = expiry;
        assert!(granted + ROUNDING >= soonest, "granted before its expiry");
        assert!(
            granted <= latest + TOLERANCE,
            "granted {:?} after the expiry",
            granted - latest
        );
        self.record(&session_lease, entered, distrusted);
        self.proxy.set_mode(ProxyMode::Forward);
        self.proxy.close_connections().await;
        let known = session_lease.wait_until(|known| known.end.is_some()).await;
        assert_eq!(
            known.end.map(|(_, end)| end),
            Some(LeaseEnd::ValidityEnded),
            "it is not attached again"
        );
        assert!(next.is_trusted(), "the next one holds it");
        assert_eq!(self.waiter.release(&next).await, LeaseEnd::Released);
        self.record(&next, granted, boottime().min(next.state().trusted_until()));
        GrantDelays {
            after_expiry: granted.saturating_sub(soonest),
            distrusted_before: granted - distrusted,
        }
    }

    /// Acquires the lock and waits for the first acknowledged renewal.
    async fn hold(&self, lock: &str) -> SessionLease {
        let call = AcquireCall::new(lock, TTL, Duration::ZERO);
        let session_lease = self.holder.acquire(&call).await.expect("it is free");
        let renewed = session_lease.wait_until(|known| known.acknowledged_at.is_some());
        timeout(TEST_TIMEOUT, renewed).await.expect("it is renewed");
        session_lease
    }

    /// Returns the earliest and the latest time at which the store frees the lock without a
    /// renewal.
    async fn expiry(&self, lock: &str, session_lease: &SessionLease) -> (Duration, Duration) {
        let asked_at = boottime();
        let state = self.observer.get_lock_at(0, lock).await;
        let answered = boottime();
        let holder = state.expect("it is held").holders.remove(0);
        assert_eq!(
            holder.fencing_token,
            session_lease.token(),
            "no other caller holds it"
        );
        let remaining = holder.remaining.expect("it says how long");
        let remaining = Duration::try_from(remaining).expect("not negative");
        assert!(
            remaining <= EXPIRY,
            "the store's expiry is {remaining:?} away"
        );
        (asked_at + remaining, answered + remaining + ROUNDING)
    }

    fn record(&self, session_lease: &SessionLease, entered: Duration, ended: Duration) {
        self.oracle.record(LockUse {
            lock: 0,
            share: Share::ALL,
            token: session_lease.token(),
            started_at: entered,
            ended_at: ended,
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_pings_renew_no_lease() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let proxy = Http2Proxy::start(addr).await;
    let observer = Client::new("observer", &[addr], 0);
    let waiter = SessionClient::start("waiter", &[addr], 0);
    let ttl = 2 * TTL;
    let expiry = Duration::from_millis(2_650);
    let mut stream = StreamClient::open(proxy.addr()).await;
    let sent = boottime();
    let call = AcquireCall::new("a", ttl, Duration::ZERO);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.expect_granted(call).await;
    let granted = boottime();
    let pings = proxy.frames_from_broker(PING);
    let turn = tokio::spawn(async move {
        let in_line = AcquireCall::new("a", ttl, WAIT);
        let next = waiter.acquire(&in_line).await.expect("its turn");
        (boottime(), next.token(), waiter)
    });
    let turn = AbortOnDropHandle::new(turn);
    observer.wait_for_queue_length_at(0, "a", 1).await;
    let next = timeout(TEST_TIMEOUT, turn).await.expect("granted in time");
    let (at, token, _waiter) = next.expect("no panic");
    let pings = proxy.frames_from_broker(PING) - pings;
    assert!(token > lease.grants[0].fencing_token);
    assert!(at + ROUNDING >= sent + expiry, "granted before its expiry");
    assert!(
        at <= granted + expiry + TOLERANCE,
        "granted {:?}",
        at - granted
    );
    // The connection and the stream were open throughout.
    assert!(pings >= 3, "pings were answered: {pings}");
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Expired);
    print_figures(&format!(
        "hold_swallowed pings: answered={pings} granted_on_after_E={}ms",
        (at - sent - expiry).as_millis()
    ));
}
