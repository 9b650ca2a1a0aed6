//! Page of one owner: everything that it holds or waits for, to judge the effects of stopping it.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;

use super::{
    ConsoleState, SharedState,
    format::{Moment, href},
    layout::{ErrorPage, Layout, render, require_broker},
    locks::Row,
    sse::{View, updates_address},
};
use crate::{inspection::ListRequest, lock::LockKey, request::RequestContext, telemetry::plain};

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
    behind: u64,
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
    Extension(user): Extension<RequestContext>,
    Query(query): Query<OwnerQuery>,
) -> Result<Response, ErrorPage> {
    require_broker(&console)?;
    if query.id.is_empty() {
        let message = "The URL does not contain an owner.";
        return Err(ErrorPage::new(StatusCode::BAD_REQUEST, message));
    }
    let request = ListRequest {
        owner_id: query.id.clone(),
        page_size: ROWS,
        page_token: query.from.clone(),
        ..ListRequest::default()
    };
    let listed = console.service.list(&user, request).await?;
    let (mut held, mut waits, mut behind) = (Vec::new(), Vec::new(), 0);
    for lock in &listed.locks {
        let row = Row::new(lock);
        let mut holders = lock.state.holders.iter();
        if let Some(holder) = holders.find(|holder| holder.owner.id == query.id) {
            behind += u64::from(lock.state.queue_length);
            held.push(Held {
                row,
                since: Moment::past(holder.since_ms),
                left: Moment::ahead(holder.remaining_ms),
                reason: plain(&holder.owner.reason),
            });
        } else {
            let place = waiting_position(&console, &user, &lock.lock, &query.id).await;
            waits.push(Waits { row, place });
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
    user: &RequestContext,
    lock: &LockKey,
    owner_id: &str,
) -> Option<(usize, Moment)> {
    let state = console.service.get(user, lock).await.ok()??;
    let mut queue = (1..).zip(&state.waiters);
    let (position, waiter) = queue.find(|(_, waiter)| waiter.owner.id == owner_id)?;
    Some((position, Moment::past(waiter.since_ms)))
}
