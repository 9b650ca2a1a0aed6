//! Overview page: numbers of all locks, the longest queues, the store, and this broker.

use std::time::{Duration, SystemTime};

use askama::Template;
use axum::{Extension, extract::State, response::Response};

use super::{
    ConsoleState, SharedState,
    format::{Link, Moment},
    layout::{ErrorPage, Layout, render, require_broker},
    lock_counts::{HotLock, LockCounts},
    sse::{View, updates_address},
};
use crate::{access::Verb, broker::Broker, request::RequestContext, store::RecoveryState};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Layout,
    tally: Numbers,
    losses: usize,
    hottest: Vec<HotLockRow>,
    store: Store,
    replica: Replica,
}

struct Numbers {
    held: usize,
    waiting: u64,
    oldest: Option<Moment>,
    /// Number of locks that were counted during `took`.
    locks: usize,
    took: String,
    /// End of the count; `None` while it is running.
    counted: Option<Moment>,
    trouble: String,
}

struct HotLockRow {
    lock: Link,
    queue_length: u32,
    holders: u32,
    oldest: Option<Moment>,
}

struct Store {
    kind: String,
    state: &'static str,
    /// CSS class that selects the colour.
    css_class: &'static str,
    summary: String,
}

struct Replica {
    id: String,
    version: &'static str,
    up: Moment,
    streams: usize,
    is_draining: bool,
}

pub(super) async fn show(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
) -> Result<Response, ErrorPage> {
    user.authorize_any(Verb::List)?;
    let broker = require_broker(&console)?;
    let counts = console.lock_counter.current(broker, &user).await;
    let layout = Layout::new(&console, &user, "Overview", "overview");
    Ok(render(&OverviewPage {
        frame: layout.live_at(updates_address(View::Overview, None)),
        losses: recent_loss_count(broker, &user),
        hottest: counts.hottest.iter().map(HotLockRow::new).collect(),
        store: Store::new(&console, broker, &counts),
        replica: Replica::new(&console, broker),
        tally: Numbers::new(&counts),
    }))
}

/// Returns the number of leases lost in the last hour, for locks that the user may list.
fn recent_loss_count(broker: &Broker, user: &RequestContext) -> usize {
    let since = SystemTime::now().checked_sub(HOUR);
    let ends = broker.history().losses().into_iter();
    let recent_losses = ends.take_while(|end| since.is_none_or(|since| end.at >= since));
    recent_losses
        .filter(|end| user.can(Verb::List, &end.lock))
        .count()
}

impl Numbers {
    fn new(counts: &LockCounts) -> Self {
        let end = counts.ended.as_ref();
        Self {
            held: counts.held,
            waiting: counts.waiting,
            oldest: counts.oldest_ms.map(Moment::past),
            locks: counts.locks,
            took: format!("{:.2} s", counts.elapsed().as_secs_f64()),
            counted: end.map(|end| Moment::ago(end.at.elapsed())),
            trouble: end.map_or_else(String::new, |end| end.incomplete_reason.clone()),
        }
    }
}

impl HotLockRow {
    fn new(hot_lock: &HotLock) -> Self {
        Self {
            lock: Link::to_lock(&hot_lock.lock),
            queue_length: hot_lock.queue_length,
            holders: hot_lock.holders,
            oldest: hot_lock.since_ms.map(Moment::past),
        }
    }
}

impl Store {
    fn new(console: &ConsoleState, broker: &Broker, counts: &LockCounts) -> Self {
        let reason = counts
            .ended
            .as_ref()
            .map_or("", |end| &end.incomplete_reason);
        let (state, css_class, summary) = match (reason, broker.recovery()) {
            ("", RecoveryState::Recovering { server, recovery }) => {
                let summary = format!(
                    "{}. Leases that the store still has are renewed.",
                    recovery.sentence(&server)
                );
                ("recovering", "warning", summary)
            }
            ("", RecoveryState::Granting) => {
                ("answers", "good", "New locks are granted.".to_owned())
            }
            ("", RecoveryState::Unknown) => {
                let summary = "Each part of the store recovers separately after a loss of data; \
                               the log names the part.";
                ("answers", "good", summary.to_owned())
            }
            (reason, _) => ("trouble", "bad", format!("The last count: {reason}.")),
        };
        Self {
            kind: console.store.clone(),
            state,
            css_class,
            summary,
        }
    }
}

impl Replica {
    fn new(console: &ConsoleState, broker: &Broker) -> Self {
        Self {
            id: broker.id().to_string(),
            version: env!("CARGO_PKG_VERSION"),
            up: Moment::ago(console.started_at.elapsed()),
            streams: broker.open_streams(),
            is_draining: broker.is_draining(),
        }
    }
}
