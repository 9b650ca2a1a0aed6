//! Follows a cluster: who its masters are, what they have, and whether their clocks agree.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    select,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    Opening, Router,
    map::{Reading, SlotMap, newest},
    slot::ranges,
};
use crate::store::redis::{
    clocks::{APART_MAX, furthest, warning},
    connection::{Connection, Endpoint, NodeError},
    place::Address,
};

const EVERY: Duration = Duration::from_secs(1);
/// While a master is missing: another one may have taken its place.
const SOON: Duration = Duration::from_millis(200);
/// At least between two readings, however many calls are sent elsewhere.
const PAUSE: Duration = Duration::from_millis(20);
/// How many masters are asked at a time.
const ASKED_MAX: usize = 3;
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// A server without slots is kept for so long after its last use.
const KEPT: Duration = Duration::from_secs(10);

impl Router {
    /// Keeps the map up to date, and a node on every master.
    pub(super) async fn follow(&self) -> Infallible {
        let mut turn = 0;
        loop {
            let every = if self.is_whole() { EVERY } else { SOON };
            select! {
                () = self.reread.notified() => sleep(PAUSE).await,
                () = sleep(every) => {}
            }
            if let Some(map) = self.read(turn).await {
                self.adopt(map);
            }
            turn += 1;
            self.seat_masters();
            self.leave_others();
            self.warn();
        }
    }

    /// Whether every slot has a master on which a node serves.
    fn is_whole(&self) -> bool {
        let map = Arc::clone(&self.map.borrow());
        let seats = self.seats();
        let serves = |master: &Address| {
            let seat = seats.get(master);
            seat.is_some_and(|seat| seat.supervisor.present().is_some())
        };
        let masters = map.masters();
        !masters.is_empty() && masters.iter().all(serves)
    }

    /// The newest map that some masters give, others each time; without any, that of other servers.
    async fn read(&self, turn: usize) -> Option<SlotMap> {
        let mut living = self.living();
        if living.is_empty() {
            let mut servers = self.map.borrow().masters();
            servers.extend(self.seeds.iter().cloned());
            servers.sort_unstable();
            servers.dedup();
            let map = self.ask_servers(&servers).await;
            let map = map.inspect_err(|error| {
                if self.complaints.due("map", "").is_some() {
                    warn!("{error}");
                }
            });
            return map.ok();
        }
        let count = living.len();
        living.rotate_left(turn % count);
        let asked = living
            .iter()
            .take(ASKED_MAX)
            .map(|(address, node)| timeout(ANSWER_WITHIN, Reading::of(node.client(), address)));
        let readings = join_all(asked).await;
        newest(
            readings
                .into_iter()
                .filter_map(|reading| reading.ok()?.ok()),
        )
    }

    /// Asks servers on connections of their own.
    pub(super) async fn ask_servers(&self, servers: &[Address]) -> Result<SlotMap, NodeError> {
        let asked = servers.iter().map(async |address| {
            let endpoint = Endpoint::new(address.clone(), self.config.clone());
            ask(&endpoint).await
        });
        let (mut readings, mut why) = (Vec::new(), Vec::new());
        for reading in join_all(asked).await {
            match reading {
                Ok(reading) => readings.push(reading),
                Err(error @ NodeError::Unfit(_)) => return Err(error),
                Err(NodeError::Unreachable(error)) => why.push(error),
            }
        }
        newest(readings).ok_or_else(|| NodeError::Unreachable(why.join(" ")))
    }

    /// Takes a map, unless it is older than what is known: a master that is cut off from the others
    /// does not know who took its place.
    fn adopt(&self, new: SlotMap) {
        let has_nodes = !self.living().is_empty();
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
            if !map.agrees(&new) {
                self.slots_change();
            }
            *map = Arc::new(new);
            true
        });
    }

    /// Opens nodes on masters that have none.
    pub(super) fn seat_masters(&self) -> Vec<(Address, Opening)> {
        let masters = self.map.borrow().masters();
        let mut seats = self.seats();
        let mut opening = Vec::new();
        for address in masters {
            if let Some(seat) = seats.get_mut(&address) {
                seat.used_at = Instant::now();
                continue;
            }
            let (seat, opened) = self.seat(&address);
            seats.insert(address.clone(), seat);
            opening.push((address, opened));
        }
        opening
    }

    /// Ends nodes that are masters of nothing any more.
    fn leave_others(&self) {
        self.seats().retain(|_, seat| {
            let is_kept = seat.used_at.elapsed() < KEPT;
            if !is_kept {
                seat.stop.cancel();
            }
            is_kept
        });
    }

    /// Tells what an operator should know, once in a while.
    pub(super) fn warn(&self) {
        let unserved = self.map.borrow().unserved();
        if !unserved.is_empty() {
            let slots = ranges(unserved);
            if self.complaints.due("unserved", &slots).is_some() {
                warn!(slots, "no master has these slots: no locks there");
            }
        }
        let living = self.living().into_iter();
        let times: Vec<_> = living.map(|(_, node)| (node.name(), node.time())).collect();
        let Some((one, other, apart)) = furthest(&times) else {
            return;
        };
        if apart > APART_MAX && self.complaints.due("clocks", "").is_some() {
            warn!("{}", warning(one, other, apart));
        }
    }
}

/// What a server says of its cluster.
pub(super) async fn ask(endpoint: &Endpoint) -> Result<Reading, NodeError> {
    let connection = Connection::open(endpoint).await?;
    let asked = timeout(EVERY, Reading::of(connection.client(), &endpoint.address)).await;
    let Ok(reading) = asked else {
        let why = format!("{} does not answer in time.", endpoint.name());
        return Err(NodeError::Unreachable(why));
    };
    reading.map_err(|error| match error.details().contains(NO_CLUSTER) {
        true => NodeError::Unfit(vec![format!(
            "{} does not run in cluster mode. Use redis://, or a server with cluster-enabled yes.",
            endpoint.name()
        )]),
        false => endpoint.unreachable(&error),
    })
}

const NO_CLUSTER: &str = "cluster support disabled";
