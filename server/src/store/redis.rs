//! The Redis store: each verb is one script, run on the one verified node that has the lock.

mod answers;
mod batches;
pub(in crate::store) mod changes;
mod clock_step;
mod clocks;
mod cluster;
mod complaints;
pub mod connection;
pub mod decide;
pub mod era;
mod former;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gate;
pub mod init;
pub(super) mod list;
pub mod login;
pub mod node;
mod nodes;
mod open;
mod owner;
pub mod place;
mod probe;
pub mod refusal;
mod replication;
pub mod script;
pub mod scripts;
mod settle;
mod silence;
pub(super) mod slice;
pub mod supervisor;
pub mod tls;
pub(super) mod told;
mod traced;
mod verify;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use fred::types::Value;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::answers::Answer;
use self::{
    changes::Watching,
    cluster::{Router, slot::slot_of},
    connection::{NodeError, RedisConfig},
    node::{Missed, Node},
    nodes::{Nodes, Target},
    place::Place,
    refusal::Refusal,
    scripts::{Command, Preamble, Scripts, Verb},
    supervisor::{Channel, Subscription, Supervisor},
    told::tell,
};
use super::{
    Acquired, Attached, Cancelled, Checked, Cursor, Ending, EraId, Event, HandOff, LimitSet,
    Listed, Listener, Moved, Outcome, Released, Renewed, Revoked, Store, StoreError, Touched,
};
use crate::lock::{
    Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, LeaseRef,
    LockKey, LockState, Release, RequestHash, Revoke, SHOWN_MAX, Ttl, Via, WAITERS_MAX,
};

pub mod decode {
    //! The answers of the scripts, for those who run them by themselves.
    pub use super::answers::{
        Voted, acquired, attached, cancelled, checked, limit_set, released, renewed, revoked,
        state, touched, voted,
    };

    /// One of them.
    pub type Decode<T> = fn(
        fred::types::Value,
        crate::lock::BrokerId,
    ) -> Result<super::Answer<T>, crate::store::StoreError>;
}

/// A call is answered within a second, whatever the store does.
const WITHIN: Duration = Duration::from_millis(900);

/// One broker's connection to Redis.
pub struct RedisStore {
    broker: BrokerId,
    key_prefix: String,
    scripts: Scripts,
    nodes: Nodes,
    listener: Arc<OnceLock<Listener>>,
    watching: Arc<Watching>,
}

impl RedisStore {
    /// Connects and verifies, or says in a plain sentence why that cannot be.
    pub async fn start(
        config: RedisConfig,
        broker: BrokerId,
        scripts: Scripts,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, NodeError> {
        let key_prefix = config.key_prefix.clone();
        let messages_max = config.messages_max;
        let all = scripts.all();
        let listener = Arc::new(OnceLock::new());
        let watching = Arc::new(Watching::nobody());
        let (hears, prefix) = (Arc::clone(&watching), key_prefix.clone());
        let channel = Channel {
            name: format!("{key_prefix}b:{broker}"),
            of_all: changes::channel(&key_prefix),
            messages_max,
        };
        let tell = tell(Arc::clone(&listener), prefix, broker, hears);
        let subscription = Subscription { channel, tell };
        let nodes = match config.place.clone() {
            Place::Cluster(seeds) => {
                let router = Router::start((config, seeds), all, subscription, tasks, stop);
                Nodes::Cluster(router.await?)
            }
            Place::Server(_) | Place::Sentinel(_) => {
                Nodes::One(Supervisor::start(config, all, subscription, tasks, stop).await?)
            }
        };
        Ok(Self {
            broker,
            key_prefix,
            scripts,
            nodes,
            listener,
            watching,
        })
    }

    async fn run<T>(
        &self,
        lock: &LockKey,
        verb: Verb,
        command: impl Fn(&Preamble<'_>) -> Command + Send + Sync,
        decode: fn(Value, BrokerId) -> Result<Answer<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let (_, reply) = self.run_on_node(lock, verb, command, decode).await?;
        Ok(reply)
    }

    /// Runs one script. What it granted to waiters of this broker goes out as events; those of
    /// other brokers were told by the script itself.
    async fn run_on_node<T>(
        &self,
        lock: &LockKey,
        verb: Verb,
        command: impl Fn(&Preamble<'_>) -> Command + Send + Sync,
        decode: fn(Value, BrokerId) -> Result<Answer<T>, StoreError>,
    ) -> Result<(Target, T), StoreError> {
        let mut course = self.nodes.course(lock, verb, WITHIN);
        let (target, sent, answer) = loop {
            let target = self.nodes.target(&mut course).await?;
            let sent = Instant::now();
            let answer = self.eval(&target, verb, &command, decode);
            let answer = self.nodes.answered(&mut course, &target, answer).await?;
            if let Some(answer) = answer {
                break (target, sent, answer);
            }
        };
        self.tell_ended(lock, answer.ended);
        let Outcome {
            reply,
            hand_offs,
            moved,
        } = answer.outcome.map_err(|refused| target.refused(refused))?;
        self.publish((lock, &target.node), (hand_offs, sent), moved);
        if answer.more {
            self.look_at_more(&target, lock).await;
        }
        Ok((target, reply))
    }

    async fn eval<T>(
        &self,
        target: &Target,
        verb: Verb,
        command: &(impl Fn(&Preamble<'_>) -> Command + Sync),
        decode: fn(Value, BrokerId) -> Result<Answer<T>, StoreError>,
    ) -> Result<Answer<T>, Missed> {
        let node = &target.node;
        let command = || {
            command(&Preamble {
                key_prefix: &self.key_prefix,
                broker: self.broker,
                not_after_ms: node.not_after_ms(),
                era_id: target.era_id(),
                era_tag: target.era_tag(),
                is_sharded: node.shards().is_some(),
                is_watched: self.watching.is_on(),
            })
        };
        let script = self.scripts.get(verb);
        let value = node.try_eval(script, target.way, &command).await?;
        let answer = decode(value, self.broker).map_err(|error| {
            node.complain(Refusal::ODD_REPLY, &error.to_string(), &command);
            Missed::Failed(error)
        })?;
        node.saw_time(answer.now_ms);
        Ok(answer)
    }

    /// Tells this broker of the leases whose time its command found to be over.
    fn tell_ended(&self, lock: &LockKey, ended: Vec<Ending>) {
        let ended = ended.into_iter();
        ended.for_each(|ending| self.tell(Event::Ended(lock.clone(), ending)));
    }

    /// A script looks at a bounded number of waiters; this goes on where it stopped. A failure is
    /// repaired by the next touch of any broker that has waiters for the lock.
    async fn look_at_more(&self, target: &Target, lock: &LockKey) {
        loop {
            let touch = |preamble: &Preamble<'_>| preamble.touch(lock, 1);
            let sent = Instant::now();
            let answer = self
                .eval(target, Verb::Touch, &touch, answers::touched)
                .await;
            let Ok(Answer {
                outcome: Ok(outcome),
                more,
                ended,
                ..
            }) = answer
            else {
                return;
            };
            self.tell_ended(lock, ended);
            if outcome.reply.rejoin {
                self.tell(Event::Rejoin(lock.clone()));
            }
            self.publish((lock, &target.node), (outcome.hand_offs, sent), None);
            if !more {
                return;
            }
        }
    }

    fn publish(
        &self,
        (lock, node): (&LockKey, &Node),
        (hand_offs, sent): (Vec<HandOff>, Instant),
        moved: Option<Moved>,
    ) {
        if let Some(moved) = moved.filter(|moved| moved.from.stream.broker == self.broker) {
            self.tell(Event::Moved(lock.clone(), moved));
        }
        for hand_off in node.to_be_claimed(hand_offs) {
            if hand_off.broker == self.broker {
                self.tell(Event::HandOff(lock.clone(), hand_off, Some(sent)));
            }
        }
    }

    fn tell(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.acquire(acquire, WAITERS_MAX);
        let run = self.run_on_node(&acquire.lock, Verb::Acquire, command, answers::acquired);
        let (target, mut acquired) = run.await?;
        if let Acquired::Granted(_) = acquired {
            target.node.replicated().await?;
        }
        if let Acquired::Queued {
            next_event_ms, era, ..
        } = &mut acquired
        {
            hear(&target.node, &acquire.lock, next_event_ms).await;
            *era = EraId::new(target.era_id());
        }
        Ok(acquired)
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.renew(lease, ttl, via);
        let run = self.run_on_node(&lease.lock, Verb::Renew, command, answers::renewed);
        let (target, renewed) = run.await?;
        if let Renewed::Extended(_) = renewed {
            target.node.replicated().await?;
        }
        Ok(renewed)
    }

    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.attach(lease, to);
        self.run(&lease.lock, Verb::Attach, command, answers::attached)
            .await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.release(lease, release, via);
        self.run(&lease.lock, Verb::Release, command, answers::released)
            .await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.cancel(lock, request, attempt);
        self.run(lock, Verb::Cancel, command, answers::cancelled)
            .await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        let touch = async |from| {
            let command = move |preamble: &Preamble<'_>| preamble.touch(lock, from);
            let run = self.run_on_node(lock, Verb::Touch, command, answers::touched);
            run.await
        };
        let (mut target, mut touched) = touch(1).await?;
        while let Some(from) = touched.more_from.take() {
            let more;
            (target, more) = touch(from).await?;
            touched.held.extend(more.held);
            touched.rejoin |= more.rejoin;
            touched.more_from = more.more_from;
        }
        hear(&target.node, lock, &mut touched.next_event_ms).await;
        Ok(Touched {
            held: target.node.to_be_claimed(touched.held),
            era: EraId::new(target.era_id()),
            ..touched
        })
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.set_limit(lock, limit);
        self.run(lock, Verb::SetLimit, command, answers::limit_set)
            .await
    }

    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.revoke(revoke);
        let revoked = self.run(&revoke.lock, Verb::Revoke, command, answers::revoked);
        let revoked = revoked.await?;
        if let Some(revocation) = revoked.to_tell(revoke)
            && revocation.on.stream.broker == self.broker
        {
            self.tell(Event::Revoked(revoke.lock.clone(), revocation));
        }
        Ok(revoked)
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.get(lock, SHOWN_MAX);
        self.run(lock, Verb::Get, command, answers::state).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        list::step(self, filter, from, most).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        let command = |preamble: &Preamble<'_>| preamble.check(lock, token);
        self.run(lock, Verb::Check, command, answers::checked).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        let node = self.nodes.any(WITHIN).await?;
        let channel = changes::channel(&self.key_prefix);
        node.publish(&channel, &channel).await?;
        self.watching.heard();
        Ok(())
    }

    fn broker(&self) -> BrokerId {
        self.broker
    }

    fn recovering_ms(&self) -> Option<u64> {
        self.nodes.recovering_ms()
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.nodes.deployment_key(WITHIN).await
    }

    fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }
}

/// Where brokers listen to sharded channels: has the node hear of a line in which calls of this broker
/// wait. If it did not until now the line is to be touched at once.
async fn hear(node: &Node, lock: &LockKey, next_event_ms: &mut u64) {
    if let Some(shards) = node.shards()
        && shards.hear(slot_of(lock)).await
    {
        *next_event_ms = 1;
    }
}
