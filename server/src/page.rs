//! The operators' page on the admin listener: what this replica and its store know, in HTML that needs no script.

mod assets;
mod audit;
mod census;
mod force;
mod frame;
mod guard;
mod live;
mod lock;
mod locks;
mod overview;
mod owner;
mod pulse;
mod seal;
mod shown;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::from_fn,
    routing::{get, post},
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{census::Census, pulse::Pulse, seal::Seal};
use crate::{grpc::Desk, quotas::Shares};

/// Pages that are updated while they are shown; others show new data when they are loaded again.
const LIVE_PAGES_MAX: usize = 64;
/// Such pages of one caller, where callers show who they are.
const LIVE_PAGES_PER_CALLER_MAX: usize = 8;
/// A form of the longest legal fields, percent-encoded, fits.
const FORM_MAX_BYTES: usize = 16 * 1_024;

/// What the page is made of.
pub(crate) struct Setup {
    /// Where it asks.
    pub(crate) desk: Desk,
    /// What the store is and where, in a few words.
    pub(crate) store: String,
    /// Ends what the page does in the background.
    pub(crate) stop: CancellationToken,
}

/// What all requests share.
struct Page {
    desk: Desk,
    store: String,
    began: Instant,
    seal: Seal,
    census: Census,
    pulse: Pulse,
    listeners: Shares,
}

type Shared = Arc<Page>;

/// The page, to be put beside what else the listener serves.
pub(crate) fn router(setup: Setup) -> Router {
    let Setup { desk, store, stop } = setup;
    let tasks = TaskTracker::new();
    let page = Arc::new(Page {
        store,
        began: Instant::now(),
        seal: Seal::new(),
        census: Census::new(tasks.clone(), stop.clone()),
        pulse: Pulse::new(tasks, stop),
        listeners: Shares::new(LIVE_PAGES_PER_CALLER_MAX, LIVE_PAGES_MAX),
        desk,
    });
    Router::new()
        .route("/", get(overview::show))
        .route("/locks", get(locks::show))
        .route("/lock", get(lock::show))
        .route("/owner", get(owner::show))
        .route("/audit", get(audit::show))
        .route("/live", get(live::tell))
        .route("/lock/force-release", post(force::take))
        .route("/assets/page.css", get(assets::css))
        .route("/assets/page.js", get(assets::js))
        .route("/assets/icon.svg", get(assets::icon))
        .layer(DefaultBodyLimit::max(FORM_MAX_BYTES))
        .layer(from_fn(guard::admit))
        .layer(from_fn(guard::protect))
        .with_state(page)
}
