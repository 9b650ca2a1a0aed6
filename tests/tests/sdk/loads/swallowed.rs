//! A network that drops packets while connections stay open. A guard of the Rust client reports its
//! loss by its own clock, before another client has the lock.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client as Sdk, Error, Guard, LostReason, ReleaseError};
use leasehold_proto::v1::hold_response::Message as Response;
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::{
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
        store_expiry::{ExpiryReads, format_spread, watch_expiry},
    },
    net::http2_proxy::{DATA, Direction, Http2Proxy, ProxyMode},
    scale::{print_figures, scaled_count},
    sdk::validity_log::ValidityLog,
};
use rand::Rng;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

const TTL: Duration = Duration::from_secs(2);
/// Safety margin by which the validity of a lease is shorter than the TTL.
const MARGIN: Duration = Duration::from_millis(500);
/// Maximum delay of a loss report. The client polls its clock, because no timer runs during a
/// suspend.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time within which messages in transit arrive after the network has failed.
const TRANSIT_TIME: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_secs(60);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const DIRECTIONS: [Direction; 3] = [Direction::Both, Direction::ToBroker, Direction::ToClient];
/// Number of concurrent clients.
const ROUND: usize = 10;

/// TTL for late acknowledgements. Their delay exceeds the time from the end of the validity to the
/// store's expiry. It is less than the 4 s without a message after which the client closes the
/// connection.
const LONG_TTL: Duration = Duration::from_millis(4_500);
const DELAY: Duration = Duration::from_millis(2_100);

type NextGrant = AbortOnDropHandle<(Result<Guard, Error>, Duration)>;

/// A broker, and clients whose network does not fail.
struct Fixture {
    other: Sdk,
    observer: Client,
    oracle: Oracle,
    deployment: Deployment,
}

/// A lock that was lost because of the network.
#[derive(Debug)]
struct Loss {
    way: Direction,
    /// Time from which packets were dropped.
    swallowed: Duration,
    /// Time at which the guard reported the loss.
    lost: Duration,
    next: GrantAfterLoss,
}

/// Grant of the lost lock to the next waiter.
#[derive(Debug)]
struct GrantAfterLoss {
    granted: Duration,
    /// Reads of the previous lease until the grant.
    looks: ExpiryReads,
    guard: Guard,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_reported_before_the_next_grant() {
    let total = scaled_count(100, 10);
    let fixture = Fixture::start(total).await;
    let mut losses = Vec::new();
    while losses.len() < total {
        let from = losses.len();
        let round = (from..total.min(from + ROUND)).map(|index| fixture.lose(index));
        losses.extend(join_all(round).await);
    }
    for way in DIRECTIONS {
        let losses = losses.iter().filter(|loss| loss.way == way);
        let losses: Vec<_> = losses.collect();
        let distances = losses.iter().map(|l| l.next.granted.checked_sub(l.lost));
        let distances: Option<Vec<_>> = distances.collect();
        let distances = distances.expect("granted before the loss was reported");
        let trusted = losses.iter().map(|l| l.lost.saturating_sub(l.swallowed));
        print_figures(&format!(
            "sdk_swallowed {way:?}: rounds={} reported_before_the_next_grant={} least={}ms \
             trusted_on: {} granted_after_E: {}",
            losses.len(),
            distances.len(),
            distances
                .iter()
                .min()
                .unwrap_or(&Duration::ZERO)
                .as_millis(),
            format_spread(trusted.collect()),
            format_spread(
                losses
                    .iter()
                    .map(|loss| loss.next.delay_after_expiry())
                    .collect()
            )
        ));
    }
    let verdict = fixture.oracle.verdict();
    assert_eq!(verdict.uses, 2 * total);
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    for loss in &losses {
        let limit = loss.swallowed + TRANSIT_TIME + TTL - MARGIN + POLL_INTERVAL;
        assert!(loss.lost <= limit, "trusted too long: {loss:#?}");
        loss.next.assert_granted_at_expiry();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_the_broker_arrive_too_late() {
    let total = scaled_count(20, 6);
    let fixture = Fixture::start(total).await;
    let rounds = (0..total).map(|index| fixture.lose_without_validity(index));
    let told_count = join_all(rounds).await;
    let told_count = told_count.into_iter().filter(|is_told| *is_told).count();
    let verdict = fixture.oracle.verdict();
    print_figures(&format!(
        "sdk_swallowed, a client without a clock: rounds={total} told_before_the_next_grant={told_count} \
         overlaps={}",
        verdict.overlaps
    ));
    assert_eq!((told_count, verdict.overlaps), (0, total));
}

#[tokio::test(flavor = "multi_thread")]
async fn validity_counts_from_the_sending_of_a_heartbeat() {
    let total = scaled_count(20, 6);
    let fixture = Fixture::start(total).await;
    let by_receipt = Oracle::new(total);
    let rounds = (0..total).map(|index| fixture.delay(index, &by_receipt));
    let losses = join_all(rounds).await;
    let distances = losses.iter().map(|l| l.next.granted.checked_sub(l.lost));
    let distances: Option<Vec<_>> = distances.collect();
    let distances = distances.expect("granted before the loss was reported");
    let (verdict, by_receipt) = (fixture.oracle.verdict(), by_receipt.verdict());
    print_figures(&format!(
        "sdk_swallowed, acknowledged {}ms late: rounds={total} ttl=4500ms least={}ms overlaps={}; \
         counted from the receipt: overlaps={}",
        DELAY.as_millis(),
        distances
            .iter()
            .min()
            .unwrap_or(&Duration::ZERO)
            .as_millis(),
        verdict.overlaps,
        by_receipt.overlaps
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(by_receipt.overlaps, total, "late enough to matter");
    losses
        .iter()
        .for_each(|loss| loss.next.assert_granted_at_expiry());
}

impl Fixture {
    async fn start(locks: usize) -> Self {
        let deployment = Deployment::start(1).await;
        let addr = deployment.addrs()[0];
        let other = Sdk::connect(&format!("http://{addr}")).await;
        Self {
            other: other.expect("a broker that runs"),
            observer: Client::new("observer", &[addr], 0),
            oracle: Oracle::new(locks),
            deployment,
        }
    }

    async fn proxy(&self) -> Http2Proxy {
        Http2Proxy::start(self.deployment.addrs()[0]).await
    }

    /// Acquires a lock, and drops packets from a random moment on until the lock is lost.
    async fn lose(&self, index: usize) -> Loss {
        let (lock, way) = (
            format!("lock-{index}"),
            DIRECTIONS[index % DIRECTIONS.len()],
        );
        let proxy = self.proxy().await;
        let (holder, guard) = hold(&proxy, &lock, TTL).await;
        let entered = boottime();
        let turn = self.queue_next_holder(&lock, TTL).await;
        let held = guard.held();
        let loss = tokio::spawn(async move { (held.lost().await, boottime(), held.is_valid()) });
        let loss = AbortOnDropHandle::new(loss);
        sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0))).await;

        assert!(guard.is_valid(), "lost before anything happened");
        proxy.set_mode(ProxyMode::DropFrames(way));
        let swallowed = boottime();
        let next = self.granted(&lock, turn).await;
        assert!(loss.is_finished(), "not reported by now");
        let (reason, lost, is_valid) = loss.await.expect("no panic");
        assert_eq!((reason, is_valid), (LostReason::Expired, false));
        assert!(proxy.dropped_frames() > 0, "nothing was swallowed");
        assert!(proxy.opened_connections() > 1, "no other way was tried");
        self.oracle
            .record(lock_use(index, guard.fencing_token(), entered, lost));

        // The network works again, and the client reconnects, but the lock stays lost.
        proxy.set_mode(ProxyMode::Forward);
        proxy.close_connections().await;
        let another = holder.lock(format!("{lock}-another")).acquire().await;
        another
            .expect("the client goes on")
            .release()
            .await
            .expect("it is held");
        assert!(!guard.is_valid());
        let released = guard.release().await.expect_err("it was lost");
        assert!(matches!(released, ReleaseError::Lost(LostReason::Expired)));
        assert!(next.guard.is_valid(), "the next one holds it");
        self.oracle.record(lock_use(
            index,
            next.guard.fencing_token(),
            next.granted,
            boottime(),
        ));
        Loss {
            way,
            swallowed,
            lost,
            next,
        }
    }

    /// Repeats the loss of [`Self::lose`] for a client that measures no validity, and relies on the
    /// broker's messages. Returns true if the client received the end of its lease before another
    /// client had the lock.
    async fn lose_without_validity(&self, index: usize) -> bool {
        let (lock, way) = (format!("word-{index}"), DIRECTIONS[index % 2]);
        let proxy = self.proxy().await;
        let mut stream = StreamClient::open_without_keepalive(proxy.addr()).await;
        stream.start_heartbeats(TTL / 3);
        let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        let lease = stream
            .wait_for_grant(call)
            .await
            .expect("the stream lives")
            .lease;
        let entered = boottime();
        let turn = self.queue_next_holder(&lock, TTL).await;
        let word =
            async move { while let Some(Response::Ack(_)) = stream.next_lease_message().await {} };
        let word = AbortOnDropHandle::new(tokio::spawn(word));
        sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0))).await;
        assert!(!word.is_finished(), "over before anything happened");
        proxy.set_mode(ProxyMode::DropFrames(way));
        let next = self.granted(&lock, turn).await;
        let is_told = word.is_finished();
        assert!(proxy.dropped_frames() > 0, "nothing was swallowed");
        let token = lease.expect("a lease").grants[0].fencing_token;
        let left_at = boottime();
        self.oracle.record(lock_use(index, token, entered, left_at));
        self.oracle.record(lock_use(
            index,
            next.guard.fencing_token(),
            next.granted,
            left_at,
        ));
        is_told
    }

    /// Loses a lock while its last acknowledgement is delayed. If the validity began with the
    /// receipt of the acknowledgement, it would end after the store's expiry.
    async fn delay(&self, index: usize, by_receipt: &Oracle) -> Loss {
        let lock = format!("late-{index}");
        let proxy = self.proxy().await;
        let (_holder, guard) = hold(&proxy, &lock, LONG_TTL).await;
        let entered = boottime();
        let turn = self.queue_next_holder(&lock, LONG_TTL).await;
        let log =
            AbortOnDropHandle::new(tokio::spawn(ValidityLog::record_until_lost(guard.held())));
        // After the heartbeat that follows a grant.
        sleep((LONG_TTL / 3).mul_f64(rand::thread_rng().gen_range(0.2..1.0))).await;

        let messages = proxy.frames_from_broker(DATA);
        proxy.set_mode(ProxyMode::Delay(DELAY));
        while proxy.frames_from_broker(DATA) == messages {
            sleep(Duration::from_millis(5)).await;
        }
        proxy.set_mode(ProxyMode::DropFrames(Direction::Both));
        let swallowed = boottime();
        let next = self.granted(&lock, turn).await;
        assert!(log.is_finished(), "not reported by now");
        let log = log.await.expect("no panic");
        assert_eq!(log.lost_reason, LostReason::Expired);
        let last = log.last_confirmation();
        let came = last.at.saturating_sub(swallowed);
        assert!(came + TRANSIT_TIME >= DELAY, "it came late: {log:?}");
        let naive = last.at + LONG_TTL - MARGIN;
        for (oracle, ended) in [(&self.oracle, log.lost_at), (by_receipt, naive)] {
            oracle.record(lock_use(index, guard.fencing_token(), entered, ended));
            oracle.record(lock_use(
                index,
                next.guard.fencing_token(),
                next.granted,
                boottime(),
            ));
        }
        Loss {
            way: Direction::Both,
            swallowed,
            lost: log.lost_at,
            next,
        }
    }

    /// Queues a client for the lock whose network does not fail.
    async fn queue_next_holder(&self, lock: &str, ttl: Duration) -> NextGrant {
        let next = self.other.lock(lock).ttl(ttl).wait(WAIT);
        let turn = tokio::spawn(async move { (next.acquire().await, boottime()) });
        self.observer.wait_for_queue_length_at(0, lock, 1).await;
        AbortOnDropHandle::new(turn)
    }

    /// Waits until the queued client is granted the lock, and reads the lock in the store until
    /// then.
    async fn granted(&self, lock: &str, turn: NextGrant) -> GrantAfterLoss {
        let stop = CancellationToken::new();
        let turn = async {
            let turn = timeout(TEST_TIMEOUT, turn).await;
            stop.cancel();
            turn.expect("granted in time").expect("no panic")
        };
        let watch = watch_expiry(&self.observer, 0, lock, &stop);
        let ((guard, granted), mut looks) = tokio::join!(turn, watch);
        let guard = guard.expect("its turn");
        looks
            .expiries
            .retain(|seen| seen.lease_id != guard.lease_id());
        GrantAfterLoss {
            granted,
            looks,
            guard,
        }
    }
}

impl GrantAfterLoss {
    fn delay_after_expiry(&self) -> Duration {
        self.looks.delay_of(self.granted)
    }

    /// Asserts that the grant came at the expiry of the previous lease in the store.
    fn assert_granted_at_expiry(&self) {
        let end = self.looks.last_expiry().earliest;
        assert!(self.granted >= end, "too soon: {self:#?}");
        assert!(
            !self.looks.has_too_many_reads_after_end(),
            "granted late: {self:#?}"
        );
    }
}

/// Acquires the lock with a client behind the proxy.
async fn hold(proxy: &Http2Proxy, lock: &str, ttl: Duration) -> (Sdk, Guard) {
    let client = Sdk::connect(&format!("http://{}", proxy.addr())).await;
    let client = client.expect("a broker that runs");
    let guard = client.lock(lock).ttl(ttl).try_acquire().await;
    let guard = guard.expect("a broker that answers").expect("it is free");
    (client, guard)
}

fn lock_use(lock: usize, token: i64, entered: Duration, ended: Duration) -> LockUse {
    LockUse {
        lock,
        share: Share::ALL,
        token,
        started_at: entered,
        ended_at: ended,
    }
}
