//! The RedLock store: several independent Redis masters, of which a quorum must hold a lock.

mod election;
mod endings;
pub mod init;
mod keeper;
mod line;
mod lines;
mod list;
mod member;
mod nodes;
mod start;
mod taken;
mod taken_back;
mod tally;
mod verdicts;
mod vote;
mod votes;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use rand::Rng as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::start::{check_addresses, nodes};
use self::{
    election::{Elected, Wants},
    line::{Answer, Joined, Left, Standing},
    lines::Lines,
    member::Question,
    nodes::Nodes,
    taken::TakeBack,
    taken_back::TakenBack,
    tally::Together,
    verdicts::Seen,
};
use super::{
    Acquired, Attached, Cancelled, Checked, Cursor, Event, LimitSet, Listed, Listener, Moved,
    Released, Renewed, Revoked, Store, StoreError, Touched,
    redis::{
        decode,
        scripts::{Tells, Verb},
    },
};
use crate::lock::{
    Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, Grant, LeaseRef,
    LockKey, LockState, Mode, Release, RequestHash, Revoke, SHOWN_MAX, Ttl, Under, Via,
};

/// A call is answered within a second, whatever the nodes do.
const WITHIN: Duration = Duration::from_millis(900);
/// Nodes tell of a release one after the other, and other brokers hear of it, too.
const AFTER_RELEASE_MS: std::ops::Range<u64> = 1..10;

const EXCLUSIVE_ONLY: &str = "locks on several independent Redis servers are exclusive: shared locks \
    and semaphores would have to be counted, and no server knows of all their holders";
const NO_LIMITS: &str =
    "locks on several independent Redis servers are exclusive, and have no limits to set";

const NO_WATCH: &str = "locks on several independent Redis servers cannot be watched: no server knows \
    what the others granted. List them instead";

/// One broker's connection to the nodes.
pub struct RedlockStore(Arc<Shared>);

/// What the store's tasks share.
struct Shared {
    broker: BrokerId,
    nodes: Nodes,
    lines: Arc<Lines>,
    deployment_key: DeploymentKey,
    listener: Arc<OnceLock<Listener>>,
    stop: CancellationToken,
}

impl Shared {
    /// Asks the nodes for what a call has already.
    async fn ask(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        let elected = self.elect(acquire, false).await?;
        Ok(elected.told(self.lines.length(&acquire.lock)))
    }

    async fn elect(&self, acquire: &Acquire, new: bool) -> Result<Elected, StoreError> {
        let tells = Tells::Never;
        let elected = self.nodes.elect(acquire, Wants { new, tells }).await?;
        if let Elected::Granted(_, moved) = &elected {
            self.tell_moved(&acquire.lock, *moved);
        }
        Ok(elected)
    }

    /// Asks the nodes for a call that does not wait. While only parts of the lock are taken it tries
    /// on as the first in line, for half a second: else all who try at once might get nothing.
    async fn try_now(self: &Arc<Self>, acquire: &Acquire) -> Result<Acquired, StoreError> {
        let lock = &acquire.lock;
        let is_free = self.lines.length(lock) == 0;
        let elected = self.elect(acquire, is_free).await?;
        if is_free && elected.is_split() {
            if let Joined::First(answer) = self.enter(acquire) {
                return first(answer).await;
            }
            // Another call of this broker was sooner.
            self.lines.leave(lock, acquire.request, acquire.attempt);
        }
        Ok(elected.told(self.lines.length(lock)))
    }

    fn enter(self: &Arc<Self>, acquire: &Acquire) -> Joined {
        let (joined, is_new) = self.lines.join(acquire);
        if is_new {
            let keeper = Arc::clone(self).keep_line(acquire.lock.clone());
            self.nodes.tasks().spawn(keeper);
        }
        joined
    }

    /// The first to come asks the nodes at once. Who comes later may hold the lock already, and else
    /// waits for its turn.
    async fn join(self: &Arc<Self>, acquire: &Acquire) -> Result<Acquired, StoreError> {
        let lock = &acquire.lock;
        let standing = match self.enter(acquire) {
            Joined::Refused(refused) => return Ok(refused),
            Joined::Again(standing) => return Ok(queued(standing)),
            Joined::First(answer) => return first(answer).await,
            Joined::Behind(standing) => standing,
        };
        match self.ask(acquire).await {
            Ok(Acquired::Held(_)) => Ok(queued(standing)),
            Err(StoreError::Recovering { .. }) if acquire.rejoin => Ok(queued(standing)),
            known => {
                self.lines.leave(lock, acquire.request, acquire.attempt);
                known
            }
        }
    }

    fn tell(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    /// A lease has left a stream. Streams of other brokers were told by the nodes.
    fn tell_moved(&self, lock: &LockKey, moved: Option<Moved>) {
        if let Some(moved) = moved.filter(|moved| moved.from.stream.broker == self.broker) {
            self.tell(Event::Moved(lock.clone(), moved));
        }
    }
}

#[async_trait]
impl Store for RedlockStore {
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        let Self(shared) = self;
        if acquire.mode != Mode::Exclusive {
            return Err(StoreError::Unsupported(EXCLUSIVE_ONLY));
        }
        match acquire.under {
            // An entry never waits, and needs nothing new.
            Under::Grant(_) => shared.ask(acquire).await,
            Under::NewLease | Under::Lease if acquire.wait_ms > 0 => shared.join(acquire).await,
            Under::NewLease | Under::Lease => shared.try_now(acquire).await,
        }
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError> {
        let asked = lease.clone();
        let question = Question::new(Verb::Renew, decode::renewed, move |preamble| {
            preamble.renew(&asked, ttl, via)
        });
        let (read, ends) = (verdicts::extended, verdicts::ends_renewed);
        let together = self.0.nodes.settle_life(&question, read, ends).await?;
        Ok(match verdicts::renewed(together) {
            Renewed::Extended(grant) => Renewed::Extended(self.with_line(&lease.lock, grant)),
            refused @ (Renewed::Elsewhere
            | Renewed::MaxHold
            | Renewed::Revoked { .. }
            | Renewed::Expired
            | Renewed::Released
            | Renewed::NotFound) => refused,
        })
    }

    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError> {
        let asked = lease.clone();
        let question = Question::new(Verb::Attach, decode::attached, move |preamble| {
            preamble.attach(&asked, to)
        });
        let (read, ends) = (verdicts::attached, verdicts::ends_attached);
        let attached = match self.0.nodes.settle_life(&question, read, ends).await? {
            Together::Refused(refusals) => return Ok(verdicts::not_attached(refusals)),
            Together::Wanted(attached) => attached,
        };
        let moved = attached.iter().find_map(|(_, moved)| *moved);
        self.0.tell_moved(&lease.lock, moved);
        let grants: Vec<_> = attached.into_iter().map(|(grant, _)| grant).collect();
        let grant = verdicts::one_grant(&grants);
        Ok(grant.map_or(Attached::NotFound, |grant| {
            Attached::Attached(self.with_line(&lease.lock, grant))
        }))
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError> {
        let asked = lease.clone();
        let question = Question::new(Verb::Release, decode::released, move |preamble| {
            preamble.release(&asked, release, via).telling()
        });
        let together = self.0.nodes.settle(&question, verdicts::given_back).await?;
        self.0.lines.wake(&lease.lock, Duration::ZERO);
        Ok(verdicts::released(together))
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        let Self(shared) = self;
        let by = match shared.lines.leave(lock, request, attempt) {
            (Left::NotHere, TakeBack::Attempt(by)) if by == attempt => by,
            (left, take_back) => {
                // It may be under way to the nodes, all the same.
                shared.nodes.take_back_everywhere(lock, request, attempt);
                match (left, take_back) {
                    (Left::Line, _) => return Ok(Cancelled::Dequeued),
                    (Left::Others, _) | (_, TakeBack::Nothing) => return Ok(Cancelled::Kept),
                    (Left::NotHere, TakeBack::Attempt(by)) => by,
                }
            }
        };
        let key = lock.clone();
        let question = Question::new(Verb::Cancel, decode::cancelled, move |preamble| {
            preamble.cancel(&key, request, by).telling()
        });
        let mut taken_back = TakenBack::new(shared.nodes.count());
        shared.nodes.hear(&question, &mut taken_back).await;
        let cancelled = taken_back.together()?;
        shared.lines.wake(lock, Duration::ZERO);
        Ok(cancelled)
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        let (waits, held) = self.0.lines.touched(lock, self.0.broker);
        Ok(Touched {
            rejoin: !waits,
            next_event_ms: 0,
            held,
            more_from: None,
            era: None,
        })
    }

    async fn set_limit(
        &self,
        _lock: &LockKey,
        _limit: Option<u32>,
    ) -> Result<LimitSet, StoreError> {
        Err(StoreError::Unsupported(NO_LIMITS))
    }

    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError> {
        let asked = revoke.clone();
        let question = Question::new(Verb::Revoke, decode::revoked, move |preamble| {
            preamble.revoke(&asked).telling()
        });
        let taken = match self.0.nodes.settle(&question, verdicts::taken).await? {
            Together::Refused(refusals) => return Ok(verdicts::not_taken(refusals)),
            Together::Wanted(taken) => taken,
        };
        let queue_length = self.0.lines.length(&revoke.lock);
        let revoked = verdicts::all_taken(taken, queue_length);
        if let Some(revocation) = revoked.to_tell(revoke) {
            self.0.lines.wake(&revoke.lock, Duration::ZERO);
            if revocation.on.stream.broker == self.0.broker {
                self.0.tell(Event::Revoked(revoke.lock.clone(), revocation));
            }
        }
        Ok(revoked)
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        let nodes = &self.0.nodes;
        let key = lock.clone();
        let question = Question::new(Verb::Get, decode::state, move |preamble| {
            preamble.get(&key, SHOWN_MAX)
        });
        let mut seen = Seen::new(nodes.count());
        nodes.hear(&question, &mut seen).await;
        let state = seen.together()?;
        Ok(state.map(|state| self.with_waiters(lock, state)))
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        self.step(filter, from, most).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        let key = lock.clone();
        let question = Question::new(Verb::Check, decode::checked, move |preamble| {
            preamble.check(&key, token)
        });
        let together = self.0.nodes.settle(&question, verdicts::live).await?;
        Ok(verdicts::checked(together))
    }

    async fn watch(&self) -> Result<(), StoreError> {
        Err(StoreError::Unsupported(NO_WATCH))
    }

    fn broker(&self) -> BrokerId {
        self.0.broker
    }

    fn recovering_ms(&self) -> Option<u64> {
        None
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.0.nodes.ready(Instant::now() + WITHIN).await?;
        Ok(self.0.deployment_key.clone())
    }

    fn listen(&self, listener: Listener) {
        let _ = self.0.listener.set(listener);
    }
}

impl RedlockStore {
    /// The nodes know of no line.
    fn with_line(&self, lock: &LockKey, grant: Grant) -> Grant {
        Grant {
            queue_length: self.0.lines.length(lock),
            ..grant
        }
    }

    fn with_waiters(&self, lock: &LockKey, state: LockState) -> LockState {
        let (queue_length, waiters) = self.0.lines.shown(lock);
        LockState {
            queue_length,
            waiters,
            ..state
        }
    }
}

async fn first(answer: Answer) -> Result<Acquired, StoreError> {
    let stops = |_| StoreError::Unavailable("the broker stops".to_owned());
    answer.await.map_err(stops)?
}

/// A call has joined the line, which is this broker's own. That line knows no tokens, so that
/// every hand-off is claimed.
fn queued(Standing { place, position }: Standing) -> Acquired {
    Acquired::Queued {
        next_event_ms: 0,
        place,
        position,
        last_fencing_token: 0,
        era: None,
    }
}

/// How long to wait after a node has told of a release.
fn after_release() -> Duration {
    Duration::from_millis(rand::thread_rng().gen_range(AFTER_RELEASE_MS))
}
