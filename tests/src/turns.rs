//! A stream that waits for many locks, trusts each as long as its contract says, and has every grant
//! compared with what the store says of it.

use std::{collections::HashMap, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, Granted, HeartbeatAck, Lease, hold_response::Message as Response,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    client::{AcquireCall, Client},
    clock::boottime,
    stream_client::StreamClient,
    time_left::{TimeLeft, look},
    witness::{Share, Visit, Witness},
};

/// At most this often a waiter's client may be silent is 2 s.
const BEAT: Duration = Duration::from_millis(500);

/// One lock that was granted.
#[derive(Debug)]
pub struct Turn {
    /// Which.
    pub lock: usize,
    /// As it was received.
    pub lease: Lease,
    /// When it was received.
    pub entered: Duration,
    /// The end of the validity that the grant announced.
    pub granted_until: Duration,
    /// The end of the validity after the newest acknowledgement.
    pub valid_until: Duration,
    /// When it was released, or told to be over.
    pub ended: Option<Duration>,
    look: Option<AbortOnDropHandle<Look>>,
    seen: Option<Look>,
}

/// What a look found, and when it was answered.
type Look = (Option<TimeLeft>, Duration);

impl Turn {
    /// Shows the referee that it was relied on, as long as it was valid and not over.
    fn record(&self, witness: &Witness, valid_until: Duration) {
        let ended = self
            .ended
            .map_or(valid_until, |ended| ended.min(valid_until));
        if ended > self.entered {
            witness.record(Visit {
                lock: self.lock,
                share: Share::ALL,
                token: self.token(),
                entered: self.entered,
                ended,
            });
        }
    }

    /// The answer of the look that was sent when the grant came.
    async fn seen(&mut self) -> Option<TimeLeft> {
        if let Some(look) = self.look.take() {
            self.seen = Some(look.await.expect("the look does not panic"));
        }
        let (seen, answered) = self.seen.clone().expect("it was looked at");
        let is_own = |seen: &TimeLeft| seen.lease_id == self.lease.lease_id;
        let own = seen.filter(is_own);
        assert!(
            own.is_some() || self.granted_until <= answered,
            "trusted, but not held: {self:?}"
        );
        own
    }

    /// Its fencing token.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease.grants[0].fencing_token
    }
}

/// What the store said of the grants of a stream.
#[derive(Debug, Default)]
pub struct Backing {
    /// How much longer than the validity the store held, for each that was valid when it came.
    pub slack: Vec<Duration>,
    /// How many had no validity left when the store was asked.
    pub stale: usize,
}

/// One stream with its calls.
#[derive(Debug)]
pub struct Turns {
    /// The stream.
    pub stream: StreamClient,
    /// In the order in which they came.
    pub turns: Vec<Turn>,
    /// Locks that were granted, and lost before it could be told.
    pub expired: Vec<usize>,
    /// Releases that were answered.
    pub released: usize,
    observer: Client,
    calls: HashMap<i64, (usize, Duration)>,
}

impl Turns {
    /// On this stream, which beats from now on. The observer asks its first endpoint.
    #[must_use]
    pub fn on(mut stream: StreamClient, observer: &Client) -> Self {
        stream.beat(BEAT);
        Self {
            stream,
            turns: Vec::new(),
            expired: Vec::new(),
            released: 0,
            observer: observer.clone(),
            calls: HashMap::new(),
        }
    }

    /// Asks for a lock.
    pub async fn ask(&mut self, lock: usize, call: &AcquireCall, attach_number: i32) {
        let sent = boottime();
        let call_id = self.stream.acquire(call, attach_number).await;
        self.calls.insert(call_id, (lock, sent));
    }

    /// How many calls were answered.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.turns.len() + self.expired.len()
    }

    /// Listens until so many calls were answered in all. False if the stream is over before.
    pub async fn until_answered(&mut self, answers: usize) -> bool {
        while self.answers() < answers {
            if !self.hear().await {
                return false;
            }
        }
        true
    }

    /// Listens until a moment.
    pub async fn listen(&mut self, until: Duration) {
        let listening = async { while self.hear().await {} };
        let left = until.saturating_sub(boottime());
        let over = tokio::time::timeout(left, listening).await;
        over.expect_err("the stream lives");
    }

    /// Listens until so many releases were answered in all.
    pub async fn until_released(&mut self, releases: usize) {
        while self.released < releases {
            assert!(self.hear().await, "the stream lives");
        }
    }

    /// Releases a lock that it was granted.
    pub async fn release(&mut self, lock: usize) {
        let turn = self.turns.iter_mut().find(|turn| turn.lock == lock);
        let turn = turn.expect("it was granted");
        turn.seen().await;
        turn.ended = Some(boottime());
        let lease_id = turn.lease.lease_id.clone();
        self.stream.release(&lease_id).await;
    }

    /// The turn at that lock.
    #[must_use]
    pub fn turn(&self, lock: usize) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.lock == lock)
    }

    /// Shows the referee from when until when each lock was relied on, and judges what the store
    /// said: no client may trust longer than the store holds.
    pub async fn judge(self, witness: &Witness) -> Backing {
        let mut backing = Backing::default();
        for mut turn in self.turns {
            turn.record(witness, turn.valid_until);
            let Some(held) = turn.seen().await else {
                backing.stale += 1;
                continue;
            };
            let slack = held.earliest.checked_sub(turn.granted_until);
            backing.slack.push(slack.expect("trusted longer than held"));
        }
        backing
    }

    /// Shows a referee what a client would do that counts validity from the receipt of a grant.
    pub fn judge_naive(&self, witness: &Witness) {
        for turn in &self.turns {
            let ttl = ttl(turn.lease.ttl);
            turn.record(witness, turn.valid_until.max(turn.entered + ttl));
        }
    }

    /// False when the stream is over.
    async fn hear(&mut self) -> bool {
        let Some(told) = self.stream.hear().await else {
            return false;
        };
        match told {
            Response::Granted(granted) => self.granted(granted),
            Response::Ack(ack) => self.extended(&ack),
            Response::Ended(ended) => {
                let mut turns = self.turns.iter_mut();
                let turn = turns.find(|turn| turn.lease.lease_id == ended.lease_id);
                let turn = turn.expect("it was granted");
                turn.ended.get_or_insert(boottime());
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
            | Response::Done(_) => panic!("{told:?} was not asked for"),
        }
        true
    }

    fn granted(&mut self, granted: Granted) {
        let (lock, called) = self.calls[&granted.call_id];
        let lease = granted.lease.expect("a lease");
        let from = match granted.as_of_sequence {
            0 => called,
            sequence => self.stream.beat_sent(sequence),
        };
        let granted_until = from + ttl(lease.ttl);
        let (observer, target) = (self.observer.clone(), lease.grants[0].target.clone());
        let name = target.expect("a target").name;
        let look = tokio::spawn(async move { (look(&observer, 0, &name).await, boottime()) });
        self.turns.push(Turn {
            lock,
            lease,
            entered: boottime(),
            granted_until,
            valid_until: granted_until,
            ended: None,
            look: Some(AbortOnDropHandle::new(look)),
            seen: None,
        });
    }

    fn extended(&mut self, ack: &HeartbeatAck) {
        let sent = self.stream.beat_sent(ack.sequence);
        for lease in &ack.leases {
            let of = |turn: &&mut Turn| turn.lease.lease_id == lease.lease_id;
            if let Some(turn) = self
                .turns
                .iter_mut()
                .find(of)
                .filter(|_| lease.grant_count == 1)
            {
                turn.valid_until = turn.valid_until.max(sent + ttl(lease.ttl));
            }
        }
    }
}

fn ttl(ttl: Option<prost_types::Duration>) -> Duration {
    let ttl = Duration::try_from(ttl.expect("a ttl"));
    ttl.expect("a ttl is positive")
}
