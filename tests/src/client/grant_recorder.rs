//! A lease stream with calls for many locks, which records the validity of each lease and compares
//! each grant with the record in the store.

use std::{collections::HashMap, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, Granted, HeartbeatAck, Lease, hold_response::Message as Response,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::{
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
        store_expiry::{HolderExpiry, read_expiry},
    },
};

/// Heartbeat interval, which is shorter than the 2 s for which a waiting client may be silent.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// A granted lock of a [`GrantRecorder`] stream.
#[derive(Debug)]
pub struct GrantedLock {
    /// Index of the lock.
    pub lock: usize,
    pub lease: Lease,
    /// Time at which the grant arrived.
    pub granted_at: Duration,
    /// End of the validity according to the grant.
    pub granted_until: Duration,
    /// End of the validity according to the latest acknowledgement.
    pub valid_until: Duration,
    /// Time at which the lease was released, or its end was reported.
    pub ended_at: Option<Duration>,
    pending_read: Option<AbortOnDropHandle<RecordRead>>,
    record_read: Option<RecordRead>,
}

/// Result of a read of the lock's record, and the time at which the reply arrived.
type RecordRead = (Option<HolderExpiry>, Duration);

impl GrantedLock {
    /// Records with the oracle that the lock was used until `valid_until` or until the end of the
    /// lease, whichever is earlier.
    fn record_use(&self, oracle: &Oracle, valid_until: Duration) {
        let ended = self
            .ended_at
            .map_or(valid_until, |ended| ended.min(valid_until));
        if ended > self.granted_at {
            oracle.record(LockUse {
                lock: self.lock,
                share: Share::ALL,
                token: self.token(),
                started_at: self.granted_at,
                ended_at: ended,
            });
        }
    }

    /// Returns the record that was read when the grant arrived, if it names this lease. Asserts
    /// that it does if the reply arrived before the end of the validity.
    async fn own_record(&mut self) -> Option<HolderExpiry> {
        if let Some(look) = self.pending_read.take() {
            self.record_read = Some(look.await.expect("the look does not panic"));
        }
        let (seen, answered) = self.record_read.clone().expect("it was looked at");
        let is_own = |seen: &HolderExpiry| seen.lease_id == self.lease.lease_id;
        let own = seen.filter(is_own);
        assert!(
            own.is_some() || self.granted_until <= answered,
            "trusted, but not held: {self:?}"
        );
        own
    }

    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease.grants[0].fencing_token
    }
}

/// Comparison of the grants of a stream with the records in the store.
#[derive(Debug, Default)]
pub struct StoreComparison {
    /// Time between the end of the validity and the expiry in the store, for each grant that the
    /// store confirmed.
    pub slack: Vec<Duration>,
    /// Number of grants that expired before the store was read.
    pub stale: usize,
}

/// A lease stream with its calls.
#[derive(Debug)]
pub struct GrantRecorder {
    pub stream: StreamClient,
    /// Granted locks, in the order of arrival.
    pub granted: Vec<GrantedLock>,
    /// Locks whose lease expired before the grant could be reported.
    pub expired: Vec<usize>,
    /// Number of confirmed releases.
    pub released: usize,
    observer: Client,
    calls: HashMap<i64, (usize, Duration)>,
}

impl GrantRecorder {
    /// Starts heartbeats on a stream. Records are read through the first endpoint of `observer`.
    #[must_use]
    pub fn start(mut stream: StreamClient, observer: &Client) -> Self {
        stream.start_heartbeats(HEARTBEAT_INTERVAL);
        Self {
            stream,
            granted: Vec::new(),
            expired: Vec::new(),
            released: 0,
            observer: observer.clone(),
            calls: HashMap::new(),
        }
    }

    pub async fn acquire(&mut self, lock: usize, call: &AcquireCall, attach_number: i32) {
        let sent = boottime();
        let call_id = self.stream.acquire(call, attach_number).await;
        self.calls.insert(call_id, (lock, sent));
    }

    /// Returns the number of calls with a result.
    #[must_use]
    pub fn result_count(&self) -> usize {
        self.granted.len() + self.expired.len()
    }

    /// Receives messages until `answers` calls have a result in total. Returns false if the stream
    /// ends before.
    pub async fn receive_results(&mut self, answers: usize) -> bool {
        while self.result_count() < answers {
            if !self.receive().await {
                return false;
            }
        }
        true
    }

    /// Receives messages until `until`.
    pub async fn receive_until(&mut self, until: Duration) {
        let listening = async { while self.receive().await {} };
        let left = until.saturating_sub(boottime());
        let timed_out = tokio::time::timeout(left, listening).await;
        timed_out.expect_err("the stream lives");
    }

    /// Receives messages until `releases` releases are confirmed in total.
    pub async fn receive_releases(&mut self, releases: usize) {
        while self.released < releases {
            assert!(self.receive().await, "the stream lives");
        }
    }

    /// Releases a granted lock.
    pub async fn release(&mut self, lock: usize) {
        let turn = self.granted.iter_mut().find(|turn| turn.lock == lock);
        let turn = turn.expect("it was granted");
        turn.own_record().await;
        turn.ended_at = Some(boottime());
        let lease_id = turn.lease.lease_id.clone();
        self.stream.release(&lease_id).await;
    }

    #[must_use]
    pub fn granted_lock(&self, lock: usize) -> Option<&GrantedLock> {
        self.granted.iter().find(|turn| turn.lock == lock)
    }

    /// Records the use of all locks with the oracle, and asserts that the store kept each lease for
    /// at least as long as its validity.
    pub async fn check(self, oracle: &Oracle) -> StoreComparison {
        let mut backing = StoreComparison::default();
        for mut turn in self.granted {
            turn.record_use(oracle, turn.valid_until);
            let Some(held) = turn.own_record().await else {
                backing.stale += 1;
                continue;
            };
            let slack = held.earliest.checked_sub(turn.granted_until);
            backing.slack.push(slack.expect("trusted longer than held"));
        }
        backing
    }

    /// Records with the oracle the use of the locks by a client that wrongly counts validity from
    /// the arrival of a grant.
    pub fn record_naive_use(&self, oracle: &Oracle) {
        for turn in &self.granted {
            let ttl = positive_duration(turn.lease.ttl);
            turn.record_use(oracle, turn.valid_until.max(turn.granted_at + ttl));
        }
    }

    /// Receives and processes a message. Returns false if the stream has ended.
    async fn receive(&mut self) -> bool {
        let Some(response) = self.stream.next_lease_message().await else {
            return false;
        };
        match response {
            Response::Granted(granted) => self.on_granted(granted),
            Response::Ack(ack) => self.on_ack(&ack),
            Response::Ended(ended) => {
                let mut turns = self.granted.iter_mut();
                let turn = turns.find(|turn| turn.lease.lease_id == ended.lease_id);
                let turn = turn.expect("it was granted");
                turn.ended_at.get_or_insert(boottime());
            }
            Response::Released(_) => self.released += 1,
            Response::Refused(refused) => {
                let is_over = refused.reason() == ErrorReason::LeaseExpired;
                assert!(is_over, "{refused:?} instead of a grant");
                self.expired.push(self.calls[&refused.call_id].0);
            }
            Response::Queued(_)
            | Response::Attached(_)
            | Response::ReleaseRequested(_)
            | Response::Reconnect(_)
            | Response::Done(_) => panic!("{response:?} was not asked for"),
        }
        true
    }

    fn on_granted(&mut self, granted: Granted) {
        let (lock, called) = self.calls[&granted.call_id];
        let lease = granted.lease.expect("a lease");
        let from = match granted.as_of_sequence {
            0 => called,
            sequence => self.stream.heartbeat_sent_at(sequence),
        };
        let granted_until = from + positive_duration(lease.ttl);
        let (observer, target) = (self.observer.clone(), lease.grants[0].target.clone());
        let name = target.expect("a target").name;
        let look =
            tokio::spawn(async move { (read_expiry(&observer, 0, &name).await, boottime()) });
        self.granted.push(GrantedLock {
            lock,
            lease,
            granted_at: boottime(),
            granted_until,
            valid_until: granted_until,
            ended_at: None,
            pending_read: Some(AbortOnDropHandle::new(look)),
            record_read: None,
        });
    }

    fn on_ack(&mut self, ack: &HeartbeatAck) {
        let sent = self.stream.heartbeat_sent_at(ack.sequence);
        for lease in &ack.leases {
            let of = |turn: &&mut GrantedLock| turn.lease.lease_id == lease.lease_id;
            if let Some(turn) = self
                .granted
                .iter_mut()
                .find(of)
                .filter(|_| lease.grant_count == 1)
            {
                turn.valid_until = turn.valid_until.max(sent + positive_duration(lease.ttl));
            }
        }
    }
}

fn positive_duration(ttl: Option<prost_types::Duration>) -> Duration {
    let ttl = Duration::try_from(ttl.expect("a ttl"));
    ttl.expect("a ttl is positive")
}
