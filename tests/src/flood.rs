//! Floods of frames that a broker has to cut.

use std::time::Duration;

use crate::{
    abuse_site::{Attempt, Site},
    broker_process::BrokerOptions,
    clock::boottime,
    raw_http2::{
        Opening,
        frames::{ENHANCE_YOUR_CALM, call},
    },
};

/// Calls that wait: for messages on a stream, and for the only one.
pub const HOLD: &str = "/leasehold.v1.LockService/Hold";
/// The other.
pub const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
/// How soon a flood is cut, and a few of its frames are answered.
const LIMIT: Duration = Duration::from_secs(5);
/// Frames that are written at once.
const BATCH: u32 = 50;

/// Frames that nobody needs.
#[derive(Debug)]
pub struct Flood {
    /// Of what.
    pub name: &'static str,
    /// What the connection begins with.
    pub before: fn() -> Vec<u8>,
    /// One of them, by its number.
    pub unit: fn(u32) -> Vec<u8>,
    /// So many do no harm. None: the first one is against the rules.
    pub few: u32,
    /// So many are never all taken.
    pub many: u32,
}

/// The stream that a frame with that number is for.
#[must_use]
pub fn stream(number: u32) -> u32 {
    2 * number + 1
}

/// What most floods begin with.
#[must_use]
pub fn nothing() -> Vec<u8> {
    Vec::new()
}

/// An open call.
#[must_use]
pub fn open() -> Vec<u8> {
    call(1, HOLD, 0)
}

impl Flood {
    /// Sends all of it, or as much as the broker takes.
    async fn strikes(&self, opening: &Opening) -> Attempt {
        let raw = opening.open().await.expect("a place");
        let began = boottime();
        let mut sent = 0;
        let mut bytes = (self.before)();
        while sent < self.many {
            let units = (sent..sent + BATCH).flat_map(self.unit);
            bytes.extend(units);
            if !raw.send(&bytes).await {
                break;
            }
            sent += BATCH;
            bytes.clear();
        }
        let seen = raw.closed(LIMIT).await;
        let seen = seen.unwrap_or_else(|| panic!("{}: not cut: {:?}", self.name, raw.seen()));
        let calm = seen.go_away.unwrap_or(ENHANCE_YOUR_CALM);
        assert!(
            self.few == 0 || calm == ENHANCE_YOUR_CALM,
            "{}: {seen:?}",
            self.name
        );
        Attempt {
            taken: usize::try_from(self.few.max(1)).expect("a count"),
            cut_after: boottime() - began,
            go_away: seen.go_away,
        }
    }

    /// A few of it are taken, and the connection lives: so it is their number that ends it.
    async fn is_harmless_in_small_doses(&self, opening: &Opening) {
        let raw = opening.open().await.expect("a place");
        let units = (0..self.few).flat_map(self.unit);
        let bytes: Vec<_> = (self.before)().into_iter().chain(units).collect();
        assert!(raw.send(&bytes).await, "{}: cut early", self.name);
        assert!(
            raw.lives(LIMIT).await,
            "{}: cut early: {:?}",
            self.name,
            raw.seen()
        );
    }
}

/// Each of them, again and again.
pub async fn suffer(floods: &[Flood], options: BrokerOptions) {
    let mut site = Site::start(options, None).await;
    let opening = site.opening();
    for flood in floods {
        if flood.few > 0 {
            flood.is_harmless_in_small_doses(&opening).await;
        }
        site.suffers(flood.name, async || flood.strikes(&opening).await)
            .await;
    }
    site.end().await;
}
