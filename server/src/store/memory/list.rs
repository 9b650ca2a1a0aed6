//! Lists the records in the order of their keys.

use std::ops::Bound;

use super::Memory;
use crate::{
    lock::Filter,
    store::{Cursor, Listed},
};

/// Records that one step looks at: others wait meanwhile.
const STEP: usize = 64;

/// See [`Store::list`](crate::store::Store::list).
pub(super) fn step(memory: &Memory, filter: &Filter, from: Option<&Cursor>, most: usize) -> Listed {
    let from = match from {
        None => filter.first().map_or(Bound::Unbounded, Bound::Included),
        Some(Cursor::After(last)) => Bound::Excluded(last.clone()),
        Some(Cursor::Scan(_)) => return Listed::Stale,
    };
    let now_us = memory.now_us();
    let state = memory.state();
    let records = state.records.range((from, Bound::Unbounded));
    let (mut locks, mut next) = (Vec::new(), None);
    for (looked, (lock, kept)) in (1..).zip(records) {
        match (filter.names(lock), &filter.namespace) {
            (true, _) => {
                let state = kept.seen(now_us).filter(|state| filter.shows(state));
                locks.extend(state.map(|state| (lock.clone(), state)));
            }
            // Those of one namespace that start alike stand together.
            (false, Some(_)) => break,
            (false, None) => {}
        }
        if looked == STEP || locks.len() == most {
            next = Some(Cursor::After(lock.clone()));
            break;
        }
    }
    Listed::Step { locks, next }
}
