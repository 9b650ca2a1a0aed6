//! The master that a server has replaced. While that may take writes, the server confirms no lease: the former
//! master does not see that, ends the lease in time, and may have granted the lock to somebody else.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::ErrorKind,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fred::interfaces::KeysInterface as _;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    cluster::{
        eras::{PausedSlots, SlotEras},
        redirect::Redirect,
        slot::{era_key, ranges},
    },
    connection::{Connection, Endpoint},
    era::{Era, FormerProcess},
    node::Node,
    place::{Address, Place},
    verify::ServerInfo,
};
use crate::store::StoreError;

/// How often a former master is asked whether it takes writes.
const ASK_EVERY: Duration = Duration::from_millis(250);
const CONNECTED_WITHIN: Duration = Duration::from_millis(500);
/// More processes than any store has at a time.
const PROCESSES_MAX: usize = 256;

/// Until when a server confirms no lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pause {
    until: Instant,
    process: FormerProcess,
}

/// The processes that served this broker, so that one which was replaced can be found.
#[derive(Debug, Default)]
pub(super) struct ServerProcesses(Mutex<VecDeque<ServerProcess>>);

#[derive(Debug, Clone)]
pub(super) struct ServerProcess {
    run_id: Box<str>,
    address: Address,
    /// It closed a connection of this broker, as the system does for a process that ends.
    has_closed: bool,
}

impl Pause {
    /// The pause that an era asks for; `None` if that is over.
    pub(super) fn of(era: &Era, now_ms: u64) -> Option<Self> {
        let former = era.former.as_ref()?;
        // The clock of the server may have been set back since.
        let left_ms = former.until_ms.saturating_sub(now_ms);
        let left_ms = left_ms.min(era.bounds.former_master_max_ms);
        (left_ms > 0).then(|| Self {
            until: Instant::now() + Duration::from_millis(left_ms),
            process: former.process.clone(),
        })
    }

    /// How long it lasts; `None` if it is over.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// What a call is told that needs a lease confirmed.
    pub(super) fn refusal(&self) -> StoreError {
        let left = self.left().unwrap_or_default();
        StoreError::Recovering {
            retry_after_ms: u64::try_from(left.min(ASK_EVERY).as_millis()).unwrap_or(1),
        }
    }

    /// The process that it is for.
    pub(super) fn process(&self) -> &FormerProcess {
        &self.process
    }
}

impl ServerProcesses {
    /// A process serves at this address.
    pub(super) fn serves(&self, run_id: &str, address: &Address) {
        let mut all = self.all();
        all.retain(|process| *process.run_id != *run_id);
        if all.len() == PROCESSES_MAX {
            all.pop_front();
        }
        all.push_back(ServerProcess {
            run_id: run_id.into(),
            address: address.clone(),
            has_closed: false,
        });
    }

    /// A process has closed a connection.
    pub(super) fn closed(&self, run_id: &str) {
        let mut all = self.all();
        if let Some(process) = all.iter_mut().find(|process| *process.run_id == *run_id) {
            process.has_closed = true;
        }
    }

    /// What is known of a process.
    pub(super) fn get(&self, process: &FormerProcess) -> Option<ServerProcess> {
        let FormerProcess::Known(run_id) = process else {
            return None;
        };
        let all = self.all();
        all.iter()
            .find(|process| process.run_id == *run_id)
            .cloned()
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<ServerProcess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerProcess {
    /// Whether it is known to take no writes any more: it has ended, or follows another server. `at` is the server
    /// that has replaced it.
    async fn has_stopped(&self, at: &Endpoint) -> bool {
        let endpoint = Endpoint::new(self.address.clone(), at.config.clone());
        let Ok(connection) = Connection::open(&endpoint).await else {
            return self.has_closed && refuses(&self.address).await;
        };
        let Ok(text) = connection.info(&endpoint, None).await else {
            return false;
        };
        let info = ServerInfo::parse(&text);
        match info.run_id() {
            Some(run_id) if *run_id == *self.run_id => !info.is_master(),
            // The one address of a service may have been moved: that tells nothing of who had it before.
            Some(_) => !matches!(at.config.place, Place::Server(_)),
            None => false,
        }
    }

    /// Those of its slots that it says another server has.
    async fn slots_given_away(&self, at: &Endpoint, slots: &[u16]) -> Vec<u16> {
        let endpoint = Endpoint::new(self.address.clone(), at.config.clone());
        let Ok(connection) = Connection::open(&endpoint).await else {
            return Vec::new();
        };
        let pipeline = connection.client().pipeline();
        for &slot in slots {
            let key = era_key(&at.config.key_prefix, slot);
            let queued: Result<(), fred::error::Error> = pipeline.get(key).await;
            if queued.is_err() {
                return Vec::new();
            }
        }
        let replies = pipeline.try_all::<Option<String>>().await;
        // What it says to be on its way (ASK) is its own still.
        let is_elsewhere = |reply: &Result<Option<String>, fred::error::Error>| {
            let error = reply.as_ref().err();
            let redirect = error.and_then(|error| Redirect::of(error, &self.address));
            redirect.is_some_and(|redirect| !redirect.asking)
        };
        if replies.len() != slots.len() {
            return Vec::new();
        }
        let given = slots.iter().zip(&replies);
        let given = given.filter(|(_, reply)| is_elsewhere(reply));
        given.map(|(slot, _)| *slot).collect()
    }
}

/// Ends the pause of a node, or of the slots of one of a cluster, when the former master is known to take no writes any more.
pub(super) async fn end_pauses(
    node: &Node,
    at: &Endpoint,
    processes: &ServerProcesses,
) -> Infallible {
    match node.slot_eras() {
        None => {
            end_pause_of_node(node, at, processes).await;
            std::future::pending().await
        }
        Some(eras) => loop {
            sleep(ASK_EVERY).await;
            end_pauses_of_slots(eras, node, at, processes).await;
        },
    }
}

async fn end_pause_of_node(node: &Node, at: &Endpoint, processes: &ServerProcesses) {
    let Some(pause) = node.pause() else {
        return;
    };
    let wait_ms = pause.left().unwrap_or_default().as_millis();
    warn!(
        wait_ms,
        "renewals are paused: the master that {} replaced may still accept writes",
        node.name()
    );
    let former = processes.get(&pause.process);
    while pause.left().is_some() {
        if let Some(former) = &former
            && former.has_stopped(at).await
        {
            break;
        }
        sleep(ASK_EVERY).await;
    }
    node.end_pause();
    info!("{} renews leases", node.name());
}

async fn end_pauses_of_slots(
    eras: &SlotEras,
    node: &Node,
    at: &Endpoint,
    processes: &ServerProcesses,
) {
    for PausedSlots { process, slots } in eras.paused() {
        let Some(former) = processes.get(&process) else {
            continue;
        };
        let stopped = match former.has_stopped(at).await {
            true => slots,
            false => former.slots_given_away(at, &slots).await,
        };
        if !stopped.is_empty() {
            eras.end_pause(&stopped);
            let slots = ranges(stopped);
            info!(slots, "{} renews leases in these slots", node.name());
        }
    }
}

async fn refuses(address: &Address) -> bool {
    let connecting = TcpStream::connect((address.host.as_str(), address.port));
    let connected = timeout(CONNECTED_WITHIN, connecting).await;
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}
