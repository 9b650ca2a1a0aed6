//! Places in a total of which each caller may take a part, where callers show who they are.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::locked;
use crate::lock::Bound;

/// Places, of which `total` may be taken, and `per_caller` by one caller.
#[derive(Debug, Clone)]
pub struct Shares {
    per_caller: usize,
    total: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

/// A place, free again when it is dropped.
#[derive(Debug)]
pub struct Share {
    taken: Arc<Mutex<Taken>>,
    caller: Arc<str>,
}

impl Shares {
    /// Creates places of which none is taken.
    pub fn new(per_caller: usize, total: usize) -> Self {
        Self {
            per_caller,
            total,
            taken: Arc::default(),
        }
    }

    /// Takes a place. `caller` is empty where callers do not show who they are: the bound per caller
    /// does not apply then.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn take(&self, caller: &Arc<str>) -> Result<Share, Bound> {
        let mut taken = locked(&self.taken);
        let mine = taken.by_caller.get(caller).copied().unwrap_or(0);
        if !caller.is_empty() && mine >= self.per_caller {
            return Err(Bound::PerCaller(self.per_caller));
        }
        if taken.total >= self.total {
            return Err(Bound::Total(self.total));
        }
        taken.total += 1;
        taken.by_caller.insert(Arc::clone(caller), mine + 1);
        Ok(Share {
            taken: Arc::clone(&self.taken),
            caller: Arc::clone(caller),
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        taken.total -= 1;
        if let Some(mine) = taken.by_caller.get_mut(&self.caller) {
            *mine -= 1;
            if *mine == 0 {
                taken.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_holds_and_places_come_back() {
        let shares = Shares::new(2, 3);
        let [alice, bob, unnamed] = ["token:alice", "token:bob", ""].map(Arc::<str>::from);
        let first = shares.take(&alice).expect("a place");
        let second = shares.take(&alice).expect("a place");
        assert_eq!(shares.take(&alice).err(), Some(Bound::PerCaller(2)));
        let third = shares.take(&bob).expect("a place");
        assert_eq!(shares.take(&bob).err(), Some(Bound::Total(3)));
        drop((first, second, third));
        assert!(locked(&shares.taken).by_caller.is_empty());
        let all: Vec<_> = (0..3).map(|_| shares.take(&unnamed)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(shares.take(&unnamed).err(), Some(Bound::Total(3)));
    }
}
