//! One lease stream: owns its leases and waits, and orders what is done to each of them.
//!
//! It reads what its client asks and never waits for the store: every command runs as a job, one at
//! a time for each lease.

mod done;
mod due;
mod messages;
mod owned;
mod time;
mod traced;

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{
    future::{BoxFuture, FutureExt as _},
    stream::{BoxStream, FuturesUnordered, StreamExt as _},
};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::{
    done::Done,
    due::{Attach, Due},
    owned::{Owned, Todo},
    time::Silence,
};
pub use self::{
    messages::{Asked, Ended, Extended, May, Place, Refusal, Tell, Told},
    time::StreamAge,
};
use super::{Broker, OnStream, ended, heartbeats::Heartbeats, traced as spans};
use crate::{
    lock::{AcquireCall, Attachment, LeaseId, LockError, LockKey, Release, StreamId},
    quotas::Share,
    streams::News,
    trace::Traced,
};

/// Leases and waits of one stream.
pub const LEASES_MAX: usize = 1_000;
/// A waiter whose client was not heard for so long is not granted, and one whose stream broke has so
/// long to come again.
pub(super) const QUEUE_GRACE: Duration = Duration::from_secs(6);
/// How soon a command that could not reach the store is sent again.
const RETRY: Duration = Duration::from_millis(250);
/// How long a stream that the broker ends is read on, so that what the client has sent meanwhile
/// does not count as a reset of the connection.
const READ_ON: Duration = Duration::from_secs(2);

/// How far a stream's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its client asks and is told.
    Open,
    /// Its client said Close: everything is given back.
    Closing,
    /// Its client is gone: nothing is renewed, what was asked for is finished.
    Broken,
    /// The broker ends it; its leases are left alone.
    Left,
}

/// Whose stream it is.
#[derive(Debug)]
pub struct StreamCaller {
    /// As policies name it.
    pub name: Arc<str>,
    /// When its credential has expired.
    pub expires: Option<Instant>,
    /// When it has to go on with another connection, if its credential is that of the connection.
    pub moves_at: Option<Instant>,
}

/// A call without an answer.
struct Wait {
    give_up: CancellationToken,
    /// What it is to acquire.
    locks: Vec<LockKey>,
    /// It was given up because the rules do not allow it any more.
    is_denied: bool,
}

pub(super) struct Stream {
    broker: Broker,
    caller: Arc<str>,
    id: StreamId,
    tell: Tell,
    phase: Phase,
    heartbeats: Arc<Heartbeats>,
    /// Heartbeats whose sequence went back.
    went_back: u64,
    /// When the client was heard last: a heartbeat, or a call.
    heard: Instant,
    silence: Silence,
    /// When the client is asked to go on with another connection, and then when the stream ends.
    ages_at: Instant,
    is_old: bool,
    /// When the client's credential is worth nothing any more.
    expires: Option<Instant>,
    /// Which locks it may hold; `None`: what was granted was allowed.
    may: Option<May>,
    leases: HashMap<LeaseId, Box<Owned>>,
    /// The shortest validity of a lease that ends soon after a silence; `None`: there is none.
    graced: Option<Duration>,
    /// Calls without an answer.
    waits: HashMap<i64, Wait>,
    /// The calls themselves, each of which runs to its end.
    calls: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Their answers: nobody waits for them when the stream is over.
    answers: FuturesUnordered<BoxFuture<'static, Done>>,
    /// What waits for its turn.
    due: VecDeque<Due>,
    /// It waits for a turn.
    is_in_turn: bool,
    /// Commands under way.
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Renewals that are done and not told yet.
    acks: Vec<(i64, Extended)>,
    /// How often the client was last told to send heartbeats.
    interval_ms: u64,
    _share: Share,
}

impl Broker {
    /// Serves a stream: what its client asks comes in, what it is told goes out. It ends when
    /// `asked` does, after [`Asked::Close`], when the client is gone, when it has become too
    /// old, or when the caller's credential expires.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`] if there are too many streams.
    pub fn hold(
        &self,
        caller: StreamCaller,
        asked: BoxStream<'static, Asked>,
        tell: Tell,
    ) -> Result<(), LockError> {
        let share = self.quotas.stream(&caller.name).map_err(LockError::from);
        let share = share.inspect_err(|error| self.metrics.over_quota(error))?;
        let (id, news) = self.streams.open(self.store.broker());
        let ages_at = Instant::now() + self.stream_age.jittered();
        // Boxed, or the task would hold it twice.
        let stream = Box::new(Stream {
            broker: self.clone(),
            caller: caller.name,
            id,
            tell,
            phase: Phase::Open,
            heartbeats: Arc::default(),
            went_back: 0,
            heard: Instant::now(),
            silence: Silence::None,
            ages_at: caller
                .moves_at
                .map_or(ages_at, |moves_at| ages_at.min(moves_at)),
            is_old: false,
            expires: caller.expires,
            may: None,
            leases: HashMap::new(),
            graced: None,
            waits: HashMap::new(),
            calls: FuturesUnordered::new(),
            answers: FuturesUnordered::new(),
            due: VecDeque::new(),
            is_in_turn: false,
            jobs: FuturesUnordered::new(),
            acks: Vec::new(),
            interval_ms: 0,
            _share: share,
        });
        self.tasks.spawn(stream.run(asked, news));
        Ok(())
    }
}

impl Stream {
    async fn run(mut self: Box<Self>, mut asked: BoxStream<'static, Asked>, news: Arc<News>) {
        let draining = self.broker.draining.clone();
        let mut draining = pin!(draining.cancelled().fuse());
        let mut timer = pin!(sleep_until(self.ages_at));
        let mut is_read = false;
        while self.phase == Phase::Open || self.phase != Phase::Left && !self.jobs.is_empty() {
            // One that is too early does no harm, and most times move on with each heartbeat.
            let due = self.due();
            if let Some(due) = due.filter(|due| *due < timer.deadline() || timer.is_elapsed()) {
                timer.as_mut().reset(due);
            }
            tokio::select! {
                next = asked.next(), if !is_read => match next {
                    Some(next) => self.asked(next),
                    None => {
                        is_read = true;
                        self.break_off();
                    }
                },
                Some(()) = self.calls.next() => {}
                Some(done) = self.answers.next() => self.done(done),
                Some(done) = self.jobs.next() => self.done(done),
                elsewhere = news.next() => self.elsewhere(elsewhere),
                () = &mut timer, if due.is_some() => self.look_at_the_time(),
                () = &mut draining => self.say_reconnect(self.broker.drained_within()),
            }
            while let Some(Some(())) = self.calls.next().now_or_never() {}
            while let Some(Some(done)) = self.answers.next().now_or_never() {
                self.done(done);
            }
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.done(done);
            }
            self.acknowledge();
        }
        self.broker.streams.close(self.id);
        for (lease_id, owned) in self.leases.drain() {
            let ends_in = owned.expiry();
            self.broker.quotas.keep(lease_id, owned.places, ends_in);
        }
        self.answers.clear();
        let calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            self.broker.tasks.spawn(calls.collect::<()>());
        }
        if self.went_back > 0 {
            debug!(count = self.went_back, "heartbeats went back");
        }
        if !is_read {
            // What comes now is for nobody: its client was told, or does not listen.
            let _ = timeout(READ_ON, asked.for_each(|_| std::future::ready(()))).await;
        }
    }

    fn asked(&mut self, asked: Asked) {
        if self.phase != Phase::Open {
            return;
        }
        match asked {
            Asked::Heartbeat { sequence } => self.beat(sequence),
            Asked::Acquire {
                call_id,
                call,
                number,
                traced,
            } => self.acquire((call_id, traced), *call, number),
            Asked::Cancel { call_id } => {
                if let Some(wait) = self.waits.get(&call_id) {
                    wait.give_up.cancel();
                }
            }
            Asked::Attach {
                call_id,
                lease,
                number,
                traced,
            } => {
                // It waits for no lock, so that there is nothing to give up.
                let is_admitted = self.admit(call_id, Some(lease.lease_id), Vec::new());
                if is_admitted.is_some() {
                    spans::about(&traced, lease.locks.iter().map(|held| &held.lock));
                    spans::lease_id(&traced, lease.lease_id);
                    self.due_next(Due::Attach(Box::new(Attach {
                        call_id,
                        lease,
                        number,
                        traced,
                    })));
                }
            }
            Asked::Release {
                call_id,
                lease_id,
                lock,
                entry,
            } => {
                let call_id = Some(call_id);
                let what = match (&lock, entry) {
                    (None, _) => Release::All,
                    (Some(_), None) => Release::Lock,
                    (Some(_), Some(entry)) => Release::Entry(entry),
                };
                let todo = Todo::Release {
                    call_id,
                    lock,
                    what,
                };
                self.todo(lease_id, todo);
            }
            Asked::Detach { call_id, lease_id } => self.todo(lease_id, Todo::Detach { call_id }),
            Asked::Refresh { call_id, expires } => {
                self.expires = expires;
                self.tell(Told::Done { call_id });
            }
            Asked::Expire => self.credential_expired(),
            Asked::Restrict { may } => self.restrict(may),
            Asked::Close => self.close(),
        }
    }

    /// A heartbeat came: every lease is renewed. One that goes back is ignored.
    fn beat(&mut self, sequence: i64) {
        if !self.heartbeats.read(sequence) {
            self.went_back += 1;
            return;
        }
        self.hear();
        for (lease_id, owned) in &mut self.leases {
            owned.unanswered = Some(sequence);
            owned.slack.beat(owned.ttl);
            if owned.becomes_due() {
                self.due.push_back(Due::Renew(*lease_id));
            }
        }
        self.take_turns(None);
    }

    fn hear(&mut self) {
        self.heard = Instant::now();
        self.silence = Silence::None;
    }

    fn acquire(&mut self, (call_id, traced): (i64, Traced), call: AcquireCall, number: u32) {
        let under = call.under.as_ref().map(|lease| lease.lease_id);
        let locks = call.targets.iter().map(|target| target.lock.clone());
        let Some(give_up) = self.admit(call_id, under, locks.collect()) else {
            return;
        };
        self.hear();
        let on = OnStream {
            call_id,
            attachment: self.attachment(number),
            heartbeats: Arc::clone(&self.heartbeats),
            tell: Arc::clone(&self.tell),
            give_up,
            traced,
        };
        let first = call.first().clone();
        let (call, answer) = self.broker.begin(&self.caller, call, Some(on));
        self.calls.push(Box::pin(call));
        self.answers.push(Box::pin(async move {
            Done::Acquired {
                call_id,
                number,
                result: ended(&first, answer.await),
            }
        }));
    }

    /// Notes a call that wants one more lease, unless it is about one that is here, or refuses it.
    fn admit(
        &mut self,
        call_id: i64,
        lease_id: Option<LeaseId>,
        locks: Vec<LockKey>,
    ) -> Option<CancellationToken> {
        let is_here = lease_id.is_some_and(|lease_id| self.leases.contains_key(&lease_id));
        let leases = if is_here { 0 } else { self.leases.len() };
        let why = if self.waits.contains_key(&call_id) {
            Refusal::CallIdReused
        } else if leases + self.waits.len() >= LEASES_MAX {
            Refusal::TooManyLeases
        } else {
            let give_up = CancellationToken::new();
            let wait = Wait {
                give_up: give_up.clone(),
                locks,
                is_denied: false,
            };
            self.waits.insert(call_id, wait);
            return Some(give_up);
        };
        self.tell(Told::Refused { call_id, why });
        None
    }

    fn attachment(&self, number: u32) -> Attachment {
        let stream = self.id;
        Attachment { stream, number }
    }

    fn close(&mut self) {
        self.phase = Phase::Closing;
        self.give_up_waits();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.give_back(lease_id, Release::All);
        }
        // What is granted meanwhile is given back, too.
        let answers = std::mem::take(&mut self.answers);
        self.jobs.extend(answers);
    }

    /// The client is gone: its leases run out, or end after their disconnect_grace; its waits end a
    /// while later, unless they come again.
    fn break_off(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Broken;
        self.waits.clear();
        self.answers.clear();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.lapse_later(lease_id);
        }
    }

    fn give_up_waits(&self) {
        self.waits.values().for_each(|wait| wait.give_up.cancel());
    }

    fn tell(&mut self, told: Told) {
        if self.phase != Phase::Broken && !(self.tell)(told) {
            self.break_off();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::store::stub::Stub;

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_the_broker_ends_is_read_for_two_seconds_more() {
        let (asks, mut asked) = mpsc::channel(1);
        let expires = Instant::now() + QUEUE_GRACE;
        let caller = StreamCaller {
            name: Arc::default(),
            expires: Some(expires),
            moves_at: None,
        };
        let asked = stream::poll_fn(move |cx| asked.poll_recv(cx)).boxed();
        let broker = Broker::alone(Arc::new(Stub::default()));
        let held = broker.hold(caller, asked, Arc::new(|_| true));
        held.expect("there is room");
        sleep_until(expires + READ_ON / 2).await;
        for sequence in 0..100 {
            let heartbeat = Asked::Heartbeat { sequence };
            asks.send(heartbeat).await.expect("it is read");
        }
        asks.closed().await;
        let read_on = expires.elapsed();
        assert!(read_on.abs_diff(READ_ON) < RETRY, "{read_on:?}");
    }
}
