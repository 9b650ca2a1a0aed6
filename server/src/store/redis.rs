//! Redis store. Each verb is one script, which runs on the verified node that has the lock.

mod batcher;
mod clock;
mod cluster;
mod connect;
pub mod connection;
pub mod credentials;
pub mod era;
pub mod era_decision;
mod era_sync;
pub mod error_table;
mod former_master;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod health_check;
pub mod init;
mod largest_token;
pub(super) mod listing;
pub mod location;
mod log_throttle;
pub mod node;
mod overload;
mod owner_codec;
pub(super) mod pubsub;
mod renewals;
mod replication;
mod replication_barrier;
mod reply;
mod routing;
pub mod script;
pub mod scripts;
mod silence;
mod span_keeper;
pub mod span_limit;
pub mod supervisor;
pub mod tls;
mod verify;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::reply::ScriptReply;
use self::{
    cluster::{Router, slot::slot_of},
    connection::{NodeError, RedisConfig},
    location::StoreLocation,
    node::{Node, ScriptError},
    pubsub::{WatchInterest, event_handler, shared_channel},
    renewals::RENEWALS_PER_RUN,
    routing::{Route, RouteState, Topology},
    scripts::{Preamble, ScriptCall, Scripts, calls},
    supervisor::{Channel, Subscription, Supervisor},
};
use super::{
    Acquired, Cancelled, Checked, Cursor, EraId, Event, HandOff, LeaseEndEvent, LeaseReply,
    LimitSet, Listed, Listener, MovedLease, Outcome, RecoveryState, Released, Renewal, Revoked,
    Store, StoreError, StorePart, Touched,
};
use crate::lock::{
    AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId, CloseCommand,
    DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, INSPECT_ENTRIES_MAX, LeaseRef,
    LockKey, LockState, ReleaseScope, RequestHash, RevokeCommand, WAITERS_MAX, span_ms,
};

/// Time limit of a call: within a second the caller has a reply, whatever the store does.
const CALL_TIMEOUT: Duration = Duration::from_millis(900);

/// A store that keeps its locks in Redis, used by one broker.
pub struct RedisStore {
    broker: BrokerId,
    key_prefix: String,
    scripts: Scripts,
    topology: Topology,
    listener: Arc<OnceLock<Listener>>,
    watch_interest: Arc<WatchInterest>,
}

impl RedisStore {
    /// Connects to the server and verifies it. Returns an error in plain sentences if that fails.
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
        let watch_interest = Arc::new(WatchInterest::none());
        let (interest, prefix) = (Arc::clone(&watch_interest), key_prefix.clone());
        let channel = Channel {
            name: format!("{key_prefix}b:{broker}"),
            shared_name: shared_channel(&key_prefix),
            messages_max,
        };
        let on_event = event_handler(Arc::clone(&listener), prefix, broker, interest);
        let subscription = Subscription { channel, on_event };
        let nodes = match config.location.clone() {
            StoreLocation::Cluster(seeds) => {
                let router = Router::start(config, seeds, all, subscription, tasks, stop);
                Topology::Cluster(router.await?)
            }
            StoreLocation::Server(_) | StoreLocation::Sentinel(_) => {
                Topology::Single(Supervisor::start(config, all, subscription, tasks, stop).await?)
            }
        };
        Ok(Self {
            broker,
            key_prefix,
            scripts,
            topology: nodes,
            listener,
            watch_interest,
        })
    }

    async fn call<T>(&self, call: &ScriptCall<T>) -> Result<T, StoreError> {
        let (_, reply) = self.call_on_node(call).await?;
        Ok(reply)
    }

    /// Runs one script like [`Self::run_call`]. Its error says why the store recovers.
    async fn call_on_node<T>(&self, call: &ScriptCall<T>) -> Result<(Route, T), StoreError> {
        let result = self.run_call(call).await;
        result.map_err(|error| error.with_recovery(|| self.topology.recovery_of(call.lock())))
    }

    /// Runs one script. Grants to waiters of this broker are sent as events. The script itself has
    /// notified the other brokers of grants to their waiters.
    async fn run_call<T>(&self, call: &ScriptCall<T>) -> Result<(Route, T), StoreError> {
        let lock = call.lock();
        let mut route_state = RouteState::new(lock, call.verb(), CALL_TIMEOUT);
        let (route, sent, script_reply) = loop {
            let route = self.topology.next_route(&mut route_state).await?;
            if call.is_new_acquire() && route.node.is_overloaded() {
                return Err(StoreError::Overloaded);
            }
            let sent = Instant::now();
            let script_reply = timeout_at(route_state.deadline, self.run_script(&route, call));
            let script_reply = script_reply.await.map_err(|_| timeout_error())?;
            let script_reply = self
                .topology
                .follow_reply(&mut route_state, &route, script_reply)
                .await?;
            if let Some(script_reply) = script_reply {
                break (route, sent, script_reply);
            }
        };
        let reply = self.deliver(&route, lock, sent, script_reply).await?;
        Ok((route, reply))
    }

    /// Sends the events of a reply, and returns the reply to the caller.
    async fn deliver<T>(
        &self,
        route: &Route,
        lock: &LockKey,
        sent: Instant,
        script_reply: ScriptReply<T>,
    ) -> Result<T, StoreError> {
        self.report_ended(lock, script_reply.ended);
        let Outcome {
            reply,
            hand_offs,
            moved,
        } = script_reply
            .outcome
            .map_err(|rejected| route.rejection(rejected))?;
        self.report_outcome(lock, &route.node, hand_offs, sent, moved);
        if script_reply.more {
            self.grant_to_more(route, lock).await;
        }
        Ok(reply)
    }

    async fn run_script<T>(
        &self,
        route: &Route,
        call: &ScriptCall<T>,
    ) -> Result<ScriptReply<T>, ScriptError> {
        let node = &route.node;
        let preamble = self.preamble(route);
        let script = self.scripts.get(call.verb());
        let command = call.command(&preamble);
        let value = node.run(script, route.mode, command).await?;
        Ok(node.decode_reply(call, value, &preamble)?)
    }

    fn preamble<'a>(&'a self, route: &'a Route) -> Preamble<'a> {
        Preamble {
            key_prefix: &self.key_prefix,
            broker: self.broker,
            not_after_ms: route.node.not_after_ms(),
            era_id: route.era_id(),
            era_tag: route.era_tag(),
            is_sharded: route.node.shards().is_some(),
            is_watched: self.watch_interest.is_active(),
        }
    }

    /// Records the span and the token of a renewed lock.
    fn record_grant(&self, lock: &LockKey, grant: &Grant) {
        self.topology.record_span(grant.span_ms);
        self.topology.record_token(lock, grant.fencing_token);
    }

    /// Sends an event for each lease that a command of this broker found to be expired.
    fn report_ended(&self, lock: &LockKey, ended: Vec<LeaseEndEvent>) {
        let ended = ended.into_iter();
        ended.for_each(|ending| self.emit(Event::Ended(lock.clone(), ending)));
    }

    /// Grants the lock to further waiters. A script examines a bounded number of waiters, and each
    /// touch continues where the last script stopped. After a failure the next touch of any broker
    /// with waiters for the lock continues.
    async fn grant_to_more(&self, route: &Route, lock: &LockKey) {
        loop {
            let sent = Instant::now();
            let reply = self.run_script(route, &calls::touch(lock, 1)).await;
            let Ok(ScriptReply {
                outcome: Ok(outcome),
                more,
                ended,
                ..
            }) = reply
            else {
                return;
            };
            self.report_ended(lock, ended);
            if outcome.reply.rejoin {
                self.emit(Event::Rejoin(lock.clone()));
            }
            self.report_outcome(lock, &route.node, outcome.hand_offs, sent, None);
            if !more {
                return;
            }
        }
    }

    fn report_outcome(
        &self,
        lock: &LockKey,
        node: &Node,
        hand_offs: Vec<HandOff>,
        sent: Instant,
        moved: Option<MovedLease>,
    ) {
        if let Some(moved) = moved.filter(|moved| moved.from.stream.broker == self.broker) {
            self.emit(Event::Moved(lock.clone(), moved));
        }
        for hand_off in node.mark_provisional(hand_offs) {
            self.topology.record_token(lock, hand_off.fencing_token);
            if hand_off.broker == self.broker {
                self.emit(Event::HandOff(lock.clone(), hand_off, Some(sent)));
            }
        }
    }

    fn emit(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        let call = calls::acquire(acquire, WAITERS_MAX);
        self.topology.record_span(span_ms(
            acquire.ttl.as_millis(),
            acquire.options.lock_delay_ms,
        ));
        let (route, mut acquired) = self.call_on_node(&call).await?;
        if let Acquired::Granted(grant) = &acquired {
            self.topology
                .record_token(&acquire.lock, grant.fencing_token);
            route.node.replicated().await?;
        }
        if let Acquired::Queued {
            next_event_ms, era, ..
        } = &mut acquired
        {
            subscribe_to_hand_offs(&route.node, &acquire.lock, next_event_ms).await;
            *era = EraId::new(route.era_id());
        }
        Ok(acquired)
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let call = calls::renew(lease, renewal.ttl, renewal.expected_attachment);
        let (route, renewed) = self.call_on_node(&call).await?;
        if let Ok(grant) = &renewed {
            self.record_grant(&lease.lock, grant);
            route.node.replicated().await?;
        }
        Ok(renewed)
    }

    async fn renew_many(
        &self,
        leases: &[LeaseRef],
        renewal: Renewal,
    ) -> Vec<Result<LeaseReply<Grant>, StoreError>> {
        let chunks = leases.chunks(RENEWALS_PER_RUN);
        let renewed = join_all(chunks.map(|chunk| self.renew_chunk(chunk, renewal))).await;
        renewed.into_iter().flatten().collect()
    }

    fn part_of(&self, lock: &LockKey) -> StorePart {
        match self.topology.is_cluster() {
            true => StorePart(slot_of(lock)),
            false => StorePart::default(),
        }
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let attached = self.call(&calls::attach(lease, to)).await?;
        if let Ok(grant) = &attached {
            self.topology.record_token(&lease.lock, grant.fencing_token);
        }
        Ok(attached)
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.call(&calls::release(lease, release, via)).await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.call(&calls::cancel(lock, request, attempt)).await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        let touch = async |from| self.call_on_node(&calls::touch(lock, from)).await;
        let (mut route, mut touched) = touch(1).await?;
        while let Some(from) = touched.more_from.take() {
            let more;
            (route, more) = touch(from).await?;
            touched.held.extend(more.held);
            touched.rejoin |= more.rejoin;
            touched.more_from = more.more_from;
        }
        for hand_off in &touched.held {
            self.topology.record_token(lock, hand_off.fencing_token);
        }
        subscribe_to_hand_offs(&route.node, lock, &mut touched.next_event_ms).await;
        Ok(Touched {
            held: route.node.mark_provisional(touched.held),
            era: EraId::new(route.era_id()),
            ..touched
        })
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.call(&calls::set_limit(lock, limit)).await
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        let (route, closure) = self.call_on_node(&calls::close(close)).await?;
        route.node.replicated().await?;
        Ok(closure)
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.call(&calls::open(lock)).await
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        let revoked = self.call(&calls::revoke(revoke)).await?;
        if let Ok(Revoked::Taken(lease)) = &revoked
            && let Some(revocation) = lease.to_revocation(revoke)
            && revocation.attachment.stream.broker == self.broker
        {
            self.emit(Event::Revoked(revoke.lock.clone(), revocation));
        }
        Ok(revoked)
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.call(&calls::get(lock, INSPECT_ENTRIES_MAX)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        listing::list_step(self, filter, from, page_max).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.call(&calls::check(lock, token)).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        let node = self.topology.any_node(CALL_TIMEOUT).await?;
        let channel = shared_channel(&self.key_prefix);
        node.publish(&channel, &channel).await?;
        self.watch_interest.refresh();
        Ok(())
    }

    fn broker(&self) -> BrokerId {
        self.broker
    }

    fn recovery(&self) -> RecoveryState {
        self.topology.recovery()
    }

    fn recovery_of(&self, lock: &LockKey) -> Option<ActiveRecovery> {
        self.topology.recovery_of(lock)
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        let node = self.topology.any_node(CALL_TIMEOUT).await?;
        Ok(node.deployment_key())
    }

    fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }
}

fn timeout_error() -> StoreError {
    StoreError::Unavailable("no answer in time".to_owned())
}

/// Subscribes the node to the sharded channel of the lock's slot if brokers use sharded channels,
/// because a call of this broker waits in the queue of that lock. If the subscription is new, the
/// lock is to be touched at once.
async fn subscribe_to_hand_offs(node: &Node, lock: &LockKey, next_event_ms: &mut Option<u64>) {
    if let Some(shards) = node.shards()
        && shards.ensure_subscribed(slot_of(lock)).await
    {
        *next_event_ms = Some(1);
    }
}
