//! Which locks a list shows.

use super::{LockKey, LockName, LockState, Namespace, SHOWN_MAX};

/// The first of all names: control characters are in none.
const FIRST_NAME: &str = " ";

/// Which locks a list shows. What is empty asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only those of this one.
    pub namespace: Option<Namespace>,
    /// Only names that start so: what a name may consist of.
    pub name_prefix: String,
    /// Only locks that this owner holds or waits for, as one of those that a look shows.
    pub owner_id: String,
}

impl Filter {
    /// Whether the lock has such a name.
    pub fn names(&self, lock: &LockKey) -> bool {
        let namespace = self.namespace.as_ref().map(Namespace::as_str);
        namespace.is_none_or(|namespace| namespace == lock.namespace())
            && lock.name().starts_with(&self.name_prefix)
    }

    /// Whether a lock of such a name is to be shown.
    pub fn shows(&self, state: &LockState) -> bool {
        let holders = state.holders.iter().map(|holder| &holder.owner);
        let mut owners = holders.chain(state.waiters.iter().map(|waiting| &waiting.owner));
        let is_asked = self.owner_id.is_empty() || owners.any(|owner| owner.id == self.owner_id);
        is_asked && !state.is_idle()
    }

    /// How many waiters of each lock it must see. One tells the mode of a lock without holders.
    pub fn waiters(&self) -> usize {
        match self.owner_id.is_empty() {
            true => 1,
            false => SHOWN_MAX,
        }
    }

    /// The first lock, in the order of keys, that may have such a name; `None`: any may.
    pub fn first(&self) -> Option<LockKey> {
        let namespace = self.namespace.clone()?;
        let name = match self.name_prefix.as_str() {
            "" => FIRST_NAME,
            prefix => prefix,
        };
        Some(LockKey::new(namespace, LockName::parse(name).ok()?))
    }
}
