//! Merging the replies of several nodes to a revocation into one.

use super::{
    merge::{REVOKED_RANK, decisiveness, most_decisive, since_ms},
    quorum::QuorumResult,
};
use crate::store::{LeaseRejection, LeaseReply, Outcome, Revoked, RevokedLease};

/// Accepts the reply of a node at which the lease was revoked now.
pub(super) fn revoked_now(
    outcome: Outcome<LeaseReply<Revoked>>,
) -> Result<RevokedLease, LeaseReply<Revoked>> {
    match outcome.reply {
        Ok(Revoked::Taken(lease)) => Ok(lease),
        other => Err(other),
    }
}

/// Merges the replies to a revocation.
pub(super) fn revoked(
    result: QuorumResult<RevokedLease, LeaseReply<Revoked>>,
    queue_length: u32,
) -> LeaseReply<Revoked> {
    match result {
        QuorumResult::Wanted(leases) => one_lease(leases, queue_length)
            .map(Revoked::Taken)
            .ok_or(LeaseRejection::NotFound),
        QuorumResult::Rejected(replies) => most_decisive(
            replies,
            Err(LeaseRejection::NotFound),
            |reply| match reply {
                Ok(_) => REVOKED_RANK,
                Err(rejection) => decisiveness(rejection),
            },
        ),
    }
}

/// Merges the leases that a quorum revoked. The nodes granted the lease at slightly different times.
fn one_lease(leases: Vec<RevokedLease>, queue_length: u32) -> Option<RevokedLease> {
    let on = leases.iter().find_map(|lease| lease.on);
    let holders = leases.into_iter().map(|lease| lease.holder);
    let mut holder = holders.min_by_key(|holder| holder.remaining_ms)?;
    holder.since_ms = since_ms(holder.fencing_token);
    Some(RevokedLease {
        holder,
        queue_length,
        on,
    })
}
