//! What operators did, what was denied, and which leases were lost, as this replica knows it.

use askama::Template;
use axum::{extract::State, response::Response};
use leasehold_proto::text::plain;

use super::{
    Shared,
    frame::{Failure, Frame, Guest, broker, rendered},
    live::{View, address},
    shown::{Link, span, time},
};
use crate::{
    access::Verb,
    grpc::Visitor,
    history::{Deed, DeedKind, End, EndReason},
};

/// Rows of each table; the log has them all.
const ROWS: usize = 200;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    deeds: Vec<DeedRow>,
    losses: Vec<EndRow>,
}

struct DeedRow {
    at: String,
    what: &'static str,
    mood: &'static str,
    lock: Option<Link>,
    lease_id: String,
    caller: String,
    peer: String,
    why: String,
}

/// How a lease ended.
pub(super) struct EndRow {
    pub(super) at: String,
    pub(super) lock: Link,
    pub(super) how: &'static str,
    pub(super) mood: &'static str,
    /// Where the visitor may see it.
    pub(super) owner: Option<Link>,
    pub(super) held: String,
    pub(super) token: u64,
    pub(super) why: String,
}

pub(super) async fn show(
    State(page): State<Shared>,
    Guest(visitor): Guest,
) -> Result<Response, Failure> {
    let broker = broker(&page, &visitor)?;
    let may_operate = visitor.may_operate().map_err(Failure::from);
    may_operate.map_err(|failure| failure.of(&visitor))?;
    let deeds = broker.history().deeds();
    let deeds = deeds.iter().filter(|deed| is_shown(deed, &visitor));
    let losses = broker.history().losses();
    let losses = losses.iter().filter(|end| visitor.may_list(&end.lock));
    let losses = losses.map(|end| EndRow::of(end, visitor.may(Verb::Observe, &end.lock)));
    let frame = Frame::new(&page, &visitor, "Audit", "audit");
    Ok(rendered(&AuditPage {
        frame: frame.live_at(address(View::Audit, None)),
        deeds: deeds.take(ROWS).map(DeedRow::of).collect(),
        losses: losses.take(ROWS).collect(),
    }))
}

/// To whom the lock is shown with its holders; what names no lock, to those who operate.
fn is_shown(deed: &Deed, visitor: &Visitor) -> bool {
    match &deed.lock {
        Some(lock) => visitor.may_list(lock) && visitor.may(Verb::Observe, lock),
        None => visitor.may_somewhere(Verb::ForceRelease) || visitor.may_somewhere(Verb::Admin),
    }
}

impl DeedRow {
    fn of(deed: &Deed) -> Self {
        let (what, mood) = match deed.kind {
            DeedKind::ForceRelease => ("taken away", "warning"),
            DeedKind::SetLimit => ("limit set", "good"),
            DeedKind::RemoveLimit => ("limit removed", "good"),
            DeedKind::Denied | DeedKind::Unauthenticated => ("denied", "bad"),
        };
        let caller = match (deed.kind, deed.caller.as_str()) {
            (DeedKind::Unauthenticated, _) => "unknown",
            (_, "") => "not asked",
            (_, caller) => caller,
        };
        let lease_id = deed.lease_id.as_ref();
        Self {
            at: time(deed.at),
            what,
            mood,
            lock: deed.lock.as_ref().map(Link::to_key),
            lease_id: lease_id.map(ToString::to_string).unwrap_or_default(),
            caller: plain(caller),
            peer: plain(&deed.peer),
            why: plain(&deed.why),
        }
    }
}

impl EndRow {
    /// With whose it was and why, unless the visitor may not see that.
    pub(super) fn of(end: &End, may_see: bool) -> Self {
        let (how, mood) = match end.reason {
            EndReason::Released => ("released", "good"),
            EndReason::Expired => ("expired", "bad"),
            EndReason::Revoked => ("revoked", "warning"),
            EndReason::StoreLost => ("lost by the store", "bad"),
            EndReason::MaxHold => ("max_hold has passed", "warning"),
            EndReason::CredentialExpired => ("credential ran out", "warning"),
        };
        let why = if may_see {
            plain(&end.why)
        } else {
            String::new()
        };
        let owner = end.owner.as_ref().filter(|_| may_see);
        Self {
            at: time(end.at),
            lock: Link::to_key(&end.lock),
            how,
            mood,
            owner: owner.map(|owner| Link::to_owner(&owner.id)),
            held: span(end.held_ms),
            token: end.fencing_token,
            why,
        }
    }
}
