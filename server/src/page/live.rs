//! Tells a browser that what it shows has changed: it then asks for its page again, by the same way as ever, so
//! that there is one way to make a page and one that veils it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
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
    Shared,
    frame::{Failure, Guest, broker},
    pulse::{BEAT, Beat},
    shown::href,
};
use crate::{
    access::Verb,
    broker::Broker,
    grpc::Visitor,
    lock::{Bound, LockError, LockKey, LockName, Namespace, Quota},
    quotas::Share,
};

/// A page that costs a search of the store is made again no sooner.
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// What no news tell, such as an expiry that no command has noticed, is shown within this time.
const TICK: Duration = Duration::from_secs(5);
const AUDIT_TICK: Duration = Duration::from_secs(2);
/// Then the browser comes again by itself, with the credential that it has by then.
const LIFE: Duration = Duration::from_secs(600);

/// What a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum View {
    /// Numbers of all locks.
    Overview,
    /// One lock.
    Lock,
    /// Those that a search finds.
    Search,
    /// What has happened here.
    Audit,
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    view: View,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

/// Where the script of a page hears of changes.
pub(super) fn address(view: View, lock: Option<(&str, &str)>) -> String {
    let view = match view {
        View::Overview => "overview",
        View::Lock => "lock",
        View::Search => "search",
        View::Audit => "audit",
    };
    let (namespace, name) = lock.unwrap_or_default();
    let fields = [("view", view), ("namespace", namespace), ("name", name)];
    href("/live", &fields)
}

/// One browser that listens.
struct Listener {
    page: Shared,
    broker: Broker,
    visitor: Visitor,
    view: View,
    lock: Option<LockKey>,
    beats: watch::Receiver<Arc<Beat>>,
    /// The last beat that was heard.
    heard: u64,
    until: Instant,
    is_new: bool,
    is_over: bool,
    _place: Share,
}

pub(super) async fn tell(
    State(page): State<Shared>,
    Guest(visitor): Guest,
    Query(asked): Query<Asked>,
) -> Result<Response, Failure> {
    let broker = broker(&page, &visitor)?.clone();
    let lock = asked.lock();
    may_hear(&visitor, asked.view, lock.as_ref()).map_err(|failure| failure.of(&visitor))?;
    if broker.is_draining() {
        // The answer by which a browser does not come again.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let place = page.listeners.take(visitor.name());
    let place = place.map_err(|bound| {
        let quota = Quota::LivePages(bound);
        broker
            .metrics()
            .over_quota(&LockError::QuotaExceeded(quota));
        let status = match bound {
            Bound::PerCaller(_) => StatusCode::TOO_MANY_REQUESTS,
            Bound::Total(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let why = format!("{quota}: this page stays as it is until it is loaded again");
        Failure::new(status, why).of(&visitor)
    })?;
    let beats = page.pulse.listen(&broker).await;
    let heard = beats.borrow().number();
    let listener = Listener {
        lock,
        view: asked.view,
        heard,
        beats,
        until: Instant::now() + LIFE,
        is_new: true,
        is_over: false,
        page,
        broker,
        visitor,
        _place: place,
    };
    let events = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    Ok(Sse::new(events).into_response())
}

/// Browsers pass on no event without data.
fn event(name: &str) -> Event {
    Event::default().event(name).data("now")
}

impl Asked {
    fn lock(&self) -> Option<LockKey> {
        let name = LockName::parse(&self.name).ok()?;
        Some(LockKey::new(Namespace::parse(&self.namespace).ok()?, name))
    }
}

/// Whether the visitor may hear that something changes which the page shows.
fn may_hear(visitor: &Visitor, view: View, lock: Option<&LockKey>) -> Result<(), Failure> {
    let refused = || {
        Failure::new(
            StatusCode::FORBIDDEN,
            "The policy does not allow you to observe it.",
        )
    };
    match (view, lock) {
        (View::Overview | View::Search, _) => Ok(visitor.may_list_some()?),
        (View::Lock, Some(lock)) if !visitor.may(Verb::Observe, lock) => Err(refused()),
        (View::Lock, None) => Err(Failure::new(StatusCode::BAD_REQUEST, "Which lock?")),
        (View::Lock, Some(_)) => Ok(()),
        (View::Audit, _) => Ok(visitor.may_operate()?),
    }
}

impl Listener {
    /// What the browser is told next; one that does not read holds up itself alone.
    async fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        let is_new = std::mem::take(&mut self.is_new);
        let broker = self.broker.clone();
        let changed = tokio::select! {
            biased;
            () = broker.drain_began() => None,
            changed = self.changed(is_new) => Some(changed),
        };
        match changed {
            Some(true) => Some(event("changed")),
            Some(false) => None,
            None => {
                self.is_over = true;
                Some(event("draining"))
            }
        }
    }

    /// Ends when the page may have changed; false if the browser is to come again instead.
    async fn changed(&mut self, is_new: bool) -> bool {
        let census = &self.page.census;
        match (is_new, self.view) {
            // What happened while the page was on its way is shown at once.
            (true, View::Lock | View::Audit) => {}
            (true, View::Overview) => census.ended(&self.visitor).await,
            (true, View::Search) | (false, _) => {
                let (paced, until) = (Instant::now() + self.pace(), self.until);
                tokio::select! {
                    () = self.news() => {}
                    () = sleep_until(until) => return false,
                }
                sleep_until(paced).await;
                if self.view == View::Overview {
                    // There is more on the page than numbers, so that a long count does not hold it up.
                    let anew = self.page.census.anew(&self.broker, &self.visitor);
                    let _ = timeout(TICK, anew).await;
                }
            }
        }
        self.visitor.is_known() && may_hear(&self.visitor, self.view, self.lock.as_ref()).is_ok()
    }

    /// Whether it shows what changes with this lock.
    fn is_meant(&self, lock: &LockKey) -> bool {
        match self.view {
            View::Overview | View::Search => self.visitor.may_list(lock),
            View::Lock => self.lock.as_ref() == Some(lock),
            View::Audit => false,
        }
    }

    fn pace(&self) -> Duration {
        match self.view {
            View::Overview | View::Lock | View::Audit => BEAT,
            View::Search => SEARCH_EVERY,
        }
    }

    /// Ends with news of what the page shows, or with a tick.
    async fn news(&mut self) {
        let tick = match self.view {
            View::Overview | View::Lock | View::Search => TICK,
            View::Audit => AUDIT_TICK,
        };
        let tick = Instant::now() + tick;
        loop {
            let beat = tokio::select! {
                changed = self.beats.changed() => match changed {
                    Ok(()) => Arc::clone(&self.beats.borrow_and_update()),
                    // The ear is gone; what is left is the time.
                    Err(_) => return sleep_until(tick).await,
                },
                () = sleep_until(tick) => return,
            };
            let after = std::mem::replace(&mut self.heard, beat.number());
            if beat.concerns(after, |lock| self.is_meant(lock)) {
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
    use crate::{
        grpc::Desk,
        page::{Setup, router},
        store::stub::Stub,
    };

    #[tokio::test(start_paused = true)]
    async fn a_live_page_stays_connected_for_ten_minutes() {
        let mut page = router(Setup {
            desk: Desk::alone(Broker::alone(Arc::new(Stub::default()))),
            store: String::new(),
            stop: CancellationToken::new(),
        });
        let began = Instant::now();
        let asked = Request::get(address(View::Audit, None)).body(Body::empty());
        let told = page.call(asked.expect("a request")).await;
        let mut events = told.expect("an answer").into_body().into_data_stream();
        assert!(events.next().await.is_some(), "it listens");
        while events.next().await.is_some() {}
        let lasted = began.elapsed();
        assert!((LIFE..LIFE + TICK).contains(&lasted), "{lasted:?}");
    }
}
