//! Merging the replies of several nodes into one, for each command. The most decisive rejection
//! counts.

use super::quorum::{Collector, QuorumResult, no_quorum, quorum};
use crate::{
    lock::{FencingToken, Grant, Holder, LockState},
    store::{Checked, LeaseRejection, LeaseReply, MovedLease, Outcome, Released, StoreError},
};

/// Rank of the replies that a lease was revoked earlier. See [`decisiveness`].
pub(super) const REVOKED_RANK: u8 = 3;

/// Merges the grants of a quorum into one grant with the shortest validity, and the stream that the
/// lease left.
pub(super) fn merge_grants(
    grants: Vec<(Grant, Option<MovedLease>)>,
) -> Option<(Grant, Option<MovedLease>)> {
    let moved = grants.iter().find_map(|(_, moved)| *moved);
    let grants = grants.into_iter().map(|(grant, _)| grant);
    let grant = grants.reduce(|merged, next| Grant {
        ttl: merged.ttl.min(next.ttl),
        acquired_ms: since_ms(merged.fencing_token),
        hold_count: merged.hold_count.max(next.hold_count),
        ..merged
    })?;
    Some((grant, moved))
}

/// Returns the time of a grant, derived from its token. The nodes granted at slightly different
/// times. The token is near all of them, and does not depend on which nodes answer.
pub(super) fn since_ms(token: FencingToken) -> u64 {
    token.get() / 1_000
}

/// Returns true if this rejection proves that the lease has ended or moved. `NotFound` proves
/// nothing.
pub(super) fn proves_lease_end(rejection: &LeaseRejection) -> bool {
    *rejection != LeaseRejection::NotFound
}

/// Returns the rank of a rejection. Rejections that fewer nodes can report rank higher. Only nodes
/// that executed the release report it, and a node that missed the grant has no record.
pub(super) fn decisiveness(rejection: &LeaseRejection) -> u8 {
    match rejection {
        LeaseRejection::NotFound => 0,
        LeaseRejection::Expired => 1,
        LeaseRejection::MaxHold => 2,
        LeaseRejection::Revoked { .. } => REVOKED_RANK,
        LeaseRejection::Elsewhere => 4,
        LeaseRejection::Released => 5,
    }
}

/// Returns the replies of a quorum, or the most decisive rejection.
fn agreed<Y>(result: QuorumResult<Y, LeaseRejection>) -> LeaseReply<Vec<Y>> {
    match result {
        QuorumResult::Wanted(replies) => Ok(replies),
        QuorumResult::Rejected(rejections) => Err(most_decisive(
            rejections,
            LeaseRejection::NotFound,
            decisiveness,
        )),
    }
}

/// Returns the grant of a lease that was renewed or attached, and the stream that the lease left.
pub(super) fn with_moved(
    outcome: Outcome<LeaseReply<Grant>>,
) -> LeaseReply<(Grant, Option<MovedLease>)> {
    let moved = outcome.moved;
    outcome.reply.map(|grant| (grant, moved))
}

/// Merges the replies to a renewal or an attachment.
pub(super) fn renewed_or_attached(
    result: QuorumResult<(Grant, Option<MovedLease>), LeaseRejection>,
) -> LeaseReply<(Grant, Option<MovedLease>)> {
    merge_grants(agreed(result)?).ok_or(LeaseRejection::NotFound)
}

/// Merges the replies to a release. A lease that only a minority of nodes still had was lost before
/// its release.
pub(super) fn released(result: QuorumResult<Released, LeaseRejection>) -> LeaseReply<Released> {
    let replies = agreed(result)?;
    let hold_counts = replies.iter().map(|released| released.hold_count);
    Ok(Released {
        already_released: replies.iter().all(|released| released.already_released),
        hold_count: hold_counts.max().unwrap_or(0),
    })
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
