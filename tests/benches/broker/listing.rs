//! Effect of a client that lists all locks repeatedly on the latency of other callers.

use std::{convert::Infallible, fmt};

use futures::stream::{StreamExt as _, iter};
use leasehold_proto::v1::{
    AcquireRequest, ListLocksRequest, inspection_service_client::InspectionServiceClient,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::unary::channel,
    redis::server::RedisServer,
};
use prost_types::Duration as Ttl;
use tokio::{select, time::Instant};
use tonic::transport::Channel;

use crate::{
    grpc::{CHANNELS, acquire_request, named, pairs},
    pairs::Sample,
    report::{machine, median, ms},
};

const CALLERS: usize = 64;
const PAGE_SIZE: i32 = 1_000;
/// TTL of the held locks, longer than all rounds.
const TTL_S: i64 = 600;

/// Number of locks and rounds.
pub(crate) struct Extent {
    locks: usize,
    rounds: usize,
}

pub(crate) const FULL: Extent = Extent {
    locks: 100_000,
    rounds: 5,
};
pub(crate) const QUICK: Extent = Extent {
    locks: 2_000,
    rounds: 1,
};

/// Results of alternating rounds without and with a lister, displayed as a table.
pub(crate) struct Listing {
    locks: usize,
    alone: Vec<Sample>,
    beside: Vec<Sample>,
    /// Number of locks that the lister received per second, over all rounds.
    shown_per_second: f64,
}

/// Acquires the locks at a broker on Redis, and measures.
pub(crate) async fn measure(extent: &Extent) -> Listing {
    let server = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(server.url());
    let ttl_max = ("LEASEHOLD__LIMITS__TTL_MAX".to_owned(), format!("{TTL_S}s"));
    options.env.push(ttl_max);
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let addr = broker.addr();
    hold(&channel(addr), extent.locks).await;
    let (mut alone, mut beside, mut shown_per_second) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..extent.rounds {
        alone.push(pairs(addr, CALLERS).await);
        let start = Instant::now();
        let (sample, shown) = beside_lister(channel(addr), pairs(addr, CALLERS)).await;
        shown_per_second += shown as f64 / start.elapsed().as_secs_f64() / extent.rounds as f64;
        beside.push(sample);
    }
    assert!(list(channel(addr)).await >= extent.locks, "a list is whole");
    Listing {
        locks: extent.locks,
        alone,
        beside,
        shown_per_second,
    }
}

async fn hold(channel: &Channel, count: usize) {
    let acquire = |number: usize| {
        let mut locks = LockServiceClient::new(channel.clone());
        let request = AcquireRequest {
            ttl: Some(Ttl {
                seconds: TTL_S,
                nanos: 0,
            }),
            ..acquire_request(named(&format!("bench/held/{number}")))
        };
        async move { locks.acquire(request).await.expect("it is free") }
    };
    let held = iter(0..count).map(acquire);
    let held = held.buffer_unordered(CALLERS * CHANNELS).count().await;
    assert_eq!(held, count);
}

/// Returns the callers' sample, and the number of locks that were listed at the same time.
async fn beside_lister(channel: Channel, callers: impl Future<Output = Sample>) -> (Sample, usize) {
    let mut shown = 0;
    let sample = select! {
        sample = callers => sample,
        never = list_repeatedly(channel, &mut shown) => match never {},
    };
    (sample, shown)
}

async fn list_repeatedly(channel: Channel, shown: &mut usize) -> Infallible {
    let mut pages = Pages::new(channel);
    loop {
        *shown += pages.next().await.unwrap_or_default();
    }
}

/// Returns the number of locks in a complete list.
async fn list(channel: Channel) -> usize {
    let (mut pages, mut count) = (Pages::new(channel), 0);
    while let Some(locks) = pages.next().await {
        count += locks;
    }
    count
}

/// A listing that starts again after its last page.
struct Pages {
    inspection: InspectionServiceClient<Channel>,
    request: ListLocksRequest,
    is_over: bool,
}

impl Pages {
    fn new(channel: Channel) -> Self {
        Self {
            inspection: InspectionServiceClient::new(channel),
            request: ListLocksRequest {
                page_size: PAGE_SIZE,
                ..ListLocksRequest::default()
            },
            is_over: false,
        }
    }

    /// Returns the number of locks on the next page. Returns `None` once after the last page.
    async fn next(&mut self) -> Option<usize> {
        if std::mem::take(&mut self.is_over) {
            return None;
        }
        let page = self.inspection.list_locks(self.request.clone()).await;
        let page = page.expect("the store answers").into_inner();
        self.is_over = page.next_page_token.is_empty();
        self.request.page_token = page.next_page_token;
        Some(page.locks.len())
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [alone, beside] = [&self.alone, &self.beside].map(|rounds| median(rounds));
        let ratio = beside.p99.as_secs_f64() / alone.p99.as_secs_f64();
        writeln!(f, "{}\n", machine())?;
        writeln!(
            f,
            "{CALLERS} callers acquire and release beside {} locks that are held; medians of {} rounds by turns.",
            self.locks,
            self.alone.len()
        )?;
        writeln!(
            f,
            "The lister lists all of them again and again, in pages of {PAGE_SIZE}: {:.0} locks a second.\n",
            self.shown_per_second
        )?;
        writeln!(
            f,
            "| {:28} | {:>8} | {:>7} | {:>7} | {:>9} |",
            "pairs, broker on Redis", "per s", "p50 ms", "p99 ms", "p99 ratio"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|")?;
        for (what, sample, ratio) in [
            ("no caller lists", alone, String::new()),
            ("a caller lists", beside, format!("{ratio:.2}")),
        ] {
            writeln!(
                f,
                "| {what:28} | {:>8.0} | {:>7} | {:>7} | {ratio:>9} |",
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99)
            )?;
        }
        Ok(())
    }
}
