//! A network that swallows packets while its connections stay open: a guard of the Rust client
//! reports its loss by its own clock, before somebody else has the lock.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client as Sdk, Error, Guard, LostReason, ReleaseError};
use leasehold_proto::v1::hold_response::Message as Response;
use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    proxy::{DATA, Mode, Proxy, Way},
    scale::{count, figures},
    stream_client::StreamClient,
    time_left::{Looks, spread, watch},
    trust_log::TrustLog,
    witness::{Share, Visit, Witness},
};
use rand::Rng;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

const TTL: Duration = Duration::from_secs(2);
/// The client trusts that much less.
const MARGIN: Duration = Duration::from_millis(500);
/// How late a loss may be reported: no timer runs through a suspend, so the time is looked at.
const LOOKED_AT: Duration = Duration::from_millis(100);
/// What was under way when the network failed has arrived by then.
const ON_THE_WAY: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_secs(60);
const GIVE_UP: Duration = Duration::from_secs(20);
const WAYS: [Way; 3] = [Way::Both, Way::ToBroker, Way::ToClient];
/// Clients at the same time.
const ROUND: usize = 10;

/// For acknowledgements that come later than the store's expiry is longer than the validity, but
/// before the client gives the connection up, after 4 s without a message.
const LONG_TTL: Duration = Duration::from_millis(4_500);
const DELAY: Duration = Duration::from_millis(2_100);

type Turn = AbortOnDropHandle<(Result<Guard, Error>, Duration)>;

/// One broker, and clients that nothing is wrong with.
struct Scene {
    other: Sdk,
    observer: Client,
    witness: Witness,
    deployment: Deployment,
}

/// A lock that was lost to the network.
#[derive(Debug)]
struct Loss {
    way: Way,
    /// From then on packets were swallowed.
    swallowed: Duration,
    /// When the guard reported it, or until when it would have been trusted.
    lost: Duration,
    next: Next,
}

/// Who got it then.
#[derive(Debug)]
struct Next {
    granted: Duration,
    /// At the lease before, until then.
    looks: Looks,
    guard: Guard,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_reported_before_somebody_else_has_the_lock() {
    let total = count(100, 10);
    let scene = Scene::start(total).await;
    let mut losses = Vec::new();
    while losses.len() < total {
        let from = losses.len();
        let round = (from..total.min(from + ROUND)).map(|index| scene.lose(index));
        losses.extend(join_all(round).await);
    }
    for way in WAYS {
        let losses = losses.iter().filter(|loss| loss.way == way);
        let losses: Vec<_> = losses.collect();
        let distances = losses.iter().map(|l| l.next.granted.checked_sub(l.lost));
        let distances: Option<Vec<_>> = distances.collect();
        let distances = distances.expect("granted before the loss was reported");
        let trusted = losses.iter().map(|l| l.lost.saturating_sub(l.swallowed));
        figures(&format!(
            "sdk_swallowed {way:?}: rounds={} reported_before_the_next_grant={} least={}ms \
             trusted_on: {} granted_after_E: {}",
            losses.len(),
            distances.len(),
            distances
                .iter()
                .min()
                .unwrap_or(&Duration::ZERO)
                .as_millis(),
            spread(trusted.collect()),
            spread(losses.iter().map(|loss| loss.next.late()).collect())
        ));
    }
    let verdict = scene.witness.verdict();
    assert_eq!(verdict.visits, 2 * total);
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    for loss in &losses {
        let limit = loss.swallowed + ON_THE_WAY + TTL - MARGIN + LOOKED_AT;
        assert!(loss.lost <= limit, "trusted too long: {loss:#?}");
        loss.next.judge();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_brokers_word_comes_too_late() {
    let total = count(20, 6);
    let scene = Scene::start(total).await;
    let rounds = (0..total).map(|index| scene.wait_for_word(index));
    let told = join_all(rounds).await;
    let told = told.into_iter().filter(|is_told| *is_told).count();
    let verdict = scene.witness.verdict();
    figures(&format!(
        "sdk_swallowed, a client without a clock: rounds={total} told_before_the_next_grant={told} \
         overlaps={}",
        verdict.overlaps
    ));
    assert_eq!((told, verdict.overlaps), (0, total));
}

#[tokio::test(flavor = "multi_thread")]
async fn validity_counts_from_the_sending_of_a_heartbeat() {
    let total = count(20, 6);
    let scene = Scene::start(total).await;
    let by_receipt = Witness::new(total);
    let rounds = (0..total).map(|index| scene.delay(index, &by_receipt));
    let losses = join_all(rounds).await;
    let distances = losses.iter().map(|l| l.next.granted.checked_sub(l.lost));
    let distances: Option<Vec<_>> = distances.collect();
    let distances = distances.expect("granted before the loss was reported");
    let (verdict, by_receipt) = (scene.witness.verdict(), by_receipt.verdict());
    figures(&format!(
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
    losses.iter().for_each(|loss| loss.next.judge());
}

impl Scene {
    async fn start(locks: usize) -> Self {
        let deployment = Deployment::start(1).await;
        let addr = deployment.addrs()[0];
        let other = Sdk::connect(&format!("http://{addr}")).await;
        Self {
            other: other.expect("a broker that runs"),
            observer: Client::new("observer", &[addr], 0),
            witness: Witness::new(locks),
            deployment,
        }
    }

    async fn proxy(&self) -> Proxy {
        Proxy::start(self.deployment.addrs()[0]).await
    }

    /// Loses a lock at a random moment.
    async fn lose(&self, index: usize) -> Loss {
        let (lock, way) = (format!("lock-{index}"), WAYS[index % WAYS.len()]);
        let proxy = self.proxy().await;
        let (holder, guard) = hold(&proxy, &lock, TTL).await;
        let entered = boottime();
        let turn = self.wait_in_line(&lock, TTL).await;
        let held = guard.held();
        let loss = tokio::spawn(async move { (held.lost().await, boottime(), held.is_valid()) });
        let loss = AbortOnDropHandle::new(loss);
        sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0))).await;

        assert!(guard.is_valid(), "lost before anything happened");
        proxy.set_mode(Mode::Swallow(way));
        let swallowed = boottime();
        let next = self.granted(&lock, turn).await;
        assert!(loss.is_finished(), "not reported by now");
        let (why, lost, is_valid) = loss.await.expect("no panic");
        assert_eq!((why, is_valid), (LostReason::Expired, false));
        assert!(proxy.lost() > 0, "nothing was swallowed");
        assert!(proxy.opened() > 1, "no other way was tried");
        self.witness
            .record(visit(index, guard.fencing_token(), entered, lost));

        // The network is back, and so is the client, but not its lock.
        proxy.set_mode(Mode::Forward);
        proxy.cut().await;
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
        self.witness.record(visit(
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

    /// The same for a client that counts nothing, and trusts until the broker tells it; whether it
    /// was told before somebody else had its lock.
    async fn wait_for_word(&self, index: usize) -> bool {
        let (lock, way) = (format!("word-{index}"), WAYS[index % 2]);
        let proxy = self.proxy().await;
        let mut stream = StreamClient::open_patient(proxy.addr()).await;
        stream.beat(TTL / 3);
        let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        let lease = stream.turn(call).await.expect("the stream lives").lease;
        let entered = boottime();
        let turn = self.wait_in_line(&lock, TTL).await;
        let word = async move { while let Some(Response::Ack(_)) = stream.hear().await {} };
        let word = AbortOnDropHandle::new(tokio::spawn(word));
        sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0))).await;
        assert!(!word.is_finished(), "over before anything happened");
        proxy.set_mode(Mode::Swallow(way));
        let next = self.granted(&lock, turn).await;
        let is_told = word.is_finished();
        assert!(proxy.lost() > 0, "nothing was swallowed");
        let token = lease.expect("a lease").grants[0].fencing_token;
        let left = boottime();
        self.witness.record(visit(index, token, entered, left));
        self.witness
            .record(visit(index, next.guard.fencing_token(), next.granted, left));
        is_told
    }

    /// Loses a lock while its last acknowledgement is on the way, for so long that its validity
    /// would outlive the store's expiry if it began with the receipt.
    async fn delay(&self, index: usize, by_receipt: &Witness) -> Loss {
        let lock = format!("late-{index}");
        let proxy = self.proxy().await;
        let (_holder, guard) = hold(&proxy, &lock, LONG_TTL).await;
        let entered = boottime();
        let turn = self.wait_in_line(&lock, LONG_TTL).await;
        let log = AbortOnDropHandle::new(tokio::spawn(TrustLog::follow(guard.held())));
        // Past the heartbeat that follows a grant.
        sleep((LONG_TTL / 3).mul_f64(rand::thread_rng().gen_range(0.2..1.0))).await;

        let messages = proxy.from_broker(DATA);
        proxy.set_mode(Mode::Delay(DELAY));
        while proxy.from_broker(DATA) == messages {
            sleep(Duration::from_millis(5)).await;
        }
        proxy.set_mode(Mode::Swallow(Way::Both));
        let swallowed = boottime();
        let next = self.granted(&lock, turn).await;
        assert!(log.is_finished(), "not reported by now");
        let log = log.await.expect("no panic");
        assert_eq!(log.why, LostReason::Expired);
        let last = log.last();
        let came = last.at.saturating_sub(swallowed);
        assert!(came + ON_THE_WAY >= DELAY, "it came late: {log:?}");
        let naive = last.at + LONG_TTL - MARGIN;
        for (witness, ended) in [(&self.witness, log.lost), (by_receipt, naive)] {
            witness.record(visit(index, guard.fencing_token(), entered, ended));
            witness.record(visit(
                index,
                next.guard.fencing_token(),
                next.granted,
                boottime(),
            ));
        }
        Loss {
            way: Way::Both,
            swallowed,
            lost: log.lost,
            next,
        }
    }

    /// Waits in line, beside the network that fails.
    async fn wait_in_line(&self, lock: &str, ttl: Duration) -> Turn {
        let next = self.other.lock(lock).ttl(ttl).wait(WAIT);
        let turn = tokio::spawn(async move { (next.acquire().await, boottime()) });
        self.observer.queued_at(0, lock, 1).await;
        AbortOnDropHandle::new(turn)
    }

    /// Waits for the turn, and watches what the store says until then.
    async fn granted(&self, lock: &str, turn: Turn) -> Next {
        let stop = CancellationToken::new();
        let turn = async {
            let turn = timeout(GIVE_UP, turn).await;
            stop.cancel();
            turn.expect("granted in time").expect("no panic")
        };
        let watch = watch(&self.observer, 0, lock, &stop);
        let ((guard, granted), mut looks) = tokio::join!(turn, watch);
        let guard = guard.expect("its turn");
        looks.ends.retain(|seen| seen.lease_id != guard.lease_id());
        Next {
            granted,
            looks,
            guard,
        }
    }
}

impl Next {
    fn late(&self) -> Duration {
        self.looks.late(self.granted)
    }

    /// It was granted at the end of the time that the store had for the holder.
    fn judge(&self) {
        let end = self.looks.end().earliest;
        assert!(self.granted >= end, "too soon: {self:#?}");
        assert!(!self.looks.are_too_many(), "granted late: {self:#?}");
    }
}

/// A client behind the proxy that holds the lock.
async fn hold(proxy: &Proxy, lock: &str, ttl: Duration) -> (Sdk, Guard) {
    let client = Sdk::connect(&format!("http://{}", proxy.addr())).await;
    let client = client.expect("a broker that runs");
    let guard = client.lock(lock).ttl(ttl).try_acquire().await;
    let guard = guard.expect("a broker that answers").expect("it is free");
    (client, guard)
}

fn visit(lock: usize, token: i64, entered: Duration, ended: Duration) -> Visit {
    Visit {
        lock,
        share: Share::ALL,
        token,
        entered,
        ended,
    }
}
