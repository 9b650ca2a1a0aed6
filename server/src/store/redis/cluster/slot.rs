//! In which slot of a cluster a key lies, and keys that lie in a given one.

use std::sync::LazyLock;

use bytes::Bytes;
use fred::types::Key;

use crate::lock::LockKey;

/// How many there are.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

/// The smallest numbers by which keys lie in each slot, in braces.
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

/// The slot of a lock's record.
pub(in crate::store::redis) fn slot_of(lock: &LockKey) -> u16 {
    // Prefixes have no braces.
    hash(lock.encoded())
}

/// The slot of a key.
pub(super) fn slot_of_key(key: Bytes) -> u16 {
    hash(key)
}

/// A part of a key by which it lies in this slot.
pub(in crate::store::redis) fn tag_of(slot: u16) -> &'static str {
    &TAGS[usize::from(slot)]
}

/// The key of a slot's era.
pub(in crate::store::redis) fn era_key(key_prefix: &str, slot: u16) -> String {
    format!("{key_prefix}era{}", tag_of(slot))
}

/// Slots as people write them: `0-5460, 7`.
pub(in crate::store::redis) fn ranges(slots: impl IntoIterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            Some(_) | None => ranges.push((slot, slot)),
        }
    }
    let shown = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(", ")
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
    fn slots_are_told_as_ranges() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([0, 1, 2, 7, 9, 10]), "0-2, 7, 9-10");
    }
}
