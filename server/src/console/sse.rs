//! Live updates by server-sent events. An event makes the browser request its page again, so that
//! there is only one way to create and redact a page.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{Query, State},
    http::StatusCode,
    response::{
        IntoResponse as _, Response,
        sse::{Event, Sse},
    },
};
use futures::stream;
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    SharedState, audit,
    change_feed::{ChangeBatch, FLUSH_INTERVAL},
    format::href,
    layout::{ErrorPage, require_broker},
};
use crate::{
    access::Verb,
    broker::Broker,
    lock::{Bound, LockError, LockKey, LockName, Namespace, QuotaExceeded},
    quotas::SharedQuotaPermit,
    request::RequestContext,
};

/// Minimum interval between updates of a page that requires a search of the store.
const SEARCH_UPDATE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of updates without a change event, for example after an expiry that no
/// command has detected.
const TIMER_INTERVAL: Duration = Duration::from_secs(5);
const AUDIT_TIMER_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a connection. The browser then reconnects with its current credential.
const CONNECTION_DURATION_MAX: Duration = Duration::from_secs(600);

/// The kind of page that is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum View {
    Overview,
    Lock,
    /// The result of a search.
    Search,
    Audit,
}

#[derive(Debug, Deserialize)]
pub(super) struct LiveQuery {
    view: View,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

/// Returns the address of the live updates of a page.
pub(super) fn updates_address(view: View, lock: Option<&LockKey>) -> String {
    let view = match view {
        View::Overview => "overview",
        View::Lock => "lock",
        View::Search => "search",
        View::Audit => "audit",
    };
    let (namespace, name) = lock.map_or(("", ""), |lock| (lock.namespace(), lock.name()));
    let fields = [("view", view), ("namespace", namespace), ("name", name)];
    href("/live", &fields)
}

/// The connection of one browser.
struct UpdateStream {
    page: SharedState,
    broker: Broker,
    user: RequestContext,
    view: View,
    lock: Option<LockKey>,
    batches: watch::Receiver<Arc<ChangeBatch>>,
    /// Number of the last batch that was received.
    last_batch: u64,
    ends_at: Instant,
    is_new: bool,
    has_ended: bool,
    _permit: SharedQuotaPermit,
}

pub(super) async fn stream_updates(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    Query(query): Query<LiveQuery>,
) -> Result<Response, ErrorPage> {
    let broker = require_broker(&console)?.clone();
    let lock = query.lock();
    authorize_updates(&user, query.view, lock.as_ref())?;
    if broker.is_draining() {
        // After this status, browsers do not reconnect.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let permit = console.live_updates.try_acquire(&user.caller.name);
    let permit = permit.map_err(|bound| {
        let quota = QuotaExceeded::LivePages(bound);
        broker
            .metrics()
            .over_quota(&LockError::QuotaExceeded(quota));
        let status = match bound {
            Bound::PerCaller(_) => StatusCode::TOO_MANY_REQUESTS,
            Bound::Total(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let message = format!("{quota}: this page does not update itself until it is loaded again");
        ErrorPage::new(status, message)
    })?;
    let batches = console.change_feed.listen(&broker).await;
    let last_batch = batches.borrow().number();
    let update_stream = UpdateStream {
        lock,
        view: query.view,
        last_batch,
        batches,
        ends_at: Instant::now() + CONNECTION_DURATION_MAX,
        is_new: true,
        has_ended: false,
        page: console,
        broker,
        user,
        _permit: permit,
    };
    let events = stream::unfold(update_stream, |mut update_stream| async move {
        let event = update_stream.next().await?;
        Some((Ok::<_, Infallible>(event), update_stream))
    });
    Ok(Sse::new(events).into_response())
}

/// Creates an event. It has data, because browsers ignore events without data.
fn event(name: &str) -> Event {
    Event::default().event(name).data("now")
}

impl LiveQuery {
    fn lock(&self) -> Option<LockKey> {
        let name = LockName::parse(&self.name).ok()?;
        Some(LockKey::new(Namespace::parse(&self.namespace).ok()?, name))
    }
}

/// Checks that the user may receive updates of the page.
fn authorize_updates(
    user: &RequestContext,
    view: View,
    lock: Option<&LockKey>,
) -> Result<(), ErrorPage> {
    match (view, lock) {
        (View::Overview | View::Search, _) => Ok(user.authorize_any(Verb::List)?),
        (View::Lock, Some(lock)) if !user.can(Verb::Observe, lock) => Err(ErrorPage::new(
            StatusCode::FORBIDDEN,
            "The policy does not allow you to observe this lock.",
        )),
        (View::Lock, None) => Err(ErrorPage::new(
            StatusCode::BAD_REQUEST,
            "The URL does not contain a lock name.",
        )),
        (View::Lock, Some(_)) => Ok(()),
        (View::Audit, _) => Ok(audit::authorize(user)?),
    }
}

impl UpdateStream {
    /// Returns the next event. A browser that does not read delays only its own events.
    async fn next(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let is_new = std::mem::take(&mut self.is_new);
        let broker = self.broker.clone();
        let changed = tokio::select! {
            biased;
            () = broker.until_drain() => None,
            changed = self.wait_until_changed(is_new) => Some(changed),
        };
        match changed {
            Some(true) => Some(event("changed")),
            Some(false) => None,
            None => {
                self.has_ended = true;
                Some(event("draining"))
            }
        }
    }

    /// Waits until the page may have changed. Returns false if the browser must reconnect instead.
    async fn wait_until_changed(&mut self, is_new: bool) -> bool {
        let lock_counter = &self.page.lock_counter;
        match (is_new, self.view) {
            // Changes during the transfer of the page are reported immediately.
            (true, View::Lock | View::Audit) => {}
            (true, View::Overview) => lock_counter.ended(&self.user).await,
            (true, View::Search) | (false, _) => {
                let (earliest, ends_at) = (Instant::now() + self.update_interval(), self.ends_at);
                tokio::select! {
                    () = self.wait_for_change() => {}
                    () = sleep_until(ends_at) => return false,
                }
                sleep_until(earliest).await;
                if self.view == View::Overview {
                    // The page shows more than counts, so a long count must not delay its update.
                    let next_count = self.page.lock_counter.next_fresh(&self.broker, &self.user);
                    let _ = timeout(TIMER_INTERVAL, next_count).await;
                }
            }
        }
        self.user.check_credential().is_ok()
            && authorize_updates(&self.user, self.view, self.lock.as_ref()).is_ok()
    }

    /// Returns true if a change of the lock affects the page.
    fn is_affected_by(&self, lock: &LockKey) -> bool {
        match self.view {
            View::Overview | View::Search => self.user.can(Verb::List, lock),
            View::Lock => self.lock.as_ref() == Some(lock),
            View::Audit => false,
        }
    }

    fn update_interval(&self) -> Duration {
        match self.view {
            View::Overview | View::Lock | View::Audit => FLUSH_INTERVAL,
            View::Search => SEARCH_UPDATE_INTERVAL,
        }
    }

    /// Waits for a change that affects the page, or for the timer.
    async fn wait_for_change(&mut self) {
        let interval = match self.view {
            View::Overview | View::Lock | View::Search => TIMER_INTERVAL,
            View::Audit => AUDIT_TIMER_INTERVAL,
        };
        let timer_deadline = Instant::now() + interval;
        loop {
            let batch = tokio::select! {
                changed = self.batches.changed() => match changed {
                    Ok(()) => Arc::clone(&self.batches.borrow_and_update()),
                    // The change feed has ended, so that only the timer remains.
                    Err(_) => return sleep_until(timer_deadline).await,
                },
                () = sleep_until(timer_deadline) => return,
            };
            let previous_batch = std::mem::replace(&mut self.last_batch, batch.number());
            if batch.affects(previous_batch, |lock| self.is_affected_by(lock)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, extract::Request};
    use futures::StreamExt as _;
    use tokio_util::sync::CancellationToken;
    use tower::Service as _;

    use super::*;
    use crate::{console::router, inspection::InspectionService, store::stub::StubStore};

    #[tokio::test(start_paused = true)]
    async fn a_live_page_stays_connected_for_ten_minutes() {
        let broker = Broker::unlimited(Arc::new(StubStore::default()));
        let service = InspectionService::without_authentication(broker);
        let mut console = router(service, String::new(), CancellationToken::new());
        let started_at = Instant::now();
        let request = Request::get(updates_address(View::Audit, None)).body(Body::empty());
        let response = console.call(request.expect("a request")).await;
        let mut events = response.expect("an answer").into_body().into_data_stream();
        assert!(events.next().await.is_some(), "it listens");
        while events.next().await.is_some() {}
        let duration = started_at.elapsed();
        assert!(
            (CONNECTION_DURATION_MAX..CONNECTION_DURATION_MAX + TIMER_INTERVAL).contains(&duration),
            "{duration:?}"
        );
    }
}
