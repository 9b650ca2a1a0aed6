//! Redis Cluster: tracking of the masters and their slots, a node for each master, routing of calls
//! to the master of their slot, and deduplication of the events of the nodes.

pub(super) mod init;
pub(super) mod redirect;
pub(super) mod sharded_subscriptions;
pub(super) mod slot;
pub(super) mod slot_era_sync;
pub(super) mod slot_eras;
mod slot_map;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    select,
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

#[cfg(feature = "fuzzing")]
pub(super) use self::slot_map::read_slots;
use self::{
    redirect::Redirect,
    slot::{ranges, slot_of, slot_of_key, tag_of},
    slot_era_sync::SlotContext,
    slot_map::{SlotMap, SlotMapReply, newest, query_servers},
};
use super::{
    clock::skew_warning,
    connect::NodePlan,
    connection::{NodeError, RedisConfig},
    listing::ListedServer,
    location::{Address, MasterResolver},
    log_throttle::LogThrottle,
    node::{ExecMode, Node},
    pubsub::{is_changes, lock_key_of},
    routing::Route,
    script::Script,
    scripts::EraUse,
    supervisor::{NodeEvent, Subscription, Supervisor, SupervisorConfig},
};
use crate::{
    lock::{ActiveRecovery, FencingToken, LockKey},
    store::StoreError,
};

/// Pause between two attempts to find a node.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Interval at which the slot map is read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval while a master is missing, because another server may have replaced it.
const INCOMPLETE_REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum time between two readings of the slot map, however many calls are redirected.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
/// Number of masters that are queried at a time.
const QUERIED_MAX: usize = 3;
/// Time for a master with a node to return its slot map.
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for which a server without slots is kept after its last use.
const IDLE_SERVER_TTL: Duration = Duration::from_secs(10);
/// Longest time for which a message from the former master of a slot may be in flight. It is longer
/// than it takes until every queue was touched at the new master.
const REASSIGNMENT_WINDOW: Duration = Duration::from_secs(2);
/// Number of redirects that a call follows, in case that servers redirect to each other.
const REDIRECTS_MAX: u32 = 12;
/// Number of redirects after which a call pauses before it follows the next one, so that the
/// servers can agree.
const REDIRECTS_BEFORE_PAUSE: u32 = 3;
const REDIRECT_PAUSE: Duration = Duration::from_millis(20);

type FirstOpen = oneshot::Receiver<Result<(), NodeError>>;

/// Router of calls to the masters of a cluster.
pub(super) struct Router {
    /// The parts from which the nodes of all masters are opened.
    plan: NodePlan,
    /// Servers that are configured.
    seeds: Vec<Address>,
    on_event: Box<dyn Fn(NodeEvent) + Send + Sync>,
    map: watch::Sender<Arc<SlotMap>>,
    /// Time at which a slot was last assigned to another master.
    last_reassigned_at: Mutex<Option<Instant>>,
    masters: Mutex<BTreeMap<Address, MasterHandle>>,
    /// Requests a new reading of the slot map.
    refresh_slot_map: Arc<Notify>,
    log_throttle: LogThrottle,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Reference for the nodes, which report events to the router.
    weak_self: Weak<Self>,
}

/// A server that is, or may become, the master of some slots.
struct MasterHandle {
    supervisor: Arc<Supervisor>,
    used_at: Instant,
    stop: CancellationToken,
}

/// Routing state of one call.
pub(super) struct SlotRoute {
    slot: u16,
    era_use: EraUse,
    /// Server to which the slot is moving and which may have the lock already.
    asking: Option<Address>,
    redirects: u32,
}

impl Router {
    /// Opens nodes on all masters that can be reached. Returns an error in plain sentences if there
    /// is no such master.
    pub(super) async fn start(
        config: RedisConfig,
        seeds: Vec<Address>,
        scripts: Arc<[Script]>,
        Subscription { channel, on_event }: Subscription,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, NodeError> {
        config.cluster_key()?;
        let (sender, map) = watch::channel(Arc::new(SlotMap::empty()));
        let slots = SlotContext::new(map);
        let router = Arc::new_cyclic(|me| Self {
            seeds,
            on_event,
            map: sender,
            last_reassigned_at: Mutex::default(),
            masters: Mutex::default(),
            refresh_slot_map: Arc::clone(&slots.refresh_slot_map),
            plan: NodePlan {
                config,
                scripts,
                processes: Arc::default(),
                channel,
                slots: Some(slots),
                span_use: Arc::default(),
                largest_token: Arc::default(),
            },
            log_throttle: LogThrottle::default(),
            tasks: tasks.clone(),
            stop: stop.child_token(),
            weak_self: Weak::clone(me),
        });
        if let Err(error) = router.open_all().await {
            router.stop.cancel();
            return Err(error);
        }
        let working = Arc::clone(&router);
        tasks.spawn(async move {
            select! {
                () = working.stop.cancelled() => {}
                never = working.keep_slot_map_fresh() => match never {},
            }
        });
        Ok(router)
    }

    async fn open_all(&self) -> Result<(), NodeError> {
        let wait = self.plan.config.wait_for_store;
        match query_servers(&self.plan.config, &self.seeds).await {
            Ok(map) => drop(self.map.send_replace(Arc::new(map))),
            Err(error @ NodeError::Unreachable(_)) if wait => {
                warn!("{error}");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let opening = self.open_missing_masters().into_iter();
        let opened = join_all(opening.map(async |(address, opened)| (address, opened.await))).await;
        let (mut missing, mut reason) = (Vec::new(), Vec::new());
        let map = Arc::clone(&self.map.borrow());
        let count = opened.len();
        for (address, opened) in opened {
            match opened {
                Ok(Ok(())) => {}
                Ok(Err(error @ NodeError::Unfit(_))) => return Err(error),
                Ok(Err(NodeError::Unreachable(error))) => {
                    missing.extend(map.slots_of(&address));
                    reason.push(error);
                }
                Err(_) => return Err(NodeError::Unreachable("The broker stops.".to_owned())),
            }
        }
        if reason.len() == count && !wait {
            reason.push("The cluster has no usable master.".to_owned());
            return Err(NodeError::Unreachable(reason.join(" ")));
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            warn!(
                slots = ranges(missing),
                "masters are missing: no locks in these slots"
            );
        }
        self.log_warnings();
        Ok(())
    }

    /// Returns a node that may have the lock. Waits for a node until `until`.
    pub(super) async fn next_route(
        &self,
        call: &mut SlotRoute,
        until: Instant,
    ) -> Result<Route, StoreError> {
        let (node, mode) = loop {
            let mut map = self.map.subscribe();
            let master = map.borrow_and_update().master(call.slot).cloned();
            let (address, mode) = match (call.asking.take(), master) {
                (Some(address), _) => (address, ExecMode::Asking),
                (None, Some(address)) => (address, ExecMode::Plain),
                (None, None) => match timeout_at(until, map.changed()).await {
                    Ok(_) => continue,
                    Err(_) => {
                        let reason = format!("no master has slot {}", call.slot);
                        return Err(StoreError::NotExecuted(reason));
                    }
                },
            };
            let supervisor = self.supervisor(&address);
            if let Some(node) = supervisor.current_node() {
                break (node, mode);
            }
            select! {
                node = supervisor.node(until.saturating_duration_since(Instant::now())) => {
                    break (node?, mode);
                }
                Ok(()) = map.changed(), if mode == ExecMode::Plain => {}
            }
        };
        let era_id = match (node.slot_eras(), mode) {
            (Some(eras), ExecMode::Plain) => {
                let timeout_error = |_| StoreError::NotExecuted("no era in time".to_owned());
                let id = timeout_at(until, eras.id_for(call.slot, call.era_use));
                id.await.map_err(timeout_error)??
            }
            _ => Box::default(),
        };
        Ok(Route {
            node,
            slot_era: Some((era_id, tag_of(call.slot))),
            mode,
        })
    }

    /// Records the token of a grant, for the floor of tokens of the slot's next era.
    pub(super) fn record_token(&self, lock: &LockKey, token: FencingToken) {
        if let Some(slots) = &self.plan.slots {
            slots.history.record_token(slot_of(lock), token);
        }
    }

    /// Returns the recovery of the lock's slot at its master.
    pub(super) fn recovery_of(&self, lock: &LockKey) -> Option<ActiveRecovery> {
        let slot = slot_of(lock);
        let master = self.map.borrow().master(slot).cloned()?;
        let supervisor = Arc::clone(&self.masters.lock().get(&master)?.supervisor);
        let node = supervisor.current_node()?;
        let recovery = node.slot_eras()?.recovery(slot)?;
        recovery.active_at(node.now_us() / 1_000)
    }

    /// Follows the redirect of a server to the node that has the lock.
    pub(super) async fn follow_redirect(
        &self,
        call: &mut SlotRoute,
        redirect: Redirect,
    ) -> Result<(), StoreError> {
        call.redirects += 1;
        if call.redirects > REDIRECTS_MAX {
            let reason = format!(
                "the masters do not agree on the owner of slot {}",
                call.slot
            );
            return Err(StoreError::NotExecuted(reason));
        }
        match redirect.to {
            Some(to) if redirect.asking => call.asking = Some(to),
            Some(to) => self.record_moved(redirect.slot, &to),
            // The slot map may have the address.
            None => self.refresh_slot_map.notify_one(),
        }
        if call.redirects > REDIRECTS_BEFORE_PAUSE {
            sleep(REDIRECT_PAUSE).await;
        }
        Ok(())
    }

    /// Returns any node that serves. Waits for a node for at most `within`.
    pub(super) async fn any_node(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        let until = Instant::now() + within;
        loop {
            if let Some((_, node)) = self.serving_nodes().into_iter().next() {
                return Ok(node);
            }
            if Instant::now() >= until {
                return Err(StoreError::NotExecuted("no verified connection".to_owned()));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Returns the first master, in the order of their first slots, whose first slot is at least
    /// `from`. Returns `None` after the last master.
    pub(super) async fn listed_server(
        &self,
        from: u16,
        until: Instant,
    ) -> Result<Option<ListedServer>, StoreError> {
        let masters = self.map.borrow().by_first_slot();
        if masters.is_empty() {
            return Err(StoreError::NotExecuted("no master has slots".to_owned()));
        }
        let mut masters = masters.into_iter().filter(|(slot, _)| *slot >= from);
        let Some((server, address)) = masters.next() else {
            return Ok(None);
        };
        let remaining = until.saturating_duration_since(Instant::now());
        Ok(Some(ListedServer {
            server,
            next: masters.next().map(|(slot, _)| slot),
            node: self.supervisor(&address).node(remaining).await,
            name: Some(format!("Redis at {address}")),
        }))
    }

    /// Keeps the slot map up to date, and a node on every master.
    async fn keep_slot_map_fresh(&self) -> Infallible {
        let mut round = 0;
        loop {
            let every = if self.is_complete() {
                REFRESH_INTERVAL
            } else {
                INCOMPLETE_REFRESH_INTERVAL
            };
            select! {
                () = self.refresh_slot_map.notified() => sleep(REFRESH_PAUSE).await,
                () = sleep(every) => {}
            }
            if let Some(map) = self.read_newest_map(round).await {
                self.adopt_map(map);
            }
            round += 1;
            self.open_missing_masters();
            self.close_former_masters();
            self.log_warnings();
        }
    }

    /// Returns true if every slot has a master on which a node serves.
    fn is_complete(&self) -> bool {
        let masters = self.map.borrow().masters();
        !masters.is_empty() && masters.iter().all(|master| self.has_serving_node(master))
    }

    /// Returns the newest map of [`QUERIED_MAX`] masters, which are others each time. Without any
    /// node, queries the masters in the map and the configured servers.
    async fn read_newest_map(&self, round: usize) -> Option<SlotMap> {
        let mut serving = self.serving_nodes();
        if serving.is_empty() {
            let mut servers = self.map.borrow().masters();
            servers.extend(self.seeds.iter().cloned());
            servers.sort_unstable();
            servers.dedup();
            let map = query_servers(&self.plan.config, &servers).await;
            let map = map.inspect_err(|error| {
                if self.log_throttle.should_log("map", "").is_some() {
                    warn!("{error}");
                }
            });
            return map.ok();
        }
        let count = serving.len();
        serving.rotate_left(round % count);
        let queries = serving.iter().take(QUERIED_MAX).map(|(address, node)| {
            timeout(REPLY_TIMEOUT, SlotMapReply::query(node.client(), address))
        });
        let replies = join_all(queries).await;
        newest(replies.into_iter().filter_map(|reading| reading.ok()?.ok()))
    }

    /// Adopts a map, unless it is older than the current one: a master that is cut off from the
    /// others has an outdated map.
    fn adopt_map(&self, new: SlotMap) {
        let has_nodes = !self.serving_nodes().is_empty();
        self.map.send_if_modified(|map| {
            let is_old = has_nodes && new.epoch < map.epoch;
            if is_old || **map == new {
                return false;
            }
            if map.masters() != new.masters() {
                let masters = new.masters();
                let masters: Vec<_> = masters.iter().map(ToString::to_string).collect();
                info!(
                    epoch = new.epoch,
                    masters = masters.join(", "),
                    "the masters of the cluster"
                );
            }
            if !map.matches(&new) {
                self.record_reassignment();
            }
            *map = Arc::new(new);
            true
        });
    }

    /// Opens nodes on masters without a node.
    fn open_missing_masters(&self) -> Vec<(Address, FirstOpen)> {
        let masters = self.map.borrow().masters();
        let mut handles = self.masters.lock();
        let mut opening = Vec::new();
        for address in masters {
            if let (_, Some(opened)) = self.ensure_supervised(&mut handles, &address) {
                opening.push((address, opened));
            }
        }
        opening
    }

    /// Closes nodes of servers that are masters of no slots.
    fn close_former_masters(&self) {
        self.masters.lock().retain(|_, handle| {
            let is_recent = handle.used_at.elapsed() < IDLE_SERVER_TTL;
            if !is_recent {
                handle.stop.cancel();
            }
            is_recent
        });
    }

    /// Logs warnings for operators, each at most once a minute.
    fn log_warnings(&self) {
        let unserved = self.map.borrow().unserved();
        if !unserved.is_empty() {
            let slots = ranges(unserved);
            if self.log_throttle.should_log("unserved", &slots).is_some() {
                warn!(slots, "no master has these slots: no locks there");
            }
        }
        let serving = self.serving_nodes().into_iter();
        let times: Vec<_> = serving
            .map(|(_, node)| (node.name(), node.time()))
            .collect();
        if let Some(warning) = skew_warning(&times)
            && self.log_throttle.should_log("clocks", "").is_some()
        {
            warn!("{warning}");
        }
    }

    fn record_moved(&self, slot: u16, to: &Address) {
        let has_changed = self.map.send_if_modified(|map| {
            let has_changed = map.master(slot) != Some(to);
            if has_changed {
                self.record_reassignment();
                Arc::make_mut(map).set(slot, to);
            }
            has_changed
        });
        if has_changed {
            self.refresh_slot_map.notify_one();
        }
    }

    /// Returns the nodes that serve, in the order of their addresses.
    fn serving_nodes(&self) -> Vec<(Address, Arc<Node>)> {
        let masters = self.masters.lock();
        let serving = masters.iter().filter_map(|(address, master)| {
            let node = master.supervisor.current_node()?;
            Some((address.clone(), node))
        });
        serving.collect()
    }

    /// Forwards an event of the node on this server, unless another node forwards it.
    ///
    /// With sharded channels only the node of the lock's master receives a message, and all
    /// messages are forwarded. Messages for watch streams are published like those without sharded
    /// channels.
    ///
    /// PUBLISH on one master reaches all masters, so every node receives every message. Only the
    /// node of the master that has the lock forwards it; the others drop it. While slot ownership is
    /// uncertain all nodes forward it, because a duplicate message is harmless. A message can be
    /// lost or duplicated in these cases:
    ///
    /// * The node of the master closes while a message is in flight. The next node reports
    ///   [`NodeEvent::Ready`], upon which every lock with waiters is touched. Until then the other
    ///   nodes forward the messages about its locks.
    /// * The slot is assigned to another master while a message is in flight. The node of the former
    ///   master may receive the message when the map already names the new master, and the node of
    ///   the new master may have received it before.
    /// * The slot has another master than in the map. The master in the map receives what that other
    ///   master publishes. If it cannot, its node closes or the map is corrected. A server that has
    ///   just become a master has a new node, which reports [`NodeEvent::Ready`].
    ///
    /// If a message is lost nevertheless, the touch that each queue receives every second finds what
    /// it reported. Nothing is granted in a slot within that time after the slot has moved.
    fn on_node_event(&self, from: &Address, event: NodeEvent) {
        let is_forwarded = match &event {
            NodeEvent::Ready | NodeEvent::Replaced | NodeEvent::AssumptionViolated(_) => true,
            NodeEvent::Message(payload) => {
                let key = lock_key_of(payload);
                let is_sharded =
                    self.plan.config.sharded_pubsub && !is_changes(&payload[key.len()..]);
                is_sharded || self.is_responsible(from, slot_of_key(payload.slice_ref(key)))
            }
        };
        if is_forwarded {
            (self.on_event)(event);
        }
    }

    /// Records that slots are being assigned to other masters.
    fn record_reassignment(&self) {
        *self.last_reassigned_at.lock() = Some(Instant::now());
    }

    fn is_responsible(&self, from: &Address, slot: u16) -> bool {
        let map = Arc::clone(&self.map.borrow());
        match map.master(slot) {
            Some(master) if master != from => {
                !self.has_serving_node(master) || self.is_reassigning()
            }
            Some(_) | None => true,
        }
    }

    /// Returns true if a node on this master serves.
    fn has_serving_node(&self, master: &Address) -> bool {
        let masters = self.masters.lock();
        let handle = masters.get(master);
        handle.is_some_and(|handle| handle.supervisor.current_node().is_some())
    }

    fn is_reassigning(&self) -> bool {
        let changed_at = *self.last_reassigned_at.lock();
        changed_at.is_some_and(|at| at.elapsed() < REASSIGNMENT_WINDOW)
    }

    fn supervisor(&self, address: &Address) -> Arc<Supervisor> {
        let (supervisor, _) = self.ensure_supervised(&mut self.masters.lock(), address);
        supervisor
    }

    /// Returns the supervisor of a server's node. If it was started now, also returns a receiver
    /// for the result of opening the node.
    fn ensure_supervised(
        &self,
        masters: &mut BTreeMap<Address, MasterHandle>,
        address: &Address,
    ) -> (Arc<Supervisor>, Option<FirstOpen>) {
        if let Some(master) = masters.get_mut(address) {
            master.used_at = Instant::now();
            return (Arc::clone(&master.supervisor), None);
        }
        let (me, from) = (Weak::clone(&self.weak_self), address.clone());
        let stop = self.stop.child_token();
        let start = SupervisorConfig {
            plan: self.plan.clone(),
            finder: MasterResolver::fixed(address.clone()),
            on_event: Box::new(move |event| {
                if let Some(router) = me.upgrade() {
                    router.on_node_event(&from, event);
                }
            }),
            stop: stop.clone(),
        };
        let (supervisor, opening) = Supervisor::start_in_background(start, &self.tasks);
        let supervisor = Arc::new(supervisor);
        let master = MasterHandle {
            supervisor: Arc::clone(&supervisor),
            used_at: Instant::now(),
            stop,
        };
        masters.insert(address.clone(), master);
        (supervisor, Some(opening))
    }
}

impl SlotRoute {
    pub(super) fn new(lock: &LockKey, era_use: EraUse) -> Self {
        Self {
            slot: slot_of(lock),
            era_use,
            asking: None,
            redirects: 0,
        }
    }

    /// Continues without an era after the store had another one: nothing is granted, all else is
    /// done.
    pub(super) fn without_era(&mut self, node: &Node) {
        self.era_use = EraUse::None;
        if let Some(eras) = node.slot_eras() {
            eras.invalidate(self.slot, false);
        }
    }
}
