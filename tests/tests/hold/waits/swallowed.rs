//! A network that loses everything while its connections stay open: the holder behind it stops
//! trusting by itself, and the next in line gets the lock at the store's expiry, neither sooner
//! nor much later.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::time::Duration;

use leasehold_proto::v1::{LeaseEndReason, hold_response::Message as Response};
use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    holder::{End, Holder, Kept, margin},
    proxy::{Mode, PING, Proxy, Way},
    scale::{count, figures},
    stream_client::StreamClient,
    witness::{Share, Visit, Witness},
};
use tokio::{
    sync::oneshot::error::TryRecvError,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(1);
/// The store's expiry for that ttl.
const EXPIRY: Duration = Duration::from_millis(1_450);
const LATE: Duration = Duration::from_millis(200);
/// The store counts whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// What was under way when the network failed has arrived by then.
const ON_THE_WAY: Duration = Duration::from_millis(300);
/// A holder that is renewed but not heard keeps the lock for longer than any lease runs on.
const UNHEARD: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const GIVE_UP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_either_way() {
    swallow(Way::Both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_to_the_broker() {
    swallow(Way::ToBroker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_to_the_client() {
    swallow(Way::ToClient).await;
}

/// A holder behind a proxy and a waiter beside it.
struct Scene {
    /// Ends first.
    holder: Holder,
    waiter: Holder,
    observer: Client,
    proxy: Proxy,
    witness: Witness,
    _deployment: Deployment,
}

/// How much later than the store's expiry the next one was granted, and when the holder had stopped.
struct Round {
    after_expiry: Duration,
    distrusted_before: Duration,
}

async fn swallow(way: Way) {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let proxy = Proxy::start(addr).await;
    let scene = Scene {
        holder: Holder::patient("holder", proxy.addr()),
        waiter: Holder::start("waiter", &[addr], 0),
        observer: Client::new("observer", &[addr], 0),
        proxy,
        witness: Witness::new(1),
        _deployment: deployment,
    };
    let rounds = count(20, 2);
    let (mut latest, mut least_gap) = (Duration::ZERO, Duration::MAX);
    for round in 0..rounds {
        let round = scene.round(way, &format!("lock-{round}")).await;
        latest = latest.max(round.after_expiry);
        least_gap = least_gap.min(round.distrusted_before);
    }
    let verdict = scene.witness.verdict();
    figures(&format!(
        "hold_swallowed {way:?}: rounds={rounds} early=0 latest_after_E={}ms \
         distrusted_before_the_next_grant>={}ms visits={} overlaps={} regressions={}",
        latest.as_millis(),
        least_gap.as_millis(),
        verdict.visits,
        verdict.overlaps,
        verdict.regressions
    ));
    assert_eq!(verdict.visits, 2 * rounds);
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

impl Scene {
    async fn round(&self, way: Way, lock: &str) -> Round {
        let kept = self.hold(lock).await;
        let entered = boottime();
        let in_line = AcquireCall::new(lock, TTL, WAIT);
        let mut turn = self.waiter.open(&in_line);
        self.observer.queued_at(0, lock, 1).await;
        // At any phase of the heartbeats.
        sleep((TTL / 3).mul_f64(rand::random())).await;

        let lost = self.proxy.lost();
        self.proxy.set_mode(Mode::Swallow(way));
        let swallowed_at = boottime();
        self.proxy.wait_for_lost(lost + 1).await;
        sleep((swallowed_at + ON_THE_WAY).saturating_sub(boottime())).await;
        let mut expiry = self.expiry(lock, &kept).await;
        let distrusted = kept.distrusted().await;
        assert!(
            distrusted <= swallowed_at + ON_THE_WAY + TTL - margin(TTL),
            "nothing that it heard since could make it trust for longer"
        );
        if way == Way::ToClient {
            // It is renewed without knowing, and the lock stays held.
            sleep(UNHEARD).await;
            assert_eq!(turn.try_recv().map(drop), Err(TryRecvError::Empty));
            let later = self.expiry(lock, &kept).await;
            assert!(later.0 > expiry.1 + TTL / 2, "heartbeats arrive");
            self.proxy.cut().await;
            sleep(ON_THE_WAY).await;
            expiry = self.expiry(lock, &kept).await;
        }
        let next = timeout(GIVE_UP, turn).await.expect("granted in time");
        let granted = boottime();
        let next = next.expect("the keeper answers").expect("its turn");
        let (soonest, latest) = expiry;
        assert!(granted + ROUNDING >= soonest, "granted before its expiry");
        assert!(
            granted <= latest + LATE,
            "granted {:?} after the expiry",
            granted - latest
        );
        self.record(&kept, entered, distrusted);
        self.proxy.set_mode(Mode::Forward);
        self.proxy.cut().await;
        let known = kept.until(|known| known.ended.is_some()).await;
        assert_eq!(
            known.ended.map(|(_, end)| end),
            Some(End::Lapsed),
            "it is not attached again"
        );
        assert!(next.trusted(), "the next one holds it");
        assert_eq!(self.waiter.release(&next).await, End::Released);
        self.record(&next, granted, boottime().min(next.known().trusted_until()));
        Round {
            after_expiry: granted.saturating_sub(soonest),
            distrusted_before: granted - distrusted,
        }
    }

    /// Takes the lock and hears of a renewal.
    async fn hold(&self, lock: &str) -> Kept {
        let call = AcquireCall::new(lock, TTL, Duration::ZERO);
        let kept = self.holder.acquire(&call).await.expect("it is free");
        let renewed = kept.until(|known| known.acknowledged_at.is_some());
        timeout(GIVE_UP, renewed).await.expect("it is renewed");
        kept
    }

    /// When the store frees the lock unless it is renewed: not before and not after.
    async fn expiry(&self, lock: &str, kept: &Kept) -> (Duration, Duration) {
        let asked = boottime();
        let state = self.observer.get_lock_at(0, lock).await;
        let answered = boottime();
        let holder = state.expect("it is held").holders.remove(0);
        assert_eq!(holder.fencing_token, kept.token(), "nobody else holds it");
        let left = holder.remaining.expect("it says how long");
        let left = Duration::try_from(left).expect("not negative");
        assert!(left <= EXPIRY, "the store's expiry is {left:?} away");
        (asked + left, answered + left + ROUNDING)
    }

    fn record(&self, kept: &Kept, entered: Duration, ended: Duration) {
        self.witness.record(Visit {
            lock: 0,
            share: Share::ALL,
            token: kept.token(),
            entered,
            ended,
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_renew_nothing() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let proxy = Proxy::start(addr).await;
    let observer = Client::new("observer", &[addr], 0);
    let waiter = Holder::start("waiter", &[addr], 0);
    let ttl = 2 * TTL;
    // E(2 s).
    let expiry = Duration::from_millis(2_650);
    let mut stream = StreamClient::open(proxy.addr()).await;
    let sent = boottime();
    let call = AcquireCall::new("a", ttl, Duration::ZERO);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.granted(call).await;
    let granted = boottime();
    let pings = proxy.from_broker(PING);
    let turn = tokio::spawn(async move {
        let in_line = AcquireCall::new("a", ttl, WAIT);
        let next = waiter.acquire(&in_line).await.expect("its turn");
        (boottime(), next.token(), waiter)
    });
    let turn = AbortOnDropHandle::new(turn);
    observer.queued_at(0, "a", 1).await;
    let next = timeout(GIVE_UP, turn).await.expect("granted in time");
    let (at, token, _waiter) = next.expect("no panic");
    let pings = proxy.from_broker(PING) - pings;
    assert!(token > lease.grants[0].fencing_token);
    assert!(at + ROUNDING >= sent + expiry, "granted before its expiry");
    assert!(at <= granted + expiry + LATE, "granted {:?}", at - granted);
    // The connection and the stream have been there all the time.
    assert!(pings >= 3, "pings were answered: {pings}");
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.told().await else {
        panic!("not told");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Expired);
    figures(&format!(
        "hold_swallowed pings: answered={pings} granted_on_after_E={}ms",
        (at - sent - expiry).as_millis()
    ));
}
