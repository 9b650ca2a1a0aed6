//! Merging the replies of several nodes into one, for each command. The most decisive rejection
//! counts.

use std::cmp::Reverse;

use super::quorum::{QuorumCounter, QuorumResult, Replies, largest_group, nth_largest};
use crate::{
    lock::{ActiveClosure, FencingToken, Grant, Holder, LockState},
    store::{
        Cancelled, Checked, LeaseRejection, LeaseReply, MovedLease, Outcome, Released, Revoked,
        RevokedLease, StoreError,
    },
};

/// Rank of the replies that a lease was revoked earlier. See [`decisiveness`].
const REVOKED_RANK: u8 = 3;

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
        span_ms: merged.span_ms.max(next.span_ms),
        ..merged
    })?;
    Some((grant, moved))
}

/// Returns the time of a grant, derived from its token. The nodes granted at slightly different
/// times. The token is near all of them, and does not depend on which nodes answer.
fn since_ms(token: FencingToken) -> u64 {
    token.get() / 1_000
}

/// Returns the rank of a rejection. Rejections that fewer nodes can report rank higher. Only nodes
/// that executed the release report it, and a node that missed the grant has no record.
fn decisiveness(rejection: &LeaseRejection) -> u8 {
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
        QuorumResult::Rejected(rejections) => {
            let most_decisive = rejections.into_iter().max_by_key(decisiveness);
            Err(most_decisive.unwrap_or(LeaseRejection::NotFound))
        }
    }
}

/// Returns a counter of the replies to a renewal or an attachment. `NotFound` proves nothing; all
/// other rejections prove that the lease has ended or moved.
pub(super) fn renewals(
    nodes: usize,
) -> QuorumCounter<LeaseReply<Grant>, (Grant, Option<MovedLease>), LeaseRejection> {
    let with_moved = |outcome: Outcome<LeaseReply<Grant>>| {
        let moved = outcome.moved;
        outcome.reply.map(|grant| (grant, moved))
    };
    QuorumCounter::new(nodes, with_moved)
        .for_liveness(|rejection| *rejection != LeaseRejection::NotFound)
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

/// Accepts the reply of a node at which the lease was revoked now.
pub(super) fn revoked_now(
    outcome: Outcome<LeaseReply<Revoked>>,
) -> Result<RevokedLease, LeaseReply<Revoked>> {
    match outcome.reply {
        Ok(Revoked::Taken(lease)) => Ok(lease),
        other => Err(other),
    }
}

/// Merges the replies to a revocation. The nodes granted the lease at slightly different times.
pub(super) fn revoked(
    result: QuorumResult<RevokedLease, LeaseReply<Revoked>>,
    queue_length: u32,
) -> LeaseReply<Revoked> {
    match result {
        QuorumResult::Wanted(leases) => {
            let on = leases.iter().find_map(|lease| lease.on);
            let holders = leases.into_iter().map(|lease| lease.holder);
            let shortest = holders.min_by_key(|holder| holder.remaining_ms);
            let mut holder = shortest.ok_or(LeaseRejection::NotFound)?;
            holder.since_ms = since_ms(holder.fencing_token);
            Ok(Revoked::Taken(RevokedLease {
                holder,
                queue_length,
                on,
            }))
        }
        QuorumResult::Rejected(replies) => {
            let most_decisive = replies.into_iter().max_by_key(|reply| match reply {
                Ok(_) => REVOKED_RANK,
                Err(rejection) => decisiveness(rejection),
            });
            most_decisive.unwrap_or(Err(LeaseRejection::NotFound))
        }
    }
}

/// Returns the time until the expiry of a live token. The rejection is the newest token, if there is
/// one.
pub(super) fn liveness(outcome: Outcome<Checked>) -> Result<u64, Option<FencingToken>> {
    match outcome.reply {
        Checked::Live { remaining_ms } => Ok(remaining_ms),
        Checked::Stale { newest } => Err(FencingToken::new(newest)),
        Checked::Unknown => Err(None),
    }
}

/// Merges the replies to a check of a token.
pub(super) fn checked(result: QuorumResult<u64, Option<FencingToken>>) -> Checked {
    match result {
        // The quorum is lost when the first of its nodes expires the lease.
        QuorumResult::Wanted(remaining) => Checked::Live {
            remaining_ms: remaining.into_iter().min().unwrap_or(0),
        },
        QuorumResult::Rejected(newest) => match newest.into_iter().flatten().max() {
            Some(newest) => Checked::Stale {
                newest: newest.get(),
            },
            None => Checked::Unknown,
        },
    }
}

/// Returns true if a quorum of nodes keeps the request, or a quorum does not. Every node receives
/// the cancel, but a node may not yet have received another broker's attempt or cancel.
pub(super) fn is_cancel_decided(replies: &Replies<Cancelled>) -> bool {
    let kept = kept_count(&replies.received);
    kept >= replies.quorum() || replies.received.len() - kept >= replies.quorum()
}

/// Merges the replies to a cancel.
pub(super) fn cancelled(replies: Replies<Cancelled>) -> Result<Cancelled, StoreError> {
    let quorum = replies.quorum();
    let replies = replies.require_quorum()?;
    if kept_count(&replies) >= quorum {
        return Ok(Cancelled::Kept);
    }
    let most_decisive = [Cancelled::Freed, Cancelled::Kept, Cancelled::Dequeued];
    let reply = most_decisive
        .into_iter()
        .find(|reply| replies.contains(reply));
    Ok(reply.unwrap_or(Cancelled::Unknown))
}

fn kept_count(replies: &[Cancelled]) -> usize {
    let kept = replies.iter().filter(|reply| **reply == Cancelled::Kept);
    kept.count()
}

/// Returns true if a quorum of nodes reports one holder, or no quorum can.
pub(super) fn is_state_decided(replies: &Replies<Option<LockState>>) -> bool {
    let quorum = replies.quorum();
    let reports_max = most_reported_holder(&replies.received).len();
    reports_max >= quorum
        || replies.received.len() >= quorum && reports_max + replies.outstanding() < quorum
}

/// Merges the states of a lock, without the local queue.
pub(super) fn lock_state(
    replies: Replies<Option<LockState>>,
) -> Result<Option<LockState>, StoreError> {
    let quorum = replies.quorum();
    let states = replies.require_quorum()?;
    let holder = quorum_holder(&states, quorum);
    let states = states.iter().flatten();
    let newest = states.clone().map(|state| state.last_fencing_token).max();
    let closures = states.filter_map(|state| state.closure.as_deref());
    let closure = closure(closures, quorum).cloned();
    Ok(newest.map(|last_fencing_token| LockState {
        holder_count: holder.is_some().into(),
        holders: holder.into_iter().collect(),
        waiters: Vec::new(),
        queue_length: 0,
        closure: closure.map(Box::new),
        permit_usage: None,
        last_fencing_token,
    }))
}

/// Returns the closure for which a quorum of nodes is closed: nothing is granted before its end.
pub(super) fn closure<'a>(
    closures: impl Iterator<Item = &'a ActiveClosure>,
    quorum: usize,
) -> Option<&'a ActiveClosure> {
    let mut closures: Vec<_> = closures.collect();
    closures.sort_by_key(|closure| Reverse(closure.remaining_ms));
    closures.get(quorum - 1).copied()
}

/// Returns the holder that a quorum of nodes reports, with the time for which a quorum stores it.
fn quorum_holder(states: &[Option<LockState>], quorum: usize) -> Option<Holder> {
    let reports = most_reported_holder(states);
    let remaining = reports.iter().map(|report| report.remaining_ms);
    let remaining_ms = nth_largest(remaining, quorum)?;
    let report = *reports.first()?;
    Some(Holder {
        remaining_ms,
        since_ms: since_ms(report.fencing_token),
        ..report.clone()
    })
}

/// Returns the reports of the holder that most nodes report.
fn most_reported_holder(states: &[Option<LockState>]) -> Vec<&Holder> {
    let holders = states.iter().flatten().flat_map(|state| &state.holders);
    largest_group(holders, |holder| (holder.lease_id, holder.fencing_token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redlock::quorum::Collector as _;

    #[test]
    fn a_cancel_has_the_result_of_a_quorum() {
        use Cancelled::{Freed, Kept, Unknown};
        for (all, needed, expected) in [
            (&[Kept, Freed, Freed, Freed, Kept][..], 4, Freed),
            (&[Freed, Kept, Kept, Freed, Freed], 5, Freed),
            (&[Kept, Kept, Kept, Freed, Freed], 3, Kept),
            (&[Kept, Freed, Freed, Kept, Kept], 5, Kept),
            (&[Kept, Freed, Unknown, Kept], 4, Freed),
            (&[Kept, Unknown, Kept], 3, Kept),
            (&[Unknown, Freed, Unknown, Kept, Kept], 3, Freed),
            (&[Unknown, Unknown, Unknown], 3, Unknown),
        ] {
            let mut collector = Replies::new(5, is_cancel_decided);
            let mut added = 0;
            for reply in all {
                if !collector.is_decided() {
                    collector.add(added, true, Ok(Outcome::reply_only(*reply)));
                    added += 1;
                }
            }
            assert_eq!(
                (added, cancelled(collector)),
                (needed, Ok(expected)),
                "{all:?}"
            );
        }
    }

    #[test]
    fn two_of_five_nodes_cannot_cancel() {
        let mut collector = Replies::new(5, is_cancel_decided);
        for node in 0..5 {
            let result = match node {
                0 | 1 => Ok(Outcome::reply_only(Cancelled::Freed)),
                _ => Err(StoreError::Unavailable("gone".to_owned())),
            };
            assert!(!collector.is_decided());
            collector.add(node, true, result);
        }
        assert!(collector.is_decided());
        let result = cancelled(collector);
        assert!(
            matches!(result, Err(StoreError::Unavailable(_))),
            "{result:?}"
        );
    }
}
