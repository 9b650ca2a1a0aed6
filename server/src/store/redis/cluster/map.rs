//! Which master has which slots, as a server of the cluster says.

use fred::{
    clients::Client,
    error::Error,
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};

use super::slot::SLOTS;
use crate::store::redis::place::Address;

/// A node that is to be called by its name, and was given none. It may be on any host.
pub(super) const UNNAMED: &str = "?";

/// Which master has which slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct SlotMap {
    /// Rises with every change that the servers agree on.
    pub(super) epoch: u64,
    masters: Vec<Address>,
    /// For each slot the place of its master in that list and 1; 0: nobody has it.
    slots: Box<[u16]>,
}

/// A map, and whether the server that gave it is in touch with most of the others.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) is_ok: bool,
    pub(super) map: SlotMap,
}

impl SlotMap {
    /// Nobody has any.
    pub(super) fn empty() -> Self {
        Self {
            epoch: 0,
            masters: Vec::new(),
            slots: vec![0; SLOTS.into()].into(),
        }
    }

    /// The master of a slot.
    pub(super) fn master(&self, slot: u16) -> Option<&Address> {
        let place = self.slots[usize::from(slot)];
        self.masters.get(usize::from(place.checked_sub(1)?))
    }

    /// All masters that have slots, in the order of their addresses.
    pub(super) fn masters(&self) -> Vec<Address> {
        let has_slots = |place: usize| self.slots.iter().any(|&of| usize::from(of) == place + 1);
        let masters = self.masters.iter().enumerate();
        let mut masters: Vec<_> = masters
            .filter(|(place, _)| has_slots(*place))
            .map(|(_, master)| master.clone())
            .collect();
        masters.sort_unstable();
        masters
    }

    /// The same with the first slot of each, in the order of these.
    pub(super) fn by_first_slot(&self) -> Vec<(u16, Address)> {
        let mut masters: Vec<(u16, Address)> = Vec::new();
        for slot in 0..SLOTS {
            if let Some(master) = self.master(slot)
                && masters.iter().all(|(_, known)| known != master)
            {
                masters.push((slot, master.clone()));
            }
        }
        masters
    }

    /// What a master has.
    pub(super) fn slots_of(&self, master: &Address) -> Vec<u16> {
        let has = |slot: &u16| self.master(*slot) == Some(master);
        (0..SLOTS).filter(has).collect()
    }

    /// What nobody has.
    pub(super) fn unserved(&self) -> Vec<u16> {
        let nobody = |slot: &u16| self.master(*slot).is_none();
        (0..SLOTS).filter(nobody).collect()
    }

    /// Whether both say the same of every slot, at whatever epoch.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        (0..SLOTS).all(|slot| self.master(slot) == other.master(slot))
    }

    /// Gives a slot to a master.
    pub(super) fn set(&mut self, slot: u16, master: &Address) {
        let known = self.masters.iter().position(|known| known == master);
        let place = known.unwrap_or_else(|| {
            self.masters.push(master.clone());
            self.masters.len() - 1
        });
        if let Some(of) = self.slots.get_mut(usize::from(slot)) {
            *of = u16::try_from(place + 1).unwrap_or(0);
        }
    }

    /// Reads `CLUSTER SLOTS`; `from` is who answered. `None` if it is none.
    fn parse(answer: Value, from: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in array(answer)? {
            let mut fields = array(range)?.into_iter();
            let (first, last) = (fields.next()?.as_u64()?, fields.next()?.as_u64()?);
            let mut node = array(fields.next()?)?.into_iter();
            let (host, port) = (node.next()?.into_string(), node.next()?.as_u64()?);
            let host = match host.as_deref() {
                // A server that does not name the host means its own.
                None | Some("") => Some(from.host.clone()),
                Some(UNNAMED) => node.nth(1).and_then(ip),
                Some(host) => Some(host.to_owned()),
            };
            // Slots of which nobody knows where they are have no master.
            let Some(host) = host else { continue };
            let port = u16::try_from(port).ok()?;
            let master = Address { host, port };
            ranges.push((master, first..=last.min(u64::from(SLOTS - 1))));
        }
        // In one order, so that maps that say the same are the same.
        ranges.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut map = Self::empty();
        for (master, slots) in ranges {
            for slot in slots {
                map.set(u16::try_from(slot).ok()?, &master);
            }
        }
        Some(map)
    }
}

/// Reads a reply of `CLUSTER SLOTS` for a fuzz target.
#[cfg(feature = "fuzzing")]
pub(in crate::store::redis) fn read_slots(answer: Value, from: &Address) {
    if let Some(map) = SlotMap::parse(answer, from) {
        map.by_first_slot();
        map.unserved();
    }
}

impl Reading {
    /// Asks a server.
    pub(super) async fn of(client: &Client, from: &Address) -> Result<Self, Error> {
        let cluster = || CustomCommand::new_static("CLUSTER", None::<u16>, false);
        let info: String = client.custom(cluster(), vec!["INFO"]).await?;
        let slots: Value = client.custom(cluster(), vec!["SLOTS"]).await?;
        let field = |name: &str| {
            let mut lines = info
                .lines()
                .filter_map(|line| line.trim_end().split_once(':'));
            lines.find_map(|(field, value)| (field == name).then_some(value))
        };
        let map = SlotMap::parse(slots, from).map(|map| SlotMap {
            epoch: field("cluster_current_epoch")
                .and_then(|epoch| epoch.parse().ok())
                .unwrap_or(0),
            ..map
        });
        let unreadable = || Error::new(fred::error::ErrorKind::Protocol, "CLUSTER SLOTS is odd");
        Ok(Self {
            is_ok: field("cluster_state") == Some("ok"),
            map: map.ok_or_else(unreadable)?,
        })
    }
}

/// The newest of several, of those who are in touch if there is one.
pub(super) fn newest(readings: impl IntoIterator<Item = Reading>) -> Option<SlotMap> {
    let newest = readings
        .into_iter()
        .max_by_key(|reading| (reading.is_ok, reading.map.epoch));
    newest.map(|reading| reading.map)
}

/// The address beside a name: names and values by turns.
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
        let answer = Value::Array(vec![
            range(0, 5, "b".into(), 2),
            range(9, 9, "a".into(), 1),
            range(7, 7, "b".into(), 2),
            range(16_383, 16_383, Value::Null, 3),
        ]);
        let mut map = SlotMap::parse(answer, &address("here", 8)).expect("a map");
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
        let of = |words: &[&str]| node(words.iter().map(|&word| word.into()).collect());
        assert_eq!(of(&["ip", "10.0.0.2"]), Some(address("10.0.0.2", 6)));
        assert_eq!(of(&["ip", ""]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn who_is_in_touch_and_newest_is_believed() {
        let reading = |is_ok, epoch| Reading {
            is_ok,
            map: SlotMap {
                epoch,
                ..SlotMap::empty()
            },
        };
        let epoch = |readings: Vec<Reading>| newest(readings).map(|map| map.epoch);
        assert_eq!(epoch(vec![]), None);
        assert_eq!(epoch(vec![reading(false, 2)]), Some(2));
        assert_eq!(epoch(vec![reading(true, 3), reading(true, 4)]), Some(4));
        assert_eq!(epoch(vec![reading(true, 3), reading(false, 9)]), Some(3));
    }
}
