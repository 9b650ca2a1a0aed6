//! Quota of the calls of one authenticated caller that wait for one lock.

use std::{collections::HashMap, sync::Arc};

use crate::lock::{LockKey, QuotaExceeded, RequestHash};

/// Maximum number of calls of one authenticated caller that wait for one lock at each broker.
const PER_CALLER_MAX: usize = 1_000;

/// Number of attempts of each call, by caller and lock. Attempts of one call share a queue
/// position.
#[derive(Debug, Default)]
pub(super) struct WaitingCalls(HashMap<(Arc<str>, LockKey), HashMap<RequestHash, u32>>);

impl WaitingCalls {
    /// Adds an attempt of a call, unless too many other calls of the caller wait for the lock.
    pub(super) fn add(
        &mut self,
        caller: &Arc<str>,
        lock: &LockKey,
        request: RequestHash,
    ) -> Result<(), QuotaExceeded> {
        let calls = self.0.entry((Arc::clone(caller), lock.clone()));
        let calls = calls.or_default();
        if calls.len() >= PER_CALLER_MAX && !calls.contains_key(&request) {
            return Err(QuotaExceeded::Waits(PER_CALLER_MAX));
        }
        *calls.entry(request).or_default() += 1;
        Ok(())
    }

    /// Removes an attempt that was added.
    pub(super) fn remove(&mut self, caller: &Arc<str>, lock: &LockKey, request: RequestHash) {
        let key = (Arc::clone(caller), lock.clone());
        let Some(calls) = self.0.get_mut(&key) else {
            return;
        };
        if let Some(attempts) = calls.get_mut(&request) {
            *attempts -= 1;
            if *attempts == 0 {
                calls.remove(&request);
            }
        }
        if calls.is_empty() {
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LockName, Namespace, RequestId};

    #[test]
    fn calls_count_once_however_often_they_are_repeated() {
        let mut waiting_calls = WaitingCalls::default();
        let (alice, bob) = (Arc::from("token:alice"), Arc::from("token:bob"));
        let [lock, other_lock] = ["a", "b"].map(|name| {
            let namespace = Namespace::parse("").expect("the default");
            LockKey::new(namespace, LockName::parse(name).expect("a legal name"))
        });
        let calls: Vec<_> = (0..PER_CALLER_MAX)
            .map(|_| RequestId::random().hash())
            .collect();
        for call in calls.iter().chain(&calls) {
            assert_eq!(waiting_calls.add(&alice, &lock, *call), Ok(()));
        }
        let additional = RequestId::random().hash();
        assert_eq!(
            waiting_calls.add(&alice, &lock, additional),
            Err(QuotaExceeded::Waits(PER_CALLER_MAX))
        );
        assert_eq!(waiting_calls.add(&alice, &other_lock, additional), Ok(()));
        assert_eq!(waiting_calls.add(&bob, &lock, additional), Ok(()));
        waiting_calls.remove(&alice, &lock, calls[0]);
        assert_eq!(
            waiting_calls.add(&alice, &lock, additional),
            Err(QuotaExceeded::Waits(PER_CALLER_MAX))
        );
        waiting_calls.remove(&alice, &lock, calls[0]);
        assert_eq!(waiting_calls.add(&alice, &lock, additional), Ok(()));
        waiting_calls.remove(&alice, &other_lock, additional);
        waiting_calls.remove(&bob, &lock, additional);
        assert_eq!(
            waiting_calls.0.len(),
            1,
            "nothing is kept of queues without calls"
        );
    }
}
