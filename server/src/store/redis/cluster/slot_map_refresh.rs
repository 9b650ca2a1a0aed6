//! Tracking of a cluster: its masters, their slots, and the skew of their clocks.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    select,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    FirstOpen, Router,
    slot::ranges,
    slot_map::{SlotMap, SlotMapReply, newest},
};
use crate::store::redis::{
    clock::skew_warning,
    connection::{Connection, Endpoint, NodeError},
    location::Address,
};

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval while a master is missing, because another server may have replaced it.
const INCOMPLETE_REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum time between two readings of the slot map, however many calls are redirected.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
/// Number of masters that are queried at a time.
const QUERIED_MAX: usize = 3;
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for which a server without slots is kept after its last use.
const IDLE_SERVER_TTL: Duration = Duration::from_secs(10);

impl Router {
    /// Keeps the slot map up to date, and a node on every master.
    pub(super) async fn keep_slot_map_fresh(&self) -> Infallible {
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
        let map = Arc::clone(&self.map.borrow());
        let handles = self.masters.lock();
        let serves = |master: &Address| {
            let handle = handles.get(master);
            handle.is_some_and(|handle| handle.supervisor.current_node().is_some())
        };
        let masters = map.masters();
        !masters.is_empty() && masters.iter().all(serves)
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
            let map = self.query_servers(&servers).await;
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

    /// Queries servers on new connections.
    pub(super) async fn query_servers(&self, servers: &[Address]) -> Result<SlotMap, NodeError> {
        let queries = servers.iter().map(async |address| {
            let endpoint = Endpoint::new(address.clone(), self.config.clone());
            query_slot_map(&endpoint).await
        });
        let (mut replies, mut reason) = (Vec::new(), Vec::new());
        for reading in join_all(queries).await {
            match reading {
                Ok(reading) => replies.push(reading),
                Err(error @ NodeError::Unfit(_)) => return Err(error),
                Err(NodeError::Unreachable(error)) => reason.push(error),
            }
        }
        newest(replies).ok_or_else(|| NodeError::Unreachable(reason.join(" ")))
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
    pub(super) fn open_missing_masters(&self) -> Vec<(Address, FirstOpen)> {
        let masters = self.map.borrow().masters();
        let mut handles = self.masters.lock();
        let mut opening = Vec::new();
        for address in masters {
            if let Some(handle) = handles.get_mut(&address) {
                handle.used_at = Instant::now();
                continue;
            }
            let (handle, opened) = self.master(&address);
            handles.insert(address.clone(), handle);
            opening.push((address, opened));
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
    pub(super) fn log_warnings(&self) {
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
}

/// Reads the slot map of a server.
pub(super) async fn query_slot_map(endpoint: &Endpoint) -> Result<SlotMapReply, NodeError> {
    let connection = Connection::open(endpoint).await?;
    let queries = timeout(
        REFRESH_INTERVAL,
        SlotMapReply::query(connection.client(), &endpoint.address),
    )
    .await;
    let Ok(reading) = queries else {
        let reason = format!("{} does not answer in time.", endpoint.name());
        return Err(NodeError::Unreachable(reason));
    };
    reading.map_err(|error| match error.details().contains(CLUSTER_DISABLED) {
        true => NodeError::Unfit(vec![format!(
            "{} does not run in cluster mode. Use redis://, or a server with cluster-enabled yes.",
            endpoint.name()
        )]),
        false => endpoint.unreachable(&error),
    })
}

const CLUSTER_DISABLED: &str = "cluster support disabled";
