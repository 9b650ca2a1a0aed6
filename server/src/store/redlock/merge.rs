//! Merging the replies of several nodes into one, for each command. The most decisive rejection
//! counts.

use super::quorum::{Collector, QuorumResult, no_quorum, quorum};
use crate::{
    lock::{FencingToken, Grant, Holder, LockState},
    store::{Attached, Checked, MovedLease, Outcome, Released, Renewed, StoreError},
};

/// Merges the grants of a quorum into one grant with the shortest validity.
pub(super) fn one_grant(grants: &[Grant]) -> Option<Grant> {
    let mut grants = grants.iter().copied();
    let first = grants.next()?;
    Some(grants.fold(first, |merged, next| Grant {
        ttl: merged.ttl.min(next.ttl),
        acquired_ms: since_ms(merged.fencing_token),
        hold_count: merged.hold_count.max(next.hold_count),
        ..merged
    }))
}

/// Returns the time of a grant, derived from its token. The nodes granted at slightly different
/// times. The token is near all of them, and does not depend on which nodes answer.
pub(super) fn since_ms(token: FencingToken) -> u64 {
    token.get() / 1_000
}

pub(super) fn extended(outcome: Outcome<Renewed>) -> Result<Grant, Renewed> {
    match outcome.reply {
        Renewed::Extended(grant) => Ok(grant),
        rejection @ (Renewed::Elsewhere
        | Renewed::MaxHold
        | Renewed::Revoked { .. }
        | Renewed::Expired
        | Renewed::Released
        | Renewed::NotFound) => Err(rejection),
    }
}

/// Returns true if this reply proves that the lease has ended or moved. `NotFound` proves nothing.
pub(super) fn knows_lease_ended_on_renew(rejection: &Renewed) -> bool {
    match rejection {
        Renewed::Elsewhere
        | Renewed::MaxHold
        | Renewed::Revoked { .. }
        | Renewed::Expired
        | Renewed::Released => true,
        Renewed::NotFound | Renewed::Extended(_) => false,
    }
}

pub(super) fn renewed(result: QuorumResult<Grant, Renewed>) -> Renewed {
    match result {
        QuorumResult::Wanted(grants) => {
            one_grant(&grants).map_or(Renewed::NotFound, Renewed::Extended)
        }
        // Rejections that fewer nodes can report rank higher. Only nodes that executed the release
        // report it, and a node that missed the grant has no record.
        QuorumResult::Rejected(rejections) => {
            most_decisive(rejections, Renewed::NotFound, |renewed| match renewed {
                Renewed::Extended(_) | Renewed::NotFound => 0,
                Renewed::Expired => 1,
                Renewed::MaxHold => 2,
                Renewed::Revoked { .. } => 3,
                Renewed::Elsewhere => 4,
                Renewed::Released => 5,
            })
        }
    }
}

pub(super) fn attached(
    outcome: Outcome<Attached>,
) -> Result<(Grant, Option<MovedLease>), Attached> {
    match outcome.reply {
        Attached::Attached(grant) => Ok((grant, outcome.moved)),
        rejection @ (Attached::Stale
        | Attached::MaxHold
        | Attached::Revoked { .. }
        | Attached::Expired
        | Attached::Released
        | Attached::NotFound) => Err(rejection),
    }
}

/// Returns true if this reply proves that the lease has ended or moved. `NotFound` proves nothing.
pub(super) fn knows_lease_ended_on_attach(rejection: &Attached) -> bool {
    match rejection {
        Attached::Stale
        | Attached::MaxHold
        | Attached::Revoked { .. }
        | Attached::Expired
        | Attached::Released => true,
        Attached::NotFound | Attached::Attached(_) => false,
    }
}

/// Returns the reason for which a lease was not attached.
pub(super) fn not_attached(rejections: Vec<Attached>) -> Attached {
    most_decisive(rejections, Attached::NotFound, |attached| match attached {
        Attached::Attached(_) | Attached::NotFound => 0,
        Attached::Expired => 1,
        Attached::MaxHold => 2,
        Attached::Revoked { .. } => 3,
        Attached::Stale => 4,
        Attached::Released => 5,
    })
}

/// Accepts the reply of a node at which the lease was released, now or before.
pub(super) fn merge_released(outcome: Outcome<Released>) -> Result<Released, Released> {
    match outcome.reply {
        released @ (Released::Now { .. } | Released::Already { .. }) => Ok(released),
        rejection @ (Released::Elsewhere
        | Released::Expired
        | Released::Revoked { .. }
        | Released::NotFound) => Err(rejection),
    }
}

pub(super) fn released(result: QuorumResult<Released, Released>) -> Released {
    match result {
        QuorumResult::Wanted(replies) => {
            let hold_counts = replies.iter().map(|released| match released {
                Released::Now { hold_count } | Released::Already { hold_count } => *hold_count,
                Released::Elsewhere
                | Released::Expired
                | Released::Revoked { .. }
                | Released::NotFound => 0,
            });
            let hold_count = hold_counts.max().unwrap_or(0);
            let is_now = |released: &Released| matches!(released, Released::Now { .. });
            if replies.iter().any(is_now) {
                Released::Now { hold_count }
            } else {
                Released::Already { hold_count }
            }
        }
        // A lease that only a minority of nodes still had was lost before its release.
        QuorumResult::Rejected(rejections) => {
            most_decisive(rejections, Released::NotFound, |released| match released {
                Released::Now { .. } | Released::Already { .. } | Released::NotFound => 0,
                Released::Expired => 1,
                Released::Revoked { .. } => 2,
                Released::Elsewhere => 3,
            })
        }
    }
}

/// Returns the time until the expiry of a live token. The rejection is the newest token, or 0 if
/// there is none.
pub(super) fn liveness(outcome: Outcome<Checked>) -> Result<u64, u64> {
    match outcome.reply {
        Checked::Live { remaining_ms } => Ok(remaining_ms),
        Checked::Stale { newest } => Err(newest),
        Checked::Unknown => Err(0),
    }
}

pub(super) fn checked(result: QuorumResult<u64, u64>) -> Checked {
    match result {
        // The quorum is lost when the first of its nodes expires the lease.
        QuorumResult::Wanted(remaining) => Checked::Live {
            remaining_ms: remaining.into_iter().min().unwrap_or(0),
        },
        QuorumResult::Rejected(newest) => match newest.into_iter().max().unwrap_or(0) {
            0 => Checked::Unknown,
            newest => Checked::Stale { newest },
        },
    }
}

pub(super) fn most_decisive<T>(all: Vec<T>, none: T, strength: fn(&T) -> u8) -> T {
    all.into_iter().max_by_key(strength).unwrap_or(none)
}

/// States of a lock reported by the nodes. A holder counts only if a quorum reports it.
pub(super) struct InspectQuorum {
    nodes: usize,
    states: Vec<Option<LockState>>,
    errors: Vec<StoreError>,
}

impl InspectQuorum {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            states: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Returns the state that a quorum has of the lock, without the local queue.
    pub(super) fn result(self) -> Result<Option<LockState>, StoreError> {
        if self.states.len() < quorum(self.nodes) {
            let open = self.nodes - self.states.len() - self.errors.len();
            return Err(no_quorum(self.nodes, open, self.errors.into_iter()));
        }
        let holders: Vec<_> = self.holder().into_iter().collect();
        let states: Vec<_> = self.states.iter().flatten().collect();
        let newest = states.iter().map(|state| state.last_fencing_token).max();
        let mut closed: Vec<_> = states
            .iter()
            .map(|state| state.lock_delay_remaining_ms)
            .collect();
        closed.sort_unstable_by(|first, second| second.cmp(first));
        Ok(newest.map(|last_fencing_token| LockState {
            holder_count: u32::try_from(holders.len()).unwrap_or(u32::MAX),
            holders,
            waiters: Vec::new(),
            queue_length: 0,
            lock_delay_remaining_ms: closed.get(quorum(self.nodes) - 1).copied().unwrap_or(0),
            last_fencing_token,
        }))
    }

    fn holder(&self) -> Option<Holder> {
        let most_reported = self.most_reported();
        let (first, _) = most_reported.filter(|(_, count)| *count >= quorum(self.nodes))?;
        let same = self.all_holders().filter(|other| is_same(first, other));
        let mut remaining: Vec<_> = same.map(|holder| holder.remaining_ms).collect();
        remaining.sort_unstable_by(|first, second| second.cmp(first));
        Some(Holder {
            remaining_ms: remaining[quorum(self.nodes) - 1],
            since_ms: since_ms(first.fencing_token),
            ..first.clone()
        })
    }

    /// Returns the holder that most nodes report, and the number of these nodes.
    fn most_reported(&self) -> Option<(&Holder, usize)> {
        let count = |holder: &Holder| {
            self.all_holders()
                .filter(|other| is_same(holder, other))
                .count()
        };
        let all = self.all_holders().map(|holder| (holder, count(holder)));
        all.max_by_key(|(_, count)| *count)
    }

    fn all_holders(&self) -> impl Iterator<Item = &Holder> + Clone {
        self.states
            .iter()
            .flatten()
            .flat_map(|state| &state.holders)
    }
}

impl Collector<Option<LockState>> for InspectQuorum {
    fn add(
        &mut self,
        _node: usize,
        _is_sure: bool,
        result: Result<Outcome<Option<LockState>>, StoreError>,
    ) {
        match result {
            Ok(outcome) => self.states.push(outcome.reply),
            Err(error) => self.errors.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let quorum = quorum(self.nodes);
        let open = self.nodes - self.states.len() - self.errors.len();
        let reports_max = self.most_reported().map_or(0, |(_, count)| count);
        open == 0
            || reports_max >= quorum
            || self.states.len() >= quorum && reports_max + open < quorum
    }
}

fn is_same(first: &Holder, second: &Holder) -> bool {
    first.lease_id == second.lease_id && first.fencing_token == second.fencing_token
}
