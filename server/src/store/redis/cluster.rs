//! The masters of a cluster: a node each, which of them has the lock of a call, and what each tells.

pub(super) mod check;
pub(super) mod eras;
mod follow;
mod heard;
pub(super) mod init;
mod list;
mod map;
pub(super) mod redirect;
pub(super) mod settle;
pub(super) mod shards;
pub(super) mod slot;
mod tally;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    select,
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

#[cfg(feature = "fuzzing")]
pub(super) use self::map::read_slots;
use self::{
    eras::Learnt,
    map::SlotMap,
    redirect::Redirect,
    settle::Slots,
    slot::{ranges, slot_of, tag_of},
};
use super::{
    complaints::Complaints,
    connection::{NodeError, RedisConfig},
    former::ServerProcesses,
    node::{Node, Way},
    nodes::Target,
    open::{KEY_FILE_MISSING, Plan},
    place::{Address, Finder},
    script::Script,
    scripts::EraUse,
    supervisor::{Channel, NodeEvent, Start, Subscription, Supervisor},
};
use crate::{lock::LockKey, store::StoreError};

/// How often a call follows servers that name each other.
const HOPS_MAX: u32 = 12;
/// After so many it is left to them to agree for a moment.
const HOPS_AT_ONCE: u32 = 3;
const HOP_PAUSE: Duration = Duration::from_millis(20);

type Opening = oneshot::Receiver<Result<(), NodeError>>;

/// All masters of a cluster.
pub(super) struct Router {
    config: RedisConfig,
    /// Servers that the configuration names.
    seeds: Vec<Address>,
    scripts: Arc<[Script]>,
    /// What every node listens to.
    channel: Channel,
    tell: Box<dyn Fn(NodeEvent) + Send + Sync>,
    map: watch::Sender<Arc<SlotMap>>,
    /// When a slot was last given to another master.
    changed_at: Mutex<Option<Instant>>,
    learnt: Arc<Learnt>,
    processes: Arc<ServerProcesses>,
    seats: Mutex<BTreeMap<Address, Seat>>,
    /// Wants the map read again.
    reread: Arc<Notify>,
    complaints: Complaints,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// For the nodes, which tell it what they hear.
    me: Weak<Self>,
}

/// A server that is, or may become, the master of some slots.
struct Seat {
    supervisor: Arc<Supervisor>,
    used_at: Instant,
    stop: CancellationToken,
}

/// The way of one call to its lock.
pub(super) struct Asked {
    slot: u16,
    era_use: EraUse,
    /// Where the lock may be while its slot moves there.
    asking: Option<Address>,
    hops: u32,
}

impl Router {
    /// Opens nodes on all masters that can be reached, or says in a plain sentence why there is none.
    pub(super) async fn start(
        (config, seeds): (RedisConfig, Vec<Address>),
        scripts: Arc<[Script]>,
        Subscription { channel, tell }: Subscription,
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
            tell,
            map: watch::Sender::new(Arc::new(SlotMap::empty())),
            changed_at: Mutex::default(),
            learnt: Arc::new(Learnt::new()),
            processes: Arc::default(),
            seats: Mutex::default(),
            reread: Arc::new(Notify::new()),
            complaints: Complaints::default(),
            tasks: tasks.clone(),
            stop: stop.child_token(),
            me: Weak::clone(me),
        });
        if let Err(error) = router.open_all().await {
            router.stop.cancel();
            return Err(error);
        }
        let working = Arc::clone(&router);
        tasks.spawn(async move {
            select! {
                () = working.stop.cancelled() => {}
                never = working.follow() => match never {},
            }
        });
        Ok(router)
    }

    async fn open_all(&self) -> Result<(), NodeError> {
        let wait = self.config.wait_for_store;
        match self.ask_servers(&self.seeds).await {
            Ok(map) => drop(self.map.send_replace(Arc::new(map))),
            Err(error @ NodeError::Unreachable(_)) if wait => {
                warn!("{error}");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let opening = self.seat_masters().into_iter();
        let opened = join_all(opening.map(async |(address, opened)| (address, opened.await))).await;
        let (mut missing, mut why) = (Vec::new(), Vec::new());
        let map = Arc::clone(&self.map.borrow());
        let count = opened.len();
        for (address, opened) in opened {
            match opened {
                Ok(Ok(())) => {}
                Ok(Err(error @ NodeError::Unfit(_))) => return Err(error),
                Ok(Err(NodeError::Unreachable(error))) => {
                    missing.extend(map.slots_of(&address));
                    why.push(error);
                }
                Err(_) => return Err(NodeError::Unreachable("The broker stops.".to_owned())),
            }
        }
        if why.len() == count && !wait {
            why.push("The cluster has no master that can be used.".to_owned());
            return Err(NodeError::Unreachable(why.join(" ")));
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            warn!(
                slots = ranges(missing),
                "masters are missing: no locks in these slots"
            );
        }
        self.warn();
        Ok(())
    }

    /// A node that may have the lock; waits for one until `until`.
    pub(super) async fn target(
        &self,
        asked: &mut Asked,
        until: Instant,
    ) -> Result<Target, StoreError> {
        let (node, way) = loop {
            let mut map = self.map.subscribe();
            let master = map.borrow_and_update().master(asked.slot).cloned();
            let (address, way) = match (asked.asking.take(), master) {
                (Some(address), _) => (address, Way::Asking),
                (None, Some(address)) => (address, Way::Plain),
                (None, None) => match timeout_at(until, map.changed()).await {
                    Ok(_) => continue,
                    Err(_) => {
                        let why = format!("no master has slot {}", asked.slot);
                        return Err(StoreError::NotNow(why));
                    }
                },
            };
            let supervisor = self.supervisor(&address);
            if let Some(node) = supervisor.present() {
                break (node, way);
            }
            select! {
                node = supervisor.node(until.saturating_duration_since(Instant::now())) => {
                    break (node?, way);
                }
                Ok(()) = map.changed(), if way == Way::Plain => {}
            }
        };
        let era_id = match (node.slot_eras(), way, asked.era_use) {
            (Some(eras), Way::Plain, EraUse::Grants) => {
                let late = |_| StoreError::NotNow("no era in time".to_owned());
                timeout_at(until, eras.id(asked.slot)).await.map_err(late)?
            }
            (Some(eras), Way::Plain, EraUse::Confirms) => {
                let late = |_| StoreError::NotNow("no era in time".to_owned());
                let id = timeout_at(until, eras.id_to_confirm_in(asked.slot));
                id.await.map_err(late)??
            }
            (Some(_), Way::Plain, EraUse::Nothing) | (Some(_), _, _) | (None, _, _) => {
                Box::default()
            }
        };
        Ok(Target {
            node,
            slot_era: Some((era_id, tag_of(asked.slot))),
            way,
        })
    }

    /// Goes where a server says that the lock is.
    pub(super) async fn follow_to(
        &self,
        asked: &mut Asked,
        redirect: Redirect,
    ) -> Result<(), StoreError> {
        asked.hops += 1;
        if asked.hops > HOPS_MAX {
            let why = format!("the masters do not agree who has slot {}", asked.slot);
            return Err(StoreError::NotNow(why));
        }
        match redirect.to {
            Some(to) if redirect.asking => asked.asking = Some(to),
            Some(to) => self.moved(redirect.slot, &to),
            // The map may have the address.
            None => self.reread.notify_one(),
        }
        if asked.hops > HOPS_AT_ONCE {
            sleep(HOP_PAUSE).await;
        }
        Ok(())
    }

    /// Any node that serves; waits for one a while.
    pub(super) async fn any_node(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        let until = Instant::now() + within;
        loop {
            if let Some((_, node)) = self.living().into_iter().next() {
                return Ok(node);
            }
            if Instant::now() >= until {
                return Err(StoreError::NotNow("no verified connection".to_owned()));
            }
            sleep(HOP_PAUSE).await;
        }
    }

    fn moved(&self, slot: u16, to: &Address) {
        let is_news = self.map.send_if_modified(|map| {
            let is_news = map.master(slot) != Some(to);
            if is_news {
                self.slots_change();
                Arc::make_mut(map).set(slot, to);
            }
            is_news
        });
        if is_news {
            self.reread.notify_one();
        }
    }

    /// The nodes that serve, in the order of their addresses.
    fn living(&self) -> Vec<(Address, Arc<Node>)> {
        let seats = self.seats();
        let living = seats.iter().filter_map(|(address, seat)| {
            let node = seat.supervisor.present()?;
            Some((address.clone(), node))
        });
        living.collect()
    }

    fn supervisor(&self, address: &Address) -> Arc<Supervisor> {
        let mut seats = self.seats();
        if let Some(seat) = seats.get_mut(address) {
            seat.used_at = Instant::now();
            return Arc::clone(&seat.supervisor);
        }
        let (seat, _) = self.seat(address);
        let supervisor = Arc::clone(&seat.supervisor);
        seats.insert(address.clone(), seat);
        supervisor
    }

    fn seat(&self, address: &Address) -> (Seat, Opening) {
        let (me, from) = (Weak::clone(&self.me), address.clone());
        let stop = self.stop.child_token();
        let start = Start {
            plan: Plan {
                config: self.config.clone(),
                scripts: Arc::clone(&self.scripts),
                processes: Arc::clone(&self.processes),
                channel: self.channel.clone(),
                slots: Some(Slots {
                    map: self.map.subscribe(),
                    learnt: Arc::clone(&self.learnt),
                    reread: Arc::clone(&self.reread),
                }),
            },
            finder: Finder::known(address.clone()),
            tell: Box::new(move |event| {
                if let Some(router) = me.upgrade() {
                    router.heard(&from, event);
                }
            }),
            stop: stop.clone(),
        };
        let (supervisor, opening) = Supervisor::begin(start, &self.tasks);
        let seat = Seat {
            supervisor: Arc::new(supervisor),
            used_at: Instant::now(),
            stop,
        };
        (seat, opening)
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<Address, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    pub(super) fn new(lock: &LockKey, era_use: EraUse) -> Self {
        Self {
            slot: slot_of(lock),
            era_use,
            asking: None,
            hops: 0,
        }
    }

    /// The era was not that of the store: nothing is granted, all else is done.
    pub(super) fn without_era(&mut self, node: &Node) {
        self.era_use = EraUse::Nothing;
        if let Some(eras) = node.slot_eras() {
            eras.doubt(self.slot, false);
        }
    }
}
