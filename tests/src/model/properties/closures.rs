//! The property that nothing is granted before the end of a closure.

use super::{Observations, WHOLE};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        keys::{CallKey, LockIndex},
        world::World,
    },
};

/// Cause of a closure in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ClosedBy {
    Operator,
    Lease(CallKey),
}

/// A period in which a lock is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Period {
    until_us: u64,
    /// Era of the store that has the record: a loss of data ends the period.
    era: u32,
}

impl World {
    /// Observes a command of an operator to close or to open a lock.
    pub(super) fn observe_closing(
        &mut self,
        lock: LockIndex,
        command: &StoreCommand,
        reply: &StoreReply,
        era: u32,
    ) {
        let Observations {
            periods,
            opened,
            newest_tokens,
            delays,
            ..
        } = &mut self.observations;
        match (command, reply) {
            (StoreCommand::Close(close), StoreReply::SetClosure(Ok(_))) => {
                let until_us = close.until_ms * 1_000;
                let period = periods.entry((lock, ClosedBy::Operator));
                let period = period.or_insert(Period { until_us, era });
                let earlier_us = if period.era == era {
                    period.until_us
                } else {
                    0
                };
                *period = Period {
                    until_us: until_us.max(earlier_us),
                    era,
                };
            }
            (StoreCommand::Open, StoreReply::SetClosure(Ok(_))) => {
                periods.retain(|(of, _), _| *of != lock);
                delays.retain(|(of, _), _| *of != lock);
                opened[usize::from(lock)] = newest_tokens[usize::from(lock)];
            }
            _ => {}
        }
    }

    /// Checks that no closure of the era keeps a new lease out of the lock.
    pub(super) fn check_closed(
        &self,
        lock: LockIndex,
        lease: CallKey,
        era: u32,
    ) -> Result<(), String> {
        let period = self.observations.periods.iter().find(|((of, by), period)| {
            *of == lock
                && *by != ClosedBy::Lease(lease)
                && period.era == era
                && self.now_us < period.until_us
        });
        if let Some(((_, by), period)) = period {
            return Err(format!(
                "lock {lock} is granted to lease {lease} {} µs before the end of the period for \
                 which it is closed by {by:?}",
                period.until_us - self.now_us
            ));
        }
        Ok(())
    }

    /// Updates the periods of the exclusive leases that clients have received with `at_least`. If
    /// one of their entries is released, the lock is closed from then on.
    pub(super) fn update_periods(&mut self) {
        for client in &self.clients {
            for (key, lease) in &client.leases {
                for (lock, held) in &lease.locks {
                    let granted = &self.observations.grants[&(*lock, held.token)];
                    let is_opened = held.token <= self.observations.opened[usize::from(*lock)];
                    if granted.at_least_ms > 0
                        && held.weight() == WHOLE
                        && held.era == self.store.era
                        && !is_opened
                    {
                        let period = Period {
                            until_us: granted.granted_us + granted.at_least_ms * 1_000,
                            era: held.era,
                        };
                        let by = (*lock, ClosedBy::Lease(*key));
                        self.observations.periods.insert(by, period);
                    }
                }
            }
        }
    }
}
