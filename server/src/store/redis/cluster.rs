//! Redis Cluster: a node for each master, routing of calls to the master of their slot, and events
//! of the nodes.

mod event_filter;
pub(super) mod init;
pub(super) mod redirect;
pub(super) mod sharded_subscriptions;
pub(super) mod slot;
pub(super) mod slot_era_sync;
pub(super) mod slot_eras;
mod slot_map;
mod slot_map_refresh;
mod sync_report;

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    select,
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

#[cfg(feature = "fuzzing")]
pub(super) use self::slot_map::read_slots;
use self::{
    slot::{ranges, slot_of, tag_of},
    slot_era_sync::SlotContext,
    slot_eras::EraHistory,
    slot_map::SlotMap,
};
use super::{
    connect::{KEY_FILE_MISSING, NodePlan},
    connection::{NodeError, RedisConfig},
    former_master::ServerProcesses,
    listing::ListedServer,
    location::{Address, MasterResolver},
    log_throttle::LogThrottle,
    node::{ExecMode, Node},
    routing::Route,
    script::Script,
    scripts::EraUse,
    supervisor::{Channel, NodeEvent, Subscription, Supervisor, SupervisorConfig},
};
use crate::{lock::LockKey, store::StoreError};

/// Pause between two attempts to find a node.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

type FirstOpen = oneshot::Receiver<Result<(), NodeError>>;

/// Router of calls to the masters of a cluster.
pub(super) struct Router {
    config: RedisConfig,
    /// Servers that are configured.
    seeds: Vec<Address>,
    scripts: Arc<[Script]>,
    /// The channels to which every node subscribes.
    channel: Channel,
    on_event: Box<dyn Fn(NodeEvent) + Send + Sync>,
    map: watch::Sender<Arc<SlotMap>>,
    /// Time at which a slot was last assigned to another master.
    last_reassigned_at: Mutex<Option<Instant>>,
    era_history: Arc<EraHistory>,
    processes: Arc<ServerProcesses>,
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
        if config.deployment_key.is_none() {
            return Err(NodeError::Unfit(vec![KEY_FILE_MISSING.to_owned()]));
        }
        let router = Arc::new_cyclic(|me| Self {
            config,
            seeds,
            scripts,
            channel,
            on_event,
            map: watch::Sender::new(Arc::new(SlotMap::empty())),
            last_reassigned_at: Mutex::default(),
            era_history: Arc::new(EraHistory::new()),
            processes: Arc::default(),
            masters: Mutex::default(),
            refresh_slot_map: Arc::new(Notify::new()),
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
        let wait = self.config.wait_for_store;
        match self.query_servers(&self.seeds).await {
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
        let era_id = match (node.slot_eras(), mode, call.era_use) {
            (Some(eras), ExecMode::Plain, EraUse::Grant) => {
                let timeout_error = |_| StoreError::NotExecuted("no era in time".to_owned());
                timeout_at(until, eras.id(call.slot))
                    .await
                    .map_err(timeout_error)?
            }
            (Some(eras), ExecMode::Plain, EraUse::Confirm) => {
                let timeout_error = |_| StoreError::NotExecuted("no era in time".to_owned());
                let id = timeout_at(until, eras.id_for_confirmation(call.slot));
                id.await.map_err(timeout_error)??
            }
            (Some(_), ExecMode::Plain, EraUse::None) | (Some(_), _, _) | (None, _, _) => {
                Box::default()
            }
        };
        Ok(Route {
            node,
            slot_era: Some((era_id, tag_of(call.slot))),
            mode,
        })
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

    fn supervisor(&self, address: &Address) -> Arc<Supervisor> {
        let mut masters = self.masters.lock();
        if let Some(master) = masters.get_mut(address) {
            master.used_at = Instant::now();
            return Arc::clone(&master.supervisor);
        }
        let (master, _) = self.master(address);
        let supervisor = Arc::clone(&master.supervisor);
        masters.insert(address.clone(), master);
        supervisor
    }

    fn master(&self, address: &Address) -> (MasterHandle, FirstOpen) {
        let (me, from) = (Weak::clone(&self.weak_self), address.clone());
        let stop = self.stop.child_token();
        let start = SupervisorConfig {
            plan: NodePlan {
                config: self.config.clone(),
                scripts: Arc::clone(&self.scripts),
                processes: Arc::clone(&self.processes),
                channel: self.channel.clone(),
                slots: Some(SlotContext {
                    map: self.map.subscribe(),
                    history: Arc::clone(&self.era_history),
                    refresh_slot_map: Arc::clone(&self.refresh_slot_map),
                }),
            },
            finder: MasterResolver::fixed(address.clone()),
            on_event: Box::new(move |event| {
                if let Some(router) = me.upgrade() {
                    router.on_node_event(&from, event);
                }
            }),
            stop: stop.clone(),
        };
        let (supervisor, opening) = Supervisor::start_in_background(start, &self.tasks);
        let master = MasterHandle {
            supervisor: Arc::new(supervisor),
            used_at: Instant::now(),
            stop,
        };
        (master, opening)
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
