//! Heartbeats of a stream at a steady pace, and when each of them was sent.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_proto::v1::{Heartbeat, HoldRequest, hold_request::Message as Request};
use tokio::{sync::mpsc, time::interval};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::boottime;

/// They end when it is dropped.
#[derive(Debug)]
pub struct Beats {
    sent: Arc<Mutex<Vec<Duration>>>,
    _task: AbortOnDropHandle<()>,
}

impl Beats {
    /// The first, with sequence 1, is sent at once.
    #[must_use]
    pub fn start(requests: mpsc::Sender<HoldRequest>, every: Duration) -> Self {
        let sent = Arc::default();
        let beat = beat(requests, every, Arc::clone(&sent));
        let task = AbortOnDropHandle::new(tokio::spawn(beat));
        Self { sent, _task: task }
    }

    /// When the heartbeat with that sequence was sent.
    #[must_use]
    pub fn sent(&self, sequence: i64) -> Duration {
        let index = usize::try_from(sequence - 1).expect("sequences begin with 1");
        *lock(&self.sent).get(index).expect("it was sent")
    }
}

async fn beat(
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
