//! Filter of lock listings, by namespace, name prefix and owner.

use super::{INSPECT_ENTRIES_MAX, LockKey, LockName, LockState, Namespace};

/// Lower bound of all lock names. Names contain no control characters, and the space is the first
/// character after these.
const FIRST_NAME: &str = " ";

/// A filter of lock listings. An empty field matches every lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Namespace of the listed locks.
    pub namespace: Option<Namespace>,
    /// Prefix of the listed names. Contains only characters that are allowed in names.
    pub name_prefix: String,
    /// Owner id. Matches locks with this owner among the holders and waiters that an inspection
    /// returns.
    pub owner_id: String,
}

impl Filter {
    /// Returns true if the namespace and the name of `lock` match.
    pub fn matches_name(&self, lock: &LockKey) -> bool {
        let namespace = self.namespace.as_ref().map(Namespace::as_str);
        namespace.is_none_or(|namespace| namespace == lock.namespace())
            && lock.name().starts_with(&self.name_prefix)
    }

    /// Returns true if a lock in this state is listed, provided that its name matches.
    pub fn matches_state(&self, state: &LockState) -> bool {
        let holders = state.holders.iter().map(|holder| &holder.owner);
        let mut owners = holders.chain(state.waiters.iter().map(|waiter| &waiter.owner));
        let is_match = self.owner_id.is_empty() || owners.any(|owner| owner.id == self.owner_id);
        is_match && !state.is_idle()
    }

    /// Returns the number of waiters of each lock that the filter must read. One waiter is enough
    /// to determine the mode of a lock without holders.
    pub fn waiters(&self) -> usize {
        match self.owner_id.is_empty() {
            true => 1,
            false => INSPECT_ENTRIES_MAX,
        }
    }

    /// Returns the first lock, in the order of keys, that can match. `None` if there is no lower
    /// bound.
    pub fn first(&self) -> Option<LockKey> {
        let namespace = self.namespace.clone()?;
        let name = match self.name_prefix.as_str() {
            "" => FIRST_NAME,
            prefix => prefix,
        };
        Some(LockKey::new(namespace, LockName::parse(name).ok()?))
    }
}
