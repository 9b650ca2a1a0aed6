//! Periodic heartbeats of a stream, with their send times.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_proto::v1::{Heartbeat, HoldRequest, hold_request::Message as Request};
use tokio::{sync::mpsc, time::interval};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::boottime;

/// A task that sends heartbeats until it is dropped.
#[derive(Debug)]
pub struct HeartbeatSender {
    sent_times: Arc<Mutex<Vec<Duration>>>,
    _task: AbortOnDropHandle<()>,
}

impl HeartbeatSender {
    /// Starts sending heartbeats. The first one, with sequence 1, is sent at once.
    #[must_use]
    pub fn start(requests: mpsc::Sender<HoldRequest>, every: Duration) -> Self {
        let sent_times = Arc::default();
        let beat = send_heartbeats(requests, every, Arc::clone(&sent_times));
        let task = AbortOnDropHandle::new(tokio::spawn(beat));
        Self {
            sent_times,
            _task: task,
        }
    }

    /// Returns the send time of the heartbeat with this sequence.
    #[must_use]
    pub fn sent_at(&self, sequence: i64) -> Duration {
        let index = usize::try_from(sequence - 1).expect("sequences begin with 1");
        *lock(&self.sent_times).get(index).expect("it was sent")
    }
}

async fn send_heartbeats(
    requests: mpsc::Sender<HoldRequest>,
    every: Duration,
    sent: Arc<Mutex<Vec<Duration>>>,
) {
    let mut tick = interval(every);
    for sequence in 1.. {
        tick.tick().await;
        lock(&sent).push(boottime());
        let message = Some(Request::Heartbeat(Heartbeat { sequence }));
        if requests.send(HoldRequest { message }).await.is_err() {
            return;
        }
    }
}

fn lock(sent: &Mutex<Vec<Duration>>) -> MutexGuard<'_, Vec<Duration>> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}
