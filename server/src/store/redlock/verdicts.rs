//! What each verb's answers mean together, refusals included: the strongest of them counts.

use super::tally::{Gather, Together, no_quorum, quorum};
use crate::{
    lock::{Attachment, FencingToken, Grant, Holder, LockState},
    store::{Attached, Checked, Moved, Outcome, Released, Renewed, Revoked, StoreError},
};

/// The grants of a quorum as one: no longer than the shortest.
pub(super) fn one_grant(grants: &[Grant]) -> Option<Grant> {
    let mut grants = grants.iter().copied();
    let first = grants.next()?;
    Some(grants.fold(first, |one, other| Grant {
        ttl: one.ttl.min(other.ttl),
        acquired_ms: since_ms(one.fencing_token),
        hold_count: one.hold_count.max(other.hold_count),
        ..one
    }))
}

/// The nodes granted at times that differ a little. The token is near all of them, and the same
/// whoever answers.
fn since_ms(token: FencingToken) -> u64 {
    token.get() / 1_000
}

pub(super) fn extended(outcome: Outcome<Renewed>) -> Result<Grant, Renewed> {
    match outcome.reply {
        Renewed::Extended(grant) => Ok(grant),
        other @ (Renewed::Elsewhere
        | Renewed::MaxHold
        | Renewed::Revoked { .. }
        | Renewed::Expired
        | Renewed::Released
        | Renewed::NotFound) => Err(other),
    }
}

/// Whether who says so knows that the lease is over, or elsewhere. Who has never heard of it does not.
pub(super) fn ends_renewed(refused: &Renewed) -> bool {
    match refused {
        Renewed::Elsewhere
        | Renewed::MaxHold
        | Renewed::Revoked { .. }
        | Renewed::Expired
        | Renewed::Released => true,
        Renewed::NotFound | Renewed::Extended(_) => false,
    }
}

pub(super) fn renewed(together: Together<Grant, Renewed>) -> Renewed {
    match together {
        Together::Wanted(grants) => one_grant(&grants).map_or(Renewed::NotFound, Renewed::Extended),
        // A release is known to nobody else, and a node that missed the grant knows nothing.
        Together::Refused(refusals) => {
            strongest(refusals, Renewed::NotFound, |renewed| match renewed {
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

pub(super) fn attached(outcome: Outcome<Attached>) -> Result<(Grant, Option<Moved>), Attached> {
    match outcome.reply {
        Attached::Attached(grant) => Ok((grant, outcome.moved)),
        other @ (Attached::Stale
        | Attached::MaxHold
        | Attached::Revoked { .. }
        | Attached::Expired
        | Attached::Released
        | Attached::NotFound) => Err(other),
    }
}

/// As with renewals.
pub(super) fn ends_attached(refused: &Attached) -> bool {
    match refused {
        Attached::Stale
        | Attached::MaxHold
        | Attached::Revoked { .. }
        | Attached::Expired
        | Attached::Released => true,
        Attached::NotFound | Attached::Attached(_) => false,
    }
}

/// Why a lease was not attached.
pub(super) fn not_attached(refusals: Vec<Attached>) -> Attached {
    strongest(refusals, Attached::NotFound, |attached| match attached {
        Attached::Attached(_) | Attached::NotFound => 0,
        Attached::Expired => 1,
        Attached::MaxHold => 2,
        Attached::Revoked { .. } => 3,
        Attached::Stale => 4,
        Attached::Released => 5,
    })
}

/// Given back now or before.
pub(super) fn given_back(outcome: Outcome<Released>) -> Result<Released, Released> {
    match outcome.reply {
        done @ (Released::Now { .. } | Released::Already { .. }) => Ok(done),
        other @ (Released::Elsewhere
        | Released::Expired
        | Released::Revoked { .. }
        | Released::NotFound) => Err(other),
    }
}

pub(super) fn released(together: Together<Released, Released>) -> Released {
    match together {
        Together::Wanted(done) => {
            let left = done.iter().map(|released| match released {
                Released::Now { hold_count } | Released::Already { hold_count } => *hold_count,
                Released::Elsewhere
                | Released::Expired
                | Released::Revoked { .. }
                | Released::NotFound => 0,
            });
            let hold_count = left.max().unwrap_or(0);
            let is_now = |released: &Released| matches!(released, Released::Now { .. });
            if done.iter().any(is_now) {
                Released::Now { hold_count }
            } else {
                Released::Already { hold_count }
            }
        }
        // What only a minority still had was lost before it was given back.
        Together::Refused(refusals) => {
            strongest(refusals, Released::NotFound, |released| match released {
                Released::Now { .. } | Released::Already { .. } | Released::NotFound => 0,
                Released::Expired => 1,
                Released::Revoked { .. } => 2,
                Released::Elsewhere => 3,
            })
        }
    }
}

pub(super) fn taken(
    outcome: Outcome<Revoked>,
) -> Result<(Box<Holder>, Option<Attachment>), Revoked> {
    match outcome.reply {
        Revoked::Taken { holder, on, .. } => Ok((holder, on)),
        other @ (Revoked::Already | Revoked::Expired | Revoked::Released | Revoked::NotFound) => {
            Err(other)
        }
    }
}

/// What was taken away. The nodes granted it at times that differ a little.
pub(super) fn all_taken(
    taken: Vec<(Box<Holder>, Option<Attachment>)>,
    queue_length: u32,
) -> Revoked {
    let on = taken.iter().find_map(|(_, on)| *on);
    let holders = taken.into_iter().map(|(holder, _)| holder);
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

/// Why a lease was not taken away.
pub(super) fn not_taken(refusals: Vec<Revoked>) -> Revoked {
    strongest(refusals, Revoked::NotFound, |revoked| match revoked {
        Revoked::Taken { .. } | Revoked::NotFound => 0,
        Revoked::Expired => 1,
        Revoked::Already => 2,
        Revoked::Released => 3,
    })
}

/// Time left, or the newest token that was given; 0 for none.
pub(super) fn live(outcome: Outcome<Checked>) -> Result<u64, u64> {
    match outcome.reply {
        Checked::Live { remaining_ms } => Ok(remaining_ms),
        Checked::Stale { newest } => Err(newest),
        Checked::Unknown => Err(0),
    }
}

pub(super) fn checked(together: Together<u64, u64>) -> Checked {
    match together {
        // When the first of the quorum forgets it, there is none.
        Together::Wanted(left) => Checked::Live {
            remaining_ms: left.into_iter().min().unwrap_or(0),
        },
        Together::Refused(newest) => match newest.into_iter().max().unwrap_or(0) {
            0 => Checked::Unknown,
            newest => Checked::Stale { newest },
        },
    }
}

pub(super) fn strongest<T>(all: Vec<T>, none: T, strength: fn(&T) -> u8) -> T {
    all.into_iter().max_by_key(strength).unwrap_or(none)
}

/// What nodes show of a lock. Only what a quorum holds is held.
pub(super) struct Seen {
    nodes: usize,
    states: Vec<Option<LockState>>,
    silent: Vec<StoreError>,
}

impl Seen {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            states: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// The lock as the quorum has it, without its line.
    pub(super) fn together(self) -> Result<Option<LockState>, StoreError> {
        if self.states.len() < quorum(self.nodes) {
            let open = self.nodes - self.states.len() - self.silent.len();
            return Err(no_quorum(self.nodes, open, self.silent.into_iter()));
        }
        let holders: Vec<_> = self.holder().into_iter().collect();
        let known: Vec<_> = self.states.iter().flatten().collect();
        let newest = known.iter().map(|state| state.last_fencing_token).max();
        let mut closed: Vec<_> = known.iter().map(|state| state.closed_ms).collect();
        closed.sort_unstable_by(|one, other| other.cmp(one));
        Ok(newest.map(|last_fencing_token| LockState {
            holder_count: u32::try_from(holders.len()).unwrap_or(u32::MAX),
            holders,
            waiters: Vec::new(),
            queue_length: 0,
            closed_ms: closed.get(quorum(self.nodes) - 1).copied().unwrap_or(0),
            last_fencing_token,
        }))
    }

    fn holder(&self) -> Option<Holder> {
        let most = self.most();
        let (first, _) = most.filter(|(_, count)| *count >= quorum(self.nodes))?;
        let same = self.all().filter(|other| is_same(first, other));
        let mut left: Vec<_> = same.map(|holder| holder.remaining_ms).collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        Some(Holder {
            remaining_ms: left[quorum(self.nodes) - 1],
            since_ms: since_ms(first.fencing_token),
            ..first.clone()
        })
    }

    /// The holder whom most nodes show, and how many do.
    fn most(&self) -> Option<(&Holder, usize)> {
        let count = |one: &Holder| self.all().filter(|other| is_same(one, other)).count();
        let all = self.all().map(|holder| (holder, count(holder)));
        all.max_by_key(|(_, count)| *count)
    }

    fn all(&self) -> impl Iterator<Item = &Holder> + Clone {
        self.states
            .iter()
            .flatten()
            .flat_map(|state| &state.holders)
    }
}

impl Gather<Option<LockState>> for Seen {
    fn add(
        &mut self,
        _node: usize,
        _is_sure: bool,
        answer: Result<Outcome<Option<LockState>>, StoreError>,
    ) {
        match answer {
            Ok(outcome) => self.states.push(outcome.reply),
            Err(error) => self.silent.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let quorum = quorum(self.nodes);
        let open = self.nodes - self.states.len() - self.silent.len();
        let most = self.most().map_or(0, |(_, count)| count);
        open == 0 || most >= quorum || self.states.len() >= quorum && most + open < quorum
    }
}

fn is_same(one: &Holder, other: &Holder) -> bool {
    one.lease_id == other.lease_id && one.fencing_token == other.fencing_token
}
