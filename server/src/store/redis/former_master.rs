//! The master that a server has replaced. While the former master may accept writes, the server
//! confirms no leases. The former master does not receive renewals, so it expires the lease on
//! schedule and may have granted the lock to another caller.

use std::{collections::VecDeque, convert::Infallible, io::ErrorKind, time::Duration};

use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    cluster::{
        redirect::Redirect,
        slot::ranges,
        slot_era_sync::read_era_texts,
        slot_eras::{PausedSlots, SlotEras},
    },
    connection::{Connection, Endpoint, RedisConfig},
    era::{Era, FormerProcess},
    location::{Address, StoreLocation},
    node::Node,
    silence::boot_ms,
    verify::ServerInfo,
};
use crate::{store::StoreError, time::millis};

/// Interval at which the state of a former master is queried.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time for which a master that the Sentinels have replaced is still used, see
/// docs/decisions/0027-two-masters.md.
const SENTINEL_OVERLAP_MAX_MS: u64 = 4_000;
/// More processes than any store has at a time.
const PROCESSES_MAX: usize = 256;

/// The period in which a server confirms no leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfirmationPause {
    until: Instant,
    /// The process that has caused the pause.
    pub(super) process: FormerProcess,
}

/// The processes that have served this broker, by which a replaced process is found.
#[derive(Debug, Default)]
pub(super) struct ServerProcesses(Mutex<VecDeque<ServerProcess>>);

#[derive(Debug, Clone)]
pub(super) struct ServerProcess {
    run_id: Box<str>,
    address: Address,
    /// True if the process has closed a connection of this broker, as the operating system does
    /// when a process ends.
    has_closed: bool,
    /// Time of its last reply to this broker, in milliseconds of the clock that also runs while this
    /// host is suspended.
    replied_ms: u64,
}

impl ConfirmationPause {
    /// Returns the pause that an era requires; `None` if it has ended.
    pub(super) fn required_by(era: &Era, now_ms: u64) -> Option<Self> {
        let former = era.former.as_ref()?;
        // The clock of the server may have been set back since.
        let remaining_ms = former.until_ms.saturating_sub(now_ms);
        let remaining_ms = remaining_ms.min(era.bounds.former_master_max_ms);
        (remaining_ms > 0).then(|| Self {
            until: Instant::now() + Duration::from_millis(remaining_ms),
            process: former.process.clone(),
        })
    }

    /// Returns the remaining time of the pause; `None` if it has ended.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let remaining = self.until.saturating_duration_since(Instant::now());
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Returns the error for a call that requires a lease to be confirmed.
    pub(super) fn rejection(&self) -> StoreError {
        let remaining = self.remaining().unwrap_or_default();
        StoreError::Recovering {
            retry_after_ms: millis(remaining.min(POLL_INTERVAL)),
            recovery: None,
        }
    }
}

impl ServerProcesses {
    /// Records that a process serves at this address.
    pub(super) fn record_serving(&self, run_id: &str, address: &Address) {
        let mut all = self.0.lock();
        all.retain(|process| *process.run_id != *run_id);
        if all.len() == PROCESSES_MAX {
            all.pop_front();
        }
        all.push_back(ServerProcess {
            run_id: run_id.into(),
            address: address.clone(),
            has_closed: false,
            replied_ms: boot_ms(),
        });
    }

    /// Records the time of the last reply of a process.
    pub(super) fn record_last_reply(&self, run_id: &str, replied_ms: u64) {
        let mut all = self.0.lock();
        if let Some(process) = all.iter_mut().find(|process| *process.run_id == *run_id) {
            process.replied_ms = replied_ms;
        }
    }

    /// Records that a process has closed a connection.
    pub(super) fn record_closed(&self, run_id: &str) {
        let mut all = self.0.lock();
        if let Some(process) = all.iter_mut().find(|process| *process.run_id == *run_id) {
            process.has_closed = true;
        }
    }

    /// Returns the record of a process.
    pub(super) fn get(&self, process: &FormerProcess) -> Option<ServerProcess> {
        let FormerProcess::Known(run_id) = process else {
            return None;
        };
        let all = self.0.lock();
        all.iter()
            .find(|process| process.run_id == *run_id)
            .cloned()
    }
}

impl ServerProcess {
    /// Returns true if no unknown master can have granted a lock between the last reply of the
    /// process and now. Such a master was promoted and replaced without a trace in the data of its
    /// successor, and may still accept writes although the process has stopped.
    fn is_last_master(&self, at: &Endpoint) -> bool {
        boot_ms().saturating_sub(self.replied_ms) <= longest_absence_ms(&at.config)
    }

    /// Returns true if the process certainly accepts no writes: it has ended, or is a replica. `at`
    /// is the server that has replaced it.
    async fn has_stopped(&self, at: &Endpoint) -> bool {
        let endpoint = Endpoint::new(self.address.clone(), at.config.clone());
        let Ok(connection) = Connection::open(&endpoint).await else {
            return self.has_closed && refuses_connections(&self.address).await;
        };
        let Ok(text) = connection.info(&endpoint, None).await else {
            return false;
        };
        let info = ServerInfo::parse(&text);
        match info.run_id() {
            Some(run_id) if *run_id == *self.run_id => !info.is_master(),
            // The address of a service may have been moved to another process. That proves nothing
            // about the former process.
            Some(_) => !matches!(at.config.location, StoreLocation::Server(_)),
            None => false,
        }
    }

    /// Returns those of `slots` for which the process redirects to another server.
    async fn slots_redirected_elsewhere(&self, at: &Endpoint, slots: &[u16]) -> Vec<u16> {
        let endpoint = Endpoint::new(self.address.clone(), at.config.clone());
        let Ok(connection) = Connection::open(&endpoint).await else {
            return Vec::new();
        };
        let prefix = &at.config.key_prefix;
        let replies = read_era_texts(connection.client(), prefix, slots).await;
        let replies = replies.unwrap_or_default();
        // A slot that is moving (ASK) still belongs to the process.
        let is_elsewhere = |reply: &Result<Option<String>, fred::error::Error>| {
            let error = reply.as_ref().err();
            let redirect = error.and_then(|error| Redirect::from_error(error, &self.address));
            redirect.is_some_and(|redirect| !redirect.asking)
        };
        if replies.len() != slots.len() {
            return Vec::new();
        }
        let redirected = slots.iter().zip(&replies);
        let redirected = redirected.filter(|(_, reply)| is_elsewhere(reply));
        redirected.map(|(slot, _)| *slot).collect()
    }
}

/// Ends the pause of a node, or of slots of a cluster's node, once the former master certainly
/// accepts no writes.
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
            sleep(POLL_INTERVAL).await;
            end_pauses_of_slots(eras, node, at, processes).await;
        },
    }
}

async fn end_pause_of_node(node: &Node, at: &Endpoint, processes: &ServerProcesses) {
    let Some(pause) = node.pause() else {
        return;
    };
    let wait_ms = pause.remaining().unwrap_or_default().as_millis();
    warn!(
        wait_ms,
        "renewals are paused: the master that {} replaced may still accept writes",
        node.name()
    );
    let former = processes.get(&pause.process);
    let former = former.filter(|former| former.is_last_master(at));
    while pause.remaining().is_some() {
        if let Some(former) = &former
            && former.has_stopped(at).await
        {
            break;
        }
        sleep(POLL_INTERVAL).await;
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
        let former = processes.get(&process);
        let Some(former) = former.filter(|former| former.is_last_master(at)) else {
            continue;
        };
        let stopped = match former.has_stopped(at).await {
            true => slots,
            false => former.slots_redirected_elsewhere(at, &slots).await,
        };
        if !stopped.is_empty() {
            eras.end_pause(&stopped);
            let slots = ranges(stopped);
            info!(slots, "{} renews leases in these slots", node.name());
        }
    }
}

/// Returns the time in which a master cannot be promoted, wait for `Q`, grant a lock and be replaced.
/// The process that it replaces and the master itself are used for a while after they were replaced.
fn longest_absence_ms(config: &RedisConfig) -> u64 {
    let overlap_max_ms = match config.location {
        StoreLocation::Sentinel(_) => SENTINEL_OVERLAP_MAX_MS,
        StoreLocation::Server(_) | StoreLocation::Cluster(_) => config.bounds.former_master_max_ms,
    };
    let quarantine_ms = match config.span_limit {
        Some(_) => config.bounds.shortest_quarantine_ms(),
        None => config.bounds.quarantine_ms(),
    };
    quarantine_ms.saturating_sub(2 * overlap_max_ms)
}

async fn refuses_connections(address: &Address) -> bool {
    let connecting = TcpStream::connect((address.host.as_str(), address.port));
    let connected = timeout(CONNECT_TIMEOUT, connecting).await;
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::{credentials::Credentials, location::Sentinel};

    #[test]
    fn a_master_may_have_come_and_gone_while_the_former_one_was_silent() {
        let address = Address {
            host: "127.0.0.1".to_owned(),
            port: 6_379,
        };
        let at = RedisConfig::at;
        let sentinels = at(StoreLocation::Sentinel(Sentinel {
            addresses: vec![address.clone()],
            master: "locks".to_owned(),
            credentials: Credentials::default(),
        }));
        assert_eq!(
            longest_absence_ms(&sentinels),
            12_250 + 12_000 + 1_000 - 8_000
        );
        let server = at(StoreLocation::Server(address.clone()));
        assert_eq!(longest_absence_ms(&server), 1_250);
        let cluster = at(StoreLocation::Cluster(vec![address]));
        assert_eq!(longest_absence_ms(&cluster), 95_250 - 24_000);
    }
}
