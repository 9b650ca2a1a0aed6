//! Heartbeats of one stream, and the send times of the newest of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::stream::{self, Stream};
use leasehold_proto::v1::{Heartbeat, HoldRequest, hold_request::Message};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::wire::request;

/// Longest heartbeat interval that the broker allows for waiters.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
const KEPT: usize = 4;

/// Send times of heartbeats, on the clock of one run.
#[derive(Debug)]
pub(crate) struct HeartbeatTimes {
    epoch: Instant,
    newest: AtomicI64,
    /// Nanoseconds after `epoch`, by sequence number; 0 is the opening of the stream.
    sent: [AtomicU64; KEPT],
}

impl HeartbeatTimes {
    /// Creates the heartbeats of a stream that is opened now.
    pub(crate) fn of_new_stream(epoch: Instant) -> Arc<Self> {
        let heartbeat_times = Self {
            epoch,
            newest: AtomicI64::new(0),
            sent: [const { AtomicU64::new(0) }; KEPT],
        };
        heartbeat_times
            .slot(0)
            .store(nanos(epoch), Ordering::Relaxed);
        Arc::new(heartbeat_times)
    }

    /// Returns a heartbeat at each interval `every`, the first at `first`. Late heartbeats are
    /// skipped.
    pub(crate) fn at_intervals(
        self: Arc<Self>,
        every: Duration,
        first: Instant,
    ) -> impl Stream<Item = HoldRequest> + Send + 'static {
        let mut ticks = interval_at(first, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        stream::poll_fn(move |context| {
            let tick = ticks.poll_tick(context);
            tick.map(|_| Some(request(Message::Heartbeat(self.next()))))
        })
    }

    fn next(&self) -> Heartbeat {
        // There is no concurrent writer, because only one stream of heartbeats writes here.
        let sequence = self.newest.load(Ordering::Relaxed) + 1;
        let sent = nanos(self.epoch);
        self.slot(sequence).store(sent, Ordering::Relaxed);
        self.newest.store(sequence, Ordering::Release);
        Heartbeat { sequence }
    }

    /// Returns the send time of a heartbeat since the epoch, or `None` if the time is no longer
    /// stored.
    pub(crate) fn sent_at(&self, sequence: i64) -> Option<Duration> {
        let is_kept = self.newest.load(Ordering::Acquire) - sequence < KEPT as i64;
        is_kept.then(|| Duration::from_nanos(self.slot(sequence).load(Ordering::Relaxed)))
    }

    fn slot(&self, sequence: i64) -> &AtomicU64 {
        let at = usize::try_from(sequence).expect("sequences count up from 0");
        &self.sent[at % KEPT]
    }
}

fn nanos(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).expect("a short run")
}
