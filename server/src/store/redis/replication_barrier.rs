//! Delays replies until the configured number of replicas has acknowledged the writes (`WAIT`).
//!
//! WAIT counts the replicas that have all writes of *its own connection*. The barrier therefore
//! first writes a marker, which all earlier replies precede.

use std::{convert::Infallible, time::Duration};

use fred::{
    clients::{Client, Pipeline},
    error::Error,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{CustomCommand, Expiration, FromValue, Value},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::error_table::{CallerError, ErrorClass, NodeAction};

/// Time for the replicas to acknowledge, which is less than a caller of the store waits.
const REPLICA_ACK_TIMEOUT: Duration = Duration::from_millis(400);
const MARKER_TTL_S: i64 = 60;
/// Distance to the next slot that is tried for a marker. Slots are migrated in order, so a
/// neighboring slot would be the next to move.
const SLOT_DISTANCE: u16 = 257;
const SLOTS_TRIED: usize = 16;

/// A handle of the replication barrier, through which replies wait.
#[derive(Debug)]
pub(super) struct ReplicationBarrier(mpsc::UnboundedSender<oneshot::Sender<bool>>);

/// The task of the replication barrier.
pub(super) struct BarrierTask {
    received: mpsc::UnboundedReceiver<oneshot::Sender<bool>>,
    marker: MarkerSource,
    /// Slot from which the slot of the next marker is searched.
    first_slot: u16,
    replicas: u32,
}

/// A function that returns a key that may be written on this server, if there is one, and its slot.
/// In a cluster it searches from the given slot on.
pub(super) type MarkerSource = Box<dyn Fn(u16) -> Option<(String, u16)> + Send + Sync>;

impl ReplicationBarrier {
    /// Creates a barrier that waits for `replicas` replicas. `marker` returns a key that is used
    /// only for the barrier.
    pub(super) fn new(marker: MarkerSource, replicas: u32) -> (Self, BarrierTask) {
        let (sender, received) = mpsc::unbounded_channel();
        let waiting = BarrierTask {
            received,
            marker,
            first_slot: 0,
            replicas,
        };
        (Self(sender), waiting)
    }

    /// Returns true once the replicas have all writes that the server has confirmed so far, or
    /// false if too few replicas have them within [`REPLICA_ACK_TIMEOUT`].
    pub(super) async fn wait(&self) -> bool {
        let (reply, receiver) = oneshot::channel();
        self.0.send(reply).is_ok() && receiver.await.unwrap_or(false)
    }
}

impl BarrierTask {
    /// Serves waiting replies forever, with one WAIT for all that have queued up.
    pub(super) async fn serve(mut self, client: &Client) -> Infallible {
        let mut replies = Vec::new();
        loop {
            self.received.recv_many(&mut replies, usize::MAX).await;
            if replies.is_empty() {
                // The node is closed.
                return std::future::pending().await;
            }
            let has_enough = match self.acknowledged_replicas(client).await {
                Ok(count) => count >= self.replicas,
                Err(error) => {
                    tracing::debug!(%error, "the replicas could not be queried");
                    false
                }
            };
            for reply in replies.drain(..) {
                // The caller may have been dropped.
                let _ = reply.send(has_enough);
            }
        }
    }

    /// Returns the number of replicas that have all writes. A slot that is moving to another server
    /// accepts no marker, so another slot is tried.
    async fn acknowledged_replicas(&mut self, client: &Client) -> Result<u32, Error> {
        let started_at = Instant::now();
        for _ in 0..SLOTS_TRIED {
            let Some((marker, slot)) = (self.marker)(self.first_slot) else {
                break;
            };
            let mut result = self.wait_after_write(&marker, client).await;
            if matches!(&result, Err(error) if ErrorClass::classify(error).caller_error == CallerError::Full)
            {
                result = self.wait_after_extend(&marker, client).await;
            }
            match result {
                Err(error) if ErrorClass::classify(&error).action == NodeAction::Redirect => {
                    self.first_slot = slot.wrapping_add(SLOT_DISTANCE);
                }
                result => return result,
            }
            if started_at.elapsed() >= REPLICA_ACK_TIMEOUT {
                break;
            }
        }
        Ok(0)
    }

    async fn wait_after_write(&self, marker: &str, client: &Client) -> Result<u32, Error> {
        let pipeline = client.pipeline();
        let expiration = Some(Expiration::EX(MARKER_TTL_S));
        let _: () = pipeline.set(marker, "", expiration, None, false).await?;
        let (_, count): (Value, u32) = self.run_and_wait(&pipeline).await?;
        Ok(count)
    }

    /// Extends the TTL of an old marker, which is also a write. A server without memory accepts no
    /// new marker.
    async fn wait_after_extend(&self, marker: &str, client: &Client) -> Result<u32, Error> {
        let pipeline = client.pipeline();
        let expiry_ms = MARKER_TTL_S * 1_000;
        let _: () = pipeline.pexpire(marker, expiry_ms, None).await?;
        let (has_marker, count): (bool, u32) = self.run_and_wait(&pipeline).await?;
        Ok(if has_marker { count } else { 0 })
    }

    async fn run_and_wait<T: FromValue>(&self, pipeline: &Pipeline<Client>) -> Result<T, Error> {
        let wait = CustomCommand::new_static("WAIT", None::<u16>, true);
        let args: Vec<Value> = vec![
            self.replicas.to_string().into(),
            REPLICA_ACK_TIMEOUT.as_millis().to_string().into(),
        ];
        let _: () = pipeline.custom(wait, args).await?;
        pipeline.all().await
    }
}
