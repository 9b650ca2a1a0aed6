//! The calls of each caller that wait for a lock, where callers show who they are.

use std::{collections::HashMap, sync::Arc};

use crate::lock::{LockKey, Quota, RequestHash};

/// Calls of one caller that may wait for one lock at each broker, where callers show who they are.
const PER_CALLER_MAX: usize = 1_000;

/// The attempts of each call, by caller and lock. Attempts of one call share a position in the queue.
#[derive(Debug, Default)]
pub(super) struct Waits(HashMap<(Arc<str>, LockKey), HashMap<RequestHash, u32>>);

impl Waits {
    /// Adds an attempt of a call, unless too many other calls of the caller wait for the lock.
    pub(super) fn add(
        &mut self,
        caller: &Arc<str>,
        lock: &LockKey,
        request: RequestHash,
    ) -> Result<(), Quota> {
        let calls = self.0.entry((Arc::clone(caller), lock.clone()));
        let calls = calls.or_default();
        if calls.len() >= PER_CALLER_MAX && !calls.contains_key(&request) {
            return Err(Quota::Waits(PER_CALLER_MAX));
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
        let mut waits = Waits::default();
        let (alice, bob) = (Arc::from("token:alice"), Arc::from("token:bob"));
        let [lock, other] = ["a", "b"].map(|name| {
            let namespace = Namespace::parse("").expect("the default");
            LockKey::new(namespace, LockName::parse(name).expect("a legal name"))
        });
        let calls: Vec<_> = (0..PER_CALLER_MAX)
            .map(|_| RequestId::random().hash())
            .collect();
        for call in calls.iter().chain(&calls) {
            assert_eq!(waits.add(&alice, &lock, *call), Ok(()));
        }
        let one_more = RequestId::random().hash();
        assert_eq!(
            waits.add(&alice, &lock, one_more),
            Err(Quota::Waits(PER_CALLER_MAX))
        );
        assert_eq!(waits.add(&alice, &other, one_more), Ok(()));
        assert_eq!(waits.add(&bob, &lock, one_more), Ok(()));
        waits.remove(&alice, &lock, calls[0]);
        assert_eq!(
            waits.add(&alice, &lock, one_more),
            Err(Quota::Waits(PER_CALLER_MAX))
        );
        waits.remove(&alice, &lock, calls[0]);
        assert_eq!(waits.add(&alice, &lock, one_more), Ok(()));
        waits.remove(&alice, &other, one_more);
        waits.remove(&bob, &lock, one_more);
        assert_eq!(waits.0.len(), 1, "nothing is kept of queues without calls");
    }
}
