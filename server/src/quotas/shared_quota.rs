//! Permits of a quota with a total limit and a limit per authenticated caller.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::lock::Bound;

/// A quota of `total` permits, of which one caller can have `per_caller`.
#[derive(Debug, Clone)]
pub struct SharedQuota {
    per_caller: usize,
    total: usize,
    counts: Arc<Mutex<SharedQuotaCounts>>,
}

#[derive(Debug, Default)]
struct SharedQuotaCounts {
    total: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

/// A permit, released when dropped.
#[derive(Debug)]
pub struct SharedQuotaPermit {
    counts: Arc<Mutex<SharedQuotaCounts>>,
    caller: Arc<str>,
}

impl SharedQuota {
    /// Creates a quota without permits in use.
    pub fn new(per_caller: usize, total: usize) -> Self {
        Self {
            per_caller,
            total,
            counts: Arc::default(),
        }
    }

    /// Returns a permit. `caller` is empty if callers are not authenticated. The limit per caller
    /// does not apply then.
    ///
    /// # Errors
    /// The limit that was reached.
    pub fn try_acquire(&self, caller: &Arc<str>) -> Result<SharedQuotaPermit, Bound> {
        let mut counts = self.counts.lock();
        let caller_count = counts.by_caller.get(caller).copied().unwrap_or(0);
        if !caller.is_empty() && caller_count >= self.per_caller {
            return Err(Bound::PerCaller(self.per_caller));
        }
        if counts.total >= self.total {
            return Err(Bound::Total(self.total));
        }
        counts.total += 1;
        counts
            .by_caller
            .insert(Arc::clone(caller), caller_count + 1);
        Ok(SharedQuotaPermit {
            counts: Arc::clone(&self.counts),
            caller: Arc::clone(caller),
        })
    }
}

impl Drop for SharedQuotaPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total -= 1;
        if let Some(count) = counts.by_caller.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_holds_and_permits_are_released() {
        let quota = SharedQuota::new(2, 3);
        let [alice, bob, unnamed] = ["token:alice", "token:bob", ""].map(Arc::<str>::from);
        let first = quota.try_acquire(&alice).expect("a permit");
        let second = quota.try_acquire(&alice).expect("a permit");
        assert_eq!(quota.try_acquire(&alice).err(), Some(Bound::PerCaller(2)));
        let third = quota.try_acquire(&bob).expect("a permit");
        assert_eq!(quota.try_acquire(&bob).err(), Some(Bound::Total(3)));
        drop((first, second, third));
        assert!(quota.counts.lock().by_caller.is_empty());
        let permits: Vec<_> = (0..3).map(|_| quota.try_acquire(&unnamed)).collect();
        assert!(permits.iter().all(Result::is_ok));
        assert_eq!(quota.try_acquire(&unnamed).err(), Some(Bound::Total(3)));
    }
}
