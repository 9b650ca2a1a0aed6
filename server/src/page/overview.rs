//! How things stand: numbers of all locks, the longest lines, the store, and this replica.

use std::time::{Duration, SystemTime};

use askama::Template;
use axum::{extract::State, response::Response};

use super::{
    Page, Shared,
    census::{Hot, Tally},
    frame::{Failure, Frame, Guest, broker, rendered},
    live::{View, address},
    shown::{Link, Moment, span},
};
use crate::{broker::Broker, grpc::Visitor};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    tally: Numbers,
    losses: usize,
    hottest: Vec<HotLock>,
    store: Store,
    replica: Replica,
}

struct Numbers {
    held: usize,
    waiting: u64,
    oldest: Option<Moment>,
    /// How many were counted, and how long that took.
    locks: usize,
    took: String,
    /// When; `None`: it goes on.
    counted: Option<Moment>,
    trouble: String,
}

struct HotLock {
    lock: Link,
    queue_length: u32,
    holders: u32,
    oldest: Option<Moment>,
}

struct Store {
    kind: String,
    state: &'static str,
    /// For the colour.
    mood: &'static str,
    told: String,
}

struct Replica {
    id: String,
    version: &'static str,
    up: Moment,
    streams: usize,
    is_draining: bool,
}

pub(super) async fn show(
    State(page): State<Shared>,
    Guest(visitor): Guest,
) -> Result<Response, Failure> {
    let may = visitor.may_list_some();
    may.map_err(|refusal| Failure::from(refusal).of(&visitor))?;
    let broker = broker(&page, &visitor)?;
    let tally = page.census.look(broker, &visitor).await;
    let frame = Frame::new(&page, &visitor, "Overview", "overview");
    Ok(rendered(&OverviewPage {
        frame: frame.live_at(address(View::Overview, None)),
        losses: losses(broker, &visitor),
        hottest: tally.hottest.iter().map(HotLock::of).collect(),
        store: Store::of(&page, broker, &tally),
        replica: Replica::of(&page, broker),
        tally: Numbers::of(&tally),
    }))
}

/// Of locks that the visitor may list.
fn losses(broker: &Broker, visitor: &Visitor) -> usize {
    let since = SystemTime::now().checked_sub(HOUR);
    let ends = broker.history().losses().into_iter();
    let of_the_hour = ends.take_while(|end| since.is_none_or(|since| end.at >= since));
    of_the_hour
        .filter(|end| visitor.may_list(&end.lock))
        .count()
}

impl Numbers {
    fn of(tally: &Tally) -> Self {
        let ended = tally.ended.as_ref();
        Self {
            held: tally.held,
            waiting: tally.waiting,
            oldest: tally.oldest_ms.map(Moment::past),
            locks: tally.locks,
            took: format!("{:.2} s", tally.took().as_secs_f64()),
            counted: ended.map(|end| Moment::ago(end.at.elapsed())),
            trouble: ended.map_or_else(String::new, |end| end.trouble.clone()),
        }
    }
}

impl HotLock {
    fn of(hot: &Hot) -> Self {
        Self {
            lock: Link::to_key(&hot.lock),
            queue_length: hot.queue_length,
            holders: hot.holders,
            oldest: hot.since_ms.map(Moment::past),
        }
    }
}

impl Store {
    fn of(page: &Page, broker: &Broker, tally: &Tally) -> Self {
        let trouble = tally.ended.as_ref().map_or("", |end| &end.trouble);
        let (state, mood, told) = match (trouble, broker.recovering_ms()) {
            ("", Some(ms @ 1..)) => {
                let told = format!(
                    "Data was lost: nothing new is granted for {} more, so that nothing is granted twice. \
                     Leases that the store knows are renewed.",
                    span(ms)
                );
                ("recovering", "warning", told)
            }
            ("", Some(0)) => ("answers", "good", "New locks are granted.".to_owned()),
            ("", None) => {
                let told = "Each of its parts recovers by itself after a loss of data; the log says which.";
                ("answers", "good", told.to_owned())
            }
            (trouble, _) => ("trouble", "bad", format!("The last count: {trouble}.")),
        };
        Self {
            kind: page.store.clone(),
            state,
            mood,
            told,
        }
    }
}

impl Replica {
    fn of(page: &Page, broker: &Broker) -> Self {
        Self {
            id: broker.id().to_string(),
            version: env!("CARGO_PKG_VERSION"),
            up: Moment::ago(page.began.elapsed()),
            streams: broker.open_streams(),
            is_draining: broker.is_draining(),
        }
    }
}
