//! Everything that an owner holds or waits for: what stops, and what goes on, if it is stopped.

use askama::Template;
use axum::{
    extract::{Query, State},
    http::StatusCode,
    response::Response,
};
use leasehold_proto::{
    text::plain,
    v1::{self as pb, GetLockRequest},
};
use serde::Deserialize;

use super::{
    Page, Shared,
    frame::{Failure, Frame, Guest, broker, rendered},
    live::{View, address},
    lock::{held_by, place_of},
    locks::{Row, Search},
    shown::{Moment, href},
};
use crate::grpc::Visitor;

/// Locks of one look. For each line that the owner stands in the store is asked once more.
const ROWS: i32 = 50;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    id: String,
    from: String,
}

#[derive(Template)]
#[template(path = "owner.html")]
struct OwnerPage {
    frame: Frame,
    id: String,
    held: Vec<Held>,
    waits: Vec<Waits>,
    /// Calls that wait for what it holds.
    behind: i64,
    next: Option<String>,
    is_first: bool,
}

struct Held {
    row: Row,
    since: Moment,
    left: Moment,
    reason: String,
}

struct Waits {
    row: Row,
    place: Option<(usize, Moment)>,
}

pub(super) async fn show(
    State(page): State<Shared>,
    Guest(visitor): Guest,
    Query(asked): Query<Asked>,
) -> Result<Response, Failure> {
    broker(&page, &visitor)?;
    if asked.id.is_empty() {
        let why = "Which owner? The address names none.";
        return Err(Failure::new(StatusCode::BAD_REQUEST, why).of(&visitor));
    }
    let search = Search {
        owner: asked.id.clone(),
        ..Search::default()
    };
    let request = search.request(&asked.from, ROWS);
    let listed = page.desk.list_locks(&visitor, request).await;
    let listed = listed.map_err(|refusal| Failure::from(refusal).of(&visitor))?;
    let (mut held, mut waits, mut behind) = (Vec::new(), Vec::new(), 0);
    for lock in &listed.locks {
        let row = Row::of(lock);
        if let Some((since, left, reason)) = held_by(lock, &asked.id) {
            behind += i64::from(lock.queue_length);
            held.push(Held {
                row,
                since,
                left,
                reason,
            });
        } else {
            let place = in_line(&page, &visitor, lock, &asked.id).await;
            waits.push(Waits { row, place });
        }
    }
    let frame = Frame::new(&page, &visitor, plain(&asked.id), "locks");
    let next = Some(listed.next_page_token).filter(|next| !next.is_empty());
    let next = next.map(|from| href("/owner", &[("id", &asked.id), ("from", &from)]));
    Ok(rendered(&OwnerPage {
        frame: frame.live_at(address(View::Search, None)),
        id: plain(&asked.id),
        held,
        waits,
        behind,
        next,
        is_first: asked.from.is_empty(),
    }))
}

/// Where it stands, if it is still there. A list does not say so.
async fn in_line(
    page: &Page,
    visitor: &Visitor,
    lock: &pb::Lock,
    owner: &str,
) -> Option<(usize, Moment)> {
    let target = lock.target.clone()?;
    let request = GetLockRequest {
        namespace: target.namespace,
        name: target.name,
    };
    let lock = page.desk.get_lock(visitor, request).await.ok()?;
    place_of(&lock, owner)
}
