//! Slot map: the master of each slot, according to a server of the cluster.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};
use futures::future::join_all;
use tokio::time::timeout;

use super::slot::SLOTS;
use crate::store::redis::{
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    location::Address,
};

/// Host of a node that has no name although names are preferred. The node may be on any host.
pub(super) const UNNAMED_HOSTS: &str = "?";
const CLUSTER_DISABLED: &str = "cluster support disabled";
/// Time for a server to return its slot map on a new connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The master of each slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct SlotMap {
    /// Number that rises with every change on which the servers agree.
    pub(super) epoch: u64,
    masters: Vec<Address>,
    /// For each slot the index of its master in `masters`, if it has one.
    slots: Box<[Option<u16>]>,
}

/// A slot map, and whether the server that returned it can reach most of the others.
#[derive(Debug)]
pub(super) struct SlotMapReply {
    pub(super) is_ok: bool,
    pub(super) map: SlotMap,
}

impl SlotMap {
    /// Returns a map in which no slot has a master.
    pub(super) fn empty() -> Self {
        Self {
            epoch: 0,
            masters: Vec::new(),
            slots: vec![None; SLOTS.into()].into(),
        }
    }

    pub(super) fn master(&self, slot: u16) -> Option<&Address> {
        let index = self.slots[usize::from(slot)]?;
        self.masters.get(usize::from(index))
    }

    /// Returns all masters that have slots, in the order of their addresses.
    pub(super) fn masters(&self) -> Vec<Address> {
        let by_first_slot = self.by_first_slot().into_iter();
        let mut masters: Vec<_> = by_first_slot.map(|(_, master)| master).collect();
        masters.sort_unstable();
        masters
    }

    /// Returns all masters with the first slot of each, in the order of these slots.
    pub(super) fn by_first_slot(&self) -> Vec<(u16, Address)> {
        let (mut masters, mut is_listed) = (Vec::new(), vec![false; self.masters.len()]);
        for (slot, index) in (0..SLOTS).zip(self.slots.iter().copied()) {
            if let Some(index) = index.map(usize::from)
                && !std::mem::replace(&mut is_listed[index], true)
            {
                masters.push((slot, self.masters[index].clone()));
            }
        }
        masters
    }

    /// Returns the slots of a master.
    pub(super) fn slots_of(&self, master: &Address) -> Vec<u16> {
        let has = |slot: &u16| self.master(*slot) == Some(master);
        (0..SLOTS).filter(has).collect()
    }

    /// Returns the slots without a master.
    pub(super) fn unserved(&self) -> Vec<u16> {
        let is_unserved = |slot: &u16| self.master(*slot).is_none();
        (0..SLOTS).filter(is_unserved).collect()
    }

    /// Returns true if both maps have the same master for every slot, whatever their epochs.
    pub(super) fn matches(&self, other: &Self) -> bool {
        (0..SLOTS).all(|slot| self.master(slot) == other.master(slot))
    }

    /// Assigns a slot to a master.
    pub(super) fn set(&mut self, slot: u16, master: &Address) {
        let position = self.masters.iter().position(|address| address == master);
        let index = position.unwrap_or_else(|| {
            self.masters.push(master.clone());
            self.masters.len() - 1
        });
        self.slots[usize::from(slot)] = u16::try_from(index).ok();
    }

    /// Parses the reply of `CLUSTER SLOTS`. `from` is the server that replied. Returns `None` for a
    /// malformed reply.
    fn parse(reply: Value, from: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in array(reply)? {
            let mut fields = array(range)?.into_iter();
            let (first, last) = (fields.next()?.as_u64()?, fields.next()?.as_u64()?);
            let mut node = array(fields.next()?)?.into_iter();
            let (host, port) = (node.next()?.into_string(), node.next()?.as_u64()?);
            let host = match host.as_deref() {
                // A server that omits the host means its own.
                None | Some("") => Some(from.host.clone()),
                Some(UNNAMED_HOSTS) => node.nth(1).and_then(ip),
                Some(host) => Some(host.to_owned()),
            };
            // Slots at an unknown host have no master.
            let Some(host) = host else { continue };
            let port = u16::try_from(port).ok()?;
            let master = Address { host, port };
            ranges.push((master, first..=last.min(u64::from(SLOTS - 1))));
        }
        // Sorted, so that maps with the same content are equal.
        ranges.sort_unstable_by(|(first, _), (second, _)| first.cmp(second));
        let mut map = Self::empty();
        for (master, slots) in ranges {
            for slot in slots {
                map.set(u16::try_from(slot).ok()?, &master);
            }
        }
        Some(map)
    }
}

/// Parses a reply of `CLUSTER SLOTS` for a fuzz target.
#[cfg(feature = "fuzzing")]
pub(in crate::store::redis) fn read_slots(reply: Value, from: &Address) {
    if let Some(map) = SlotMap::parse(reply, from) {
        map.by_first_slot();
        map.unserved();
    }
}

impl SlotMapReply {
    /// Reads the slot map of a server.
    pub(super) async fn query(client: &Client, from: &Address) -> Result<Self, Error> {
        let cluster = || CustomCommand::new_static("CLUSTER", None::<u16>, false);
        let info: String = client.custom(cluster(), vec!["INFO"]).await?;
        let slots: Value = client.custom(cluster(), vec!["SLOTS"]).await?;
        let field = |name: &str| {
            let mut lines = info
                .lines()
                .filter_map(|line| line.trim_end().split_once(':'));
            lines.find_map(|(field, value)| (field == name).then_some(value))
        };
        let unreadable = || Error::new(ErrorKind::Protocol, "malformed reply to CLUSTER SLOTS");
        let mut map = SlotMap::parse(slots, from).ok_or_else(unreadable)?;
        let epoch = field("cluster_current_epoch").map(str::parse);
        map.epoch = epoch.and_then(Result::ok).unwrap_or(0);
        Ok(Self {
            is_ok: field("cluster_state") == Some("ok"),
            map,
        })
    }
}

/// Returns the newest slot map of several servers, which are queried on new connections.
pub(super) async fn query_servers(
    config: &RedisConfig,
    servers: &[Address],
) -> Result<SlotMap, NodeError> {
    let queries = servers.iter().map(async |address| {
        let endpoint = Endpoint::new(address.clone(), config.clone());
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

/// Reads the slot map of a server.
async fn query_slot_map(endpoint: &Endpoint) -> Result<SlotMapReply, NodeError> {
    let connection = Connection::open(endpoint).await?;
    let query = SlotMapReply::query(connection.client(), &endpoint.address);
    let Ok(reading) = timeout(REPLY_TIMEOUT, query).await else {
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

/// Returns the newest of several maps. Maps of servers that can reach most of the others take
/// precedence.
pub(super) fn newest(readings: impl IntoIterator<Item = SlotMapReply>) -> Option<SlotMap> {
    let newest = readings
        .into_iter()
        .max_by_key(|reading| (reading.is_ok, reading.map.epoch));
    newest.map(|reading| reading.map)
}

/// Returns the IP address of a node from its metadata, in which names and values alternate.
fn ip(more: Value) -> Option<String> {
    let more: Vec<_> = array(more)?.into_iter().map(Value::into_string).collect();
    let mut pairs = more.chunks_exact(2);
    let ip = pairs.find(|pair| pair[0].as_deref() == Some("ip"))?;
    ip[1].clone().filter(|ip| !ip.is_empty())
}

fn array(value: Value) -> Option<Vec<Value>> {
    if let Value::Array(values) = value {
        Some(values)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        let host = host.to_owned();
        Address { host, port }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, port.into(), "id".into()]);
        let replica = Value::Array(vec!["r".into(), 9.into(), "id".into()]);
        Value::Array(vec![first.into(), last.into(), node, replica])
    }

    #[test]
    fn masters_and_their_slots_are_read() {
        let reply = Value::Array(vec![
            range(0, 5, "b".into(), 2),
            range(9, 9, "a".into(), 1),
            range(7, 7, "b".into(), 2),
            range(16_383, 16_383, Value::Null, 3),
        ]);
        let mut map = SlotMap::parse(reply, &address("here", 8)).expect("a map");
        let [a, b, here] = [address("a", 1), address("b", 2), address("here", 3)];
        assert_eq!(map.masters(), [a.clone(), b.clone(), here.clone()]);
        let by_slot = [(0, b.clone()), (9, a.clone()), (16_383, here.clone())];
        assert_eq!(map.by_first_slot(), by_slot);
        assert_eq!(map.slots_of(&b), [0, 1, 2, 3, 4, 5, 7]);
        assert_eq!((map.master(9), map.master(6)), (Some(&a), None));
        assert_eq!(map.unserved().len(), usize::from(SLOTS) - 9);
        map.set(9, &b);
        assert_eq!(map.masters(), [b.clone(), here]);
        assert_eq!(map.master(9), Some(&b));
        assert_eq!(SlotMap::parse(Value::Null, &a), None);
        assert_eq!(SlotMap::parse(Value::Array(vec![1.into()]), &a), None);
    }

    #[test]
    fn a_node_without_a_name_is_at_its_address_or_unknown() {
        let node = |more: Vec<Value>| {
            let node = vec!["?".into(), 6.into(), "id".into(), Value::Array(more)];
            let range = vec![1.into(), 2.into(), Value::Array(node)];
            let map = SlotMap::parse(Value::Array(vec![Value::Array(range)]), &address("here", 8));
            map.expect("a map").master(1).cloned()
        };
        let of = |fields: &[&str]| node(fields.iter().map(|&field| field.into()).collect());
        assert_eq!(of(&["ip", "10.0.0.2"]), Some(address("10.0.0.2", 6)));
        assert_eq!(of(&["ip", ""]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_newest_map_of_a_connected_node_is_used() {
        let reading = |is_ok, epoch| SlotMapReply {
            is_ok,
            map: SlotMap {
                epoch,
                ..SlotMap::empty()
            },
        };
        let epoch = |readings: Vec<SlotMapReply>| newest(readings).map(|map| map.epoch);
        assert_eq!(epoch(vec![]), None);
        assert_eq!(epoch(vec![reading(false, 2)]), Some(2));
        assert_eq!(epoch(vec![reading(true, 3), reading(true, 4)]), Some(4));
        assert_eq!(epoch(vec![reading(true, 3), reading(false, 9)]), Some(3));
    }
}
