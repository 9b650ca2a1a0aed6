//! Heartbeats of a lease stream, from which the validity of its leases counts.

use parking_lot::Mutex;
use tokio::time::Instant;

/// The last two heartbeats, newest first. Two suffice: a store command completes before a third
/// heartbeat arrives.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Mutex<[Heartbeat; 2]>);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heartbeat {
    /// Sequence number; 0 if no heartbeat was received.
    pub(super) sequence: i64,
    pub(super) read_at: Option<Instant>,
}

impl Heartbeats {
    /// Records a heartbeat. Returns false, and ignores the heartbeat, unless its sequence number is
    /// higher than the newest one.
    pub(super) fn record(&self, sequence: i64) -> bool {
        let mut heartbeats = self.0.lock();
        if heartbeats[0].sequence >= sequence {
            return false;
        }
        let read_at = Some(Instant::now());
        *heartbeats = [Heartbeat { sequence, read_at }, heartbeats[0]];
        true
    }

    /// Returns the sequence number of the newest heartbeat.
    pub(super) fn latest(&self) -> i64 {
        self.0.lock()[0].sequence
    }

    /// Returns the newest heartbeat received before `time`, or `None` if it is older than the last
    /// two.
    pub(super) fn latest_before(&self, time: Instant) -> Option<Heartbeat> {
        let heartbeats = *self.0.lock();
        let is_before =
            |heartbeat: &Heartbeat| heartbeat.read_at.is_none_or(|read_at| read_at < time);
        heartbeats.into_iter().find(is_before)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_has_the_newest_heartbeat_received_before_it() {
        let heartbeats = Heartbeats::default();
        let tick = || tokio::time::advance(Duration::from_millis(1));
        let first = Instant::now();
        assert_eq!(
            heartbeats
                .latest_before(first)
                .map(|heartbeat| heartbeat.sequence),
            Some(0)
        );
        let mut sent = Vec::new();
        for sequence in 1..=3 {
            tick().await;
            sent.push(Instant::now());
            tick().await;
            assert!(heartbeats.record(sequence));
            assert_eq!(heartbeats.latest(), sequence);
        }
        assert!(!heartbeats.record(3) && !heartbeats.record(2));
        tick().await;
        let before = |time| {
            heartbeats
                .latest_before(time)
                .map(|heartbeat| heartbeat.sequence)
        };
        assert_eq!(before(Instant::now()), Some(3));
        assert_eq!(before(sent[2]), Some(2));
        assert_eq!(before(sent[1]), None);
        assert_eq!(before(first), None);
    }
}
