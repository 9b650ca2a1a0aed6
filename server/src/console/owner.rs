//! Page of one owner: everything that it holds or waits for, to judge the effects of stopping it.

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
    ConsoleState, SharedState,
    format::{Moment, href},
    layout::{AuthenticatedUser, ErrorPage, Layout, render, require_broker},
    lock::{hold_of, position_of},
    locks::{Row, Search},
    sse::{View, updates_address},
};
use crate::grpc::ConsoleUser;

/// Number of locks per page. Each queue in which the owner waits requires another store request.
const ROWS: i32 = 50;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnerQuery {
    id: String,
    from: String,
}

#[derive(Template)]
#[template(path = "owner.html")]
struct OwnerPage {
    frame: Layout,
    id: String,
    held: Vec<Held>,
    waits: Vec<Waits>,
    /// Number of calls that wait for locks of the owner.
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
    State(console): State<SharedState>,
    AuthenticatedUser(user): AuthenticatedUser,
    Query(query): Query<OwnerQuery>,
) -> Result<Response, ErrorPage> {
    require_broker(&console, &user)?;
    if query.id.is_empty() {
        let message = "The URL does not contain an owner.";
        return Err(ErrorPage::new(StatusCode::BAD_REQUEST, message).with_user(&user));
    }
    let search = Search {
        owner: query.id.clone(),
        ..Search::default()
    };
    let request = search.request(&query.from, ROWS);
    let result = console.backend.list_locks(&user, request).await;
    let listed = result.map_err(|error| ErrorPage::from(error).with_user(&user))?;
    let (mut held, mut waits, mut behind) = (Vec::new(), Vec::new(), 0);
    for lock in &listed.locks {
        let row = Row::new(lock);
        if let Some((since, left, reason)) = hold_of(lock, &query.id) {
            behind += i64::from(lock.queue_length);
            held.push(Held {
                row,
                since,
                left,
                reason,
            });
        } else {
            let position = waiting_position(&console, &user, lock, &query.id).await;
            waits.push(Waits {
                row,
                place: position,
            });
        }
    }
    let layout = Layout::new(&console, &user, plain(&query.id), "locks");
    let next = Some(listed.next_page_token).filter(|next| !next.is_empty());
    let next = next.map(|from| href("/owner", &[("id", &query.id), ("from", &from)]));
    Ok(render(&OwnerPage {
        frame: layout.live_at(updates_address(View::Search, None)),
        id: plain(&query.id),
        held,
        waits,
        behind,
        next,
        is_first: query.from.is_empty(),
    }))
}

/// Returns the queue position, which a list does not contain, if the owner still waits.
async fn waiting_position(
    console: &ConsoleState,
    user: &ConsoleUser,
    lock: &pb::Lock,
    owner_id: &str,
) -> Option<(usize, Moment)> {
    let target = lock.target.clone()?;
    let request = GetLockRequest {
        namespace: target.namespace,
        name: target.name,
    };
    let lock = console.backend.get_lock(user, request).await.ok()?;
    position_of(&lock, owner_id)
}
