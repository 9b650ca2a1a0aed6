//! A lease of two locks on a stream. If the lease loses one lock, its holder is notified, and the
//! other lock is no longer renewed and expires. Requests outside of the stream change no part of
//! the lease.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, Lease, LeaseEndReason, LeaseExtended, hold_response::Message as Response,
};
use leasehold_tests::{
    broker::{deployment::Deployment, process::KEY_PREFIX},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, HeldLease},
    },
    clock::boottime,
    load::store_expiry::{ExpiryReads, format_spread, read_expiry, store_expiry, watch_expiry},
    scale::{print_figures, scaled_count},
    status::error_reason,
};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum delay of a grant or of a message.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// A lease of two locks that is about to lose the first lock. The second lock has a waiter.
struct TwoLockLease<'a> {
    deployment: &'a Deployment,
    client: Client,
    holder: StreamClient,
    lease: Lease,
    waiter: StreamClient,
    call: i64,
}

/// Times of the second lock after the loss of the first.
#[derive(Debug)]
struct Loss {
    /// Time from the loss until the holder was notified.
    told_after: Duration,
    /// Expiries of the second lock that were read after the loss.
    looks: ExpiryReads,
    granted: Duration,
}

fn names(index: usize) -> [String; 2] {
    ["lost", "other"].map(|name| format!("{name}-{index}"))
}

impl<'a> TwoLockLease<'a> {
    async fn take(deployment: &'a Deployment, index: usize) -> Self {
        let addrs = deployment.addrs();
        let client = Client::new("observer", &addrs, 0);
        let mut holder = StreamClient::open(addrs[0]).await;
        holder.start_heartbeats(HEARTBEAT_INTERVAL);
        let [lost, other] = names(index);
        let both = AcquireCall::new("", TTL, Duration::ZERO);
        let call = holder.acquire_all(&[&lost, &other], &both).await;
        let lease = holder
            .wait_for_grant(call)
            .await
            .expect("the stream lives")
            .lease;
        let mut waiter = StreamClient::open(addrs[index % 2]).await;
        waiter.start_heartbeats(HEARTBEAT_INTERVAL);
        let wait = AcquireCall::new(&other, TTL, WAIT);
        let call = waiter.acquire(&wait, 1).await;
        client.wait_for_queue_length_at(1, &other, 1).await;
        Self {
            deployment,
            client,
            holder,
            lease: lease.expect("a lease"),
            waiter,
            call,
        }
    }

    /// Deletes the record of the first lock, or the holder in it, and waits until the client of the
    /// lease is notified. Returns the time that the notification took.
    async fn lose(&mut self, index: usize, forget: &[&str]) -> Duration {
        let mut redis = self.deployment.redis.connect().await;
        let record = format!("{KEY_PREFIX}{{default:{}}}", names(index)[0]);
        let words = [&forget[..1], &[record.as_str()], &forget[1..]].concat();
        assert_eq!(redis.must(&words).await.integer(), 1);
        let lost_at = boottime();
        loop {
            match self.holder.next_lease_message().await {
                Some(Response::Ack(ack)) => {
                    let names_it =
                        |extended: &LeaseExtended| extended.lease_id == self.lease.lease_id;
                    let is_extended = ack.leases.iter().any(names_it);
                    let is_older = self.holder.heartbeat_sent_at(ack.sequence) < lost_at;
                    assert!(is_older || !is_extended, "extended after a loss: {ack:?}");
                }
                Some(Response::Ended(ended)) => {
                    assert_eq!(ended.lease_id, self.lease.lease_id);
                    assert_eq!(ended.reason(), LeaseEndReason::StoreLost);
                    return boottime() - lost_at;
                }
                other => panic!("{other:?} instead of the end of the lease"),
            }
        }
    }

    /// Waits until the waiter is granted the second lock, while the former holder continues to send
    /// heartbeats.
    async fn follow(mut self, index: usize, told_after: Duration) -> Loss {
        let stop = CancellationToken::new();
        let turn = async {
            let granted = tokio::select! {
                granted = self.waiter.wait_for_grant(self.call) => granted.expect("the stream lives"),
                told = self.holder.next_lease_message() => panic!("{told:?} after the end of the lease"),
            };
            let at = boottime();
            stop.cancel();
            (granted.lease.expect("a lease"), at)
        };
        let other = &names(index)[1];
        let watched = watch_expiry(&self.client, 1, other, &stop);
        let ((next, granted), mut looks) = tokio::join!(turn, watched);
        assert!(next.grants[0].fencing_token > self.lease.grants[1].fencing_token);
        looks.expiries.retain(|seen| seen.lease_id != next.lease_id);
        Loss {
            told_after,
            looks,
            granted,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_locks_of_a_lease_that_lost_a_record_expire() {
    run_loss("record_deleted", &["DEL"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_locks_of_a_lease_that_lost_a_holder_expire() {
    run_loss("holder_deleted", &["HDEL", "h:1"]).await;
}

async fn run_loss(name: &str, forget: &[&str]) {
    let deployment = Deployment::start(2).await;
    let losses = (0..scaled_count(20, 5)).map(async |index| {
        let mut pair = TwoLockLease::take(&deployment, index).await;
        let told_after = pair.lose(index, forget).await;
        pair.follow(index, told_after).await
    });
    let losses = join_all(losses).await;
    let late = |loss: &Loss| loss.looks.delay_of(loss.granted);
    let early = losses
        .iter()
        .filter(|loss| loss.granted < loss.looks.last_expiry().earliest);
    let early = early.count();
    print_figures(&format!(
        "hold_several: {name} leases={} ttl=2000ms E=2650ms told: {} early={early} after_E: {}",
        losses.len(),
        format_spread(losses.iter().map(|loss| loss.told_after).collect()),
        format_spread(losses.iter().map(late).collect())
    ));
    assert_eq!(early, 0, "granted before its time was over: {losses:#?}");
    for loss in &losses {
        assert!(
            loss.told_after <= HEARTBEAT_INTERVAL + TIME_LIMIT,
            "notified late: {loss:#?}"
        );
        assert_eq!(
            loss.looks.expiries.len(),
            1,
            "renewed after the loss: {loss:#?}"
        );
        assert!(
            loss.looks.expiries[0].remaining <= store_expiry(TTL),
            "{loss:#?}"
        );
        assert!(
            !loss.looks.has_too_many_reads_after_end(),
            "granted late: {loss:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_a_lease_that_lost_one_lock_releases_its_other_locks() {
    let deployment = Deployment::start(2).await;
    let after = (0..scaled_count(20, 5)).map(async |index| {
        let mut pair = TwoLockLease::take(&deployment, index).await;
        let told_after = pair.lose(index, &["DEL"]).await;
        let held = HeldLease {
            lease: pair.lease.clone(),
            sent_at: boottime(),
        };
        let released = pair.client.release_at(1, &held).await;
        // The lock that was lost counts as released, because the other lock was still held.
        let released = released.expect("one of its locks is there");
        assert!(!released.already_released);
        pair.follow(index, told_after).await.granted - held.sent_at
    });
    let after = join_all(after).await;
    print_figures(&format!(
        "hold_several: released leases={} other_lock_granted: {}",
        after.len(),
        format_spread(after.clone())
    ));
    assert!(after.iter().all(|after| *after <= TIME_LIMIT), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_lease_on_a_stream_is_not_changed_at_another_broker() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let mut stream = StreamClient::open(addrs[0]).await;
    let both = AcquireCall::new("", 10 * TTL, Duration::ZERO);
    let call = stream.acquire_all(&["a", "b"], &both).await;
    let lease = stream
        .wait_for_grant(call)
        .await
        .expect("the stream lives")
        .lease;
    let lease = lease.expect("a lease");
    let client = Client::new("elsewhere", &addrs, 1);
    let before = [
        read_expiry(&client, 0, "a").await,
        read_expiry(&client, 0, "b").await,
    ];
    for name in ["a", "b"] {
        let part = client.release_lock_at(1, &lease, name).await;
        let refused = part.expect_err("it is on a stream");
        assert_eq!(error_reason(&refused), Some(ErrorReason::StaleAttach));
    }
    for name in ["c", "a"] {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        let under = client.acquire_under_at(1, &call, &lease).await;
        let refused = under.expect_err("it is on a stream");
        assert_eq!(error_reason(&refused), Some(ErrorReason::StaleAttach));
    }
    assert_eq!(
        read_expiry(&client, 1, "c").await,
        None,
        "it was rolled back"
    );
    for (name, before) in ["a", "b"].into_iter().zip(before) {
        let before = before.expect("it is held");
        let after = read_expiry(&client, 1, name).await.expect("it is held");
        assert_eq!(
            (&after.lease_id, after.token),
            (&before.lease_id, before.token)
        );
        // No other request has renewed the lock either.
        assert!(after.earliest <= before.latest && before.earliest <= after.latest);
    }
    stream.heartbeat().await;
    let Some(Response::Ack(ack)) = stream.next_lease_message().await else {
        panic!("no acknowledgement");
    };
    assert_eq!(ack.leases.len(), 1);
    let extended = &ack.leases[0];
    assert_eq!(
        (&extended.lease_id, extended.grant_count),
        (&lease.lease_id, 2)
    );
}
