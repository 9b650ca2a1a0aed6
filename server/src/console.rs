//! Operator console on the admin listener: HTML pages about this broker and its store,
//! which need no script.

mod assets;
mod audit;
mod change_feed;
mod closure;
mod csrf;
mod force_release;
mod form;
mod format;
mod layout;
mod lock;
mod lock_counts;
mod locks;
mod overview;
mod owner;
mod security;
mod sse;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
    routing::{get, post},
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{change_feed::ChangeFeed, csrf::CsrfTokens, lock_counts::LockCounter};
use crate::{inspection::InspectionService, quotas::SharedQuota};

/// Maximum number of pages that receive live updates. Further pages update when they are reloaded.
const LIVE_PAGES_MAX: usize = 64;
/// Maximum number of live pages of one caller, if callers authenticate.
const LIVE_PAGES_PER_CALLER_MAX: usize = 8;
/// Maximum size of a form. A form with the longest valid fields, percent-encoded, fits.
const FORM_MAX_BYTES: usize = 16 * 1_024;

/// The state that all requests share.
struct ConsoleState {
    service: InspectionService,
    /// A short description of the store and its address.
    store: String,
    started_at: Instant,
    csrf_tokens: CsrfTokens,
    lock_counter: LockCounter,
    change_feed: ChangeFeed,
    live_updates: SharedQuota,
}

type SharedState = Arc<ConsoleState>;

/// Creates the routes of the console, which are merged with the other routes of the listener.
/// `stop` stops the background tasks.
pub(crate) fn router(service: InspectionService, store: String, stop: CancellationToken) -> Router {
    let tasks = TaskTracker::new();
    let console = Arc::new(ConsoleState {
        store,
        started_at: Instant::now(),
        csrf_tokens: CsrfTokens::new(),
        lock_counter: LockCounter::new(tasks.clone(), stop.clone()),
        change_feed: ChangeFeed::new(tasks, stop),
        live_updates: SharedQuota::new(LIVE_PAGES_PER_CALLER_MAX, LIVE_PAGES_MAX),
        service,
    });
    Router::new()
        .route("/", get(overview::show))
        .route("/locks", get(locks::show))
        .route("/lock", get(lock::show))
        .route("/owner", get(owner::show))
        .route("/audit", get(audit::show))
        .route("/live", get(sse::stream_updates))
        .route("/lock/force-release", post(force_release::force_release))
        .route("/lock/close", post(closure::close))
        .route("/lock/open", post(closure::open))
        .route_layer(from_fn_with_state(
            Arc::clone(&console),
            layout::authenticate,
        ))
        .route("/assets/page.css", get(assets::css))
        .route("/assets/page.js", get(assets::js))
        .route("/assets/icon.svg", get(assets::icon))
        .layer(DefaultBodyLimit::max(FORM_MAX_BYTES))
        .layer(from_fn(security::check_origin))
        .layer(from_fn(security::security_headers))
        .with_state(console)
}
