//! The heartbeats of a stream: validity counts from them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The newest that were read, newest first. Two are enough: a command is answered before a third comes.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Mutex<[Heartbeat; 2]>);

/// A heartbeat.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heartbeat {
    /// 0: none was read.
    pub(super) sequence: i64,
    /// When it was read.
    pub(super) read_at: Option<Instant>,
}

impl Heartbeats {
    /// One was read. False if its sequence goes back; it is ignored then.
    pub(super) fn read(&self, sequence: i64) -> bool {
        let mut beats = self.beats();
        if beats[0].sequence >= sequence {
            return false;
        }
        let read_at = Some(Instant::now());
        *beats = [Heartbeat { sequence, read_at }, beats[0]];
        true
    }

    /// The sequence of the newest.
    pub(super) fn newest(&self) -> i64 {
        self.beats()[0].sequence
    }

    /// The newest that had been read before then; `None` if that is not known any more.
    pub(super) fn before(&self, then: Instant) -> Option<Heartbeat> {
        let beats = *self.beats();
        let had_come = |beat: &Heartbeat| beat.read_at.is_none_or(|read_at| read_at < then);
        beats.into_iter().find(had_come)
    }

    fn beats(&self) -> MutexGuard<'_, [Heartbeat; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_has_the_newest_heartbeat_that_came_before_it() {
        let beats = Heartbeats::default();
        let tick = || tokio::time::advance(Duration::from_millis(1));
        let first = Instant::now();
        assert_eq!(beats.before(first).map(|beat| beat.sequence), Some(0));
        let mut sent = Vec::new();
        for sequence in 1..=3 {
            tick().await;
            sent.push(Instant::now());
            tick().await;
            assert!(beats.read(sequence));
            assert_eq!(beats.newest(), sequence);
        }
        assert!(!beats.read(3) && !beats.read(2));
        tick().await;
        let before = |then| beats.before(then).map(|beat| beat.sequence);
        assert_eq!(before(Instant::now()), Some(3));
        assert_eq!(before(sent[2]), Some(2));
        assert_eq!(before(sent[1]), None);
        assert_eq!(before(first), None);
    }
}
