//! Listing of records in the order of their keys.

use std::ops::Bound;

use super::Memory;
use crate::{
    lock::Filter,
    store::{Cursor, Listed},
};

/// Maximum number of records read per step, because the store is locked during the step.
const STEP: usize = 64;

/// See [`Store::list`](crate::store::Store::list).
pub(super) fn step(
    memory: &Memory,
    filter: &Filter,
    from: Option<&Cursor>,
    page_max: usize,
) -> Listed {
    let from = match from {
        None => filter.first().map_or(Bound::Unbounded, Bound::Included),
        Some(Cursor::After(last)) => Bound::Excluded(last.clone()),
        Some(Cursor::Scan(_)) => return Listed::Stale,
    };
    let now_us = memory.now_us();
    let state = memory.state.lock();
    let records = state.records.range((from, Bound::Unbounded));
    let (mut locks, mut next) = (Vec::new(), None);
    for (count, (lock, stored)) in (1..).zip(records) {
        match (filter.matches_name(lock), &filter.namespace) {
            (true, _) => {
                let state = stored
                    .record_at(now_us)
                    .filter(|state| filter.matches_state(state));
                locks.extend(state.map(|state| (lock.clone(), state)));
            }
            // Names with a common prefix are adjacent within a namespace, so no further name
            // matches.
            (false, Some(_)) => break,
            (false, None) => {}
        }
        if count == STEP || locks.len() == page_max {
            next = Some(Cursor::After(lock.clone()));
            break;
        }
    }
    Listed::Step { locks, next }
}
