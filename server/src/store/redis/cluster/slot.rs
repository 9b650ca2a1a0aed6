//! Slots of a cluster: the slot of a key, and keys in a given slot.

use std::sync::LazyLock;

use bytes::Bytes;
use fred::types::Key;

use crate::lock::LockKey;

/// Number of slots in every Redis Cluster.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

/// Hash tags of all slots: the smallest number for each slot, in braces.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut tags = vec![String::new(); SLOTS.into()];
    let mut missing = tags.len();
    for number in 0_u32.. {
        let tag = &mut tags[usize::from(hash(number.to_string()))];
        if tag.is_empty() {
            *tag = format!("{{{number}}}");
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags
});

/// Returns the slot of a lock's record.
pub(in crate::store::redis) fn slot_of(lock: &LockKey) -> u16 {
    // Key prefixes contain no braces.
    hash(lock.encoded())
}

pub(super) fn slot_of_key(key: Bytes) -> u16 {
    hash(key)
}

/// Returns the hash tag that places a key in a slot.
pub(in crate::store::redis) fn tag_of(slot: u16) -> &'static str {
    &TAGS[usize::from(slot)]
}

pub(in crate::store::redis) fn era_key(key_prefix: &str, slot: u16) -> String {
    format!("{key_prefix}era{}", tag_of(slot))
}

/// Formats slots as ranges: `0-5460, 7`.
pub(in crate::store::redis) fn ranges(slots: impl IntoIterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            Some(_) | None => ranges.push((slot, slot)),
        }
    }
    let texts = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn hash(key: impl Into<Key>) -> u16 {
    key.into().cluster_hash()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LockName, Namespace};

    #[test]
    fn every_slot_has_a_short_tag() {
        for slot in 0..SLOTS {
            let key = era_key("leasehold:", slot);
            assert_eq!(hash(key.clone()), slot, "{key}");
            assert!(tag_of(slot).len() <= 8, "{key}");
        }
    }

    #[test]
    fn a_lock_lies_where_its_record_does() {
        for name in ["orders", "a{b}c", "}{", "ü"] {
            let namespace = Namespace::parse("shop").expect("a legal namespace");
            let name = LockName::parse(name).expect("a legal name");
            let lock = LockKey::new(namespace, name);
            let key = format!("leasehold:{}", lock.encoded());
            assert_eq!(slot_of_key(key.into()), slot_of(&lock));
        }
    }

    #[test]
    fn slots_are_formatted_as_ranges() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([0, 1, 2, 7, 9, 10]), "0-2, 7, 9-10");
    }
}
