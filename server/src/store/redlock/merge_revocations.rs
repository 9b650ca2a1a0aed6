//! Merging the replies of several nodes to a revocation into one.

use super::merge::{most_decisive, since_ms};
use crate::{
    lock::{Attachment, Holder},
    store::{Outcome, Revoked},
};

pub(super) fn revoked(
    outcome: Outcome<Revoked>,
) -> Result<(Box<Holder>, Option<Attachment>), Revoked> {
    match outcome.reply {
        Revoked::Taken { holder, on, .. } => Ok((holder, on)),
        rejection @ (Revoked::Already
        | Revoked::Expired
        | Revoked::Released
        | Revoked::NotFound) => Err(rejection),
    }
}

/// Merges the replies of a quorum that revoked a lease. The nodes granted it at slightly different
/// times.
pub(super) fn merge_revoked(
    replies: Vec<(Box<Holder>, Option<Attachment>)>,
    queue_length: u32,
) -> Revoked {
    let on = replies.iter().find_map(|(_, on)| *on);
    let holders = replies.into_iter().map(|(holder, _)| holder);
    let Some(mut holder) = holders.min_by_key(|holder| holder.remaining_ms) else {
        return Revoked::NotFound;
    };
    holder.since_ms = since_ms(holder.fencing_token);
    Revoked::Taken {
        holder,
        queue_length,
        on,
    }
}

/// Returns the reason for which a lease was not revoked.
pub(super) fn not_revoked(rejections: Vec<Revoked>) -> Revoked {
    most_decisive(rejections, Revoked::NotFound, |revoked| match revoked {
        Revoked::Taken { .. } | Revoked::NotFound => 0,
        Revoked::Expired => 1,
        Revoked::Already => 2,
        Revoked::Released => 3,
    })
}
