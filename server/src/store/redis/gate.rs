//! Holds answers back until replicas have what they tell of.
//!
//! WAIT counts the replicas that have everything which *its own connection* has written, so the gate
//! writes a marker of its own first: everything that was answered before lies before it.

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

use super::refusal::{Refusal, Then, Told};

/// How long replicas have: less than a caller of the store waits.
const WAIT: Duration = Duration::from_millis(400);
const MARKER_KEPT_S: i64 = 60;
/// Slots are moved one after the other: the next to take a marker is not one of the next to go.
const SLOTS_BETWEEN: u16 = 257;
const SLOTS_TRIED: usize = 16;

/// Where answers wait.
#[derive(Debug)]
pub(super) struct Gate(mpsc::UnboundedSender<oneshot::Sender<bool>>);

/// The other side of it.
pub(super) struct Waiting {
    received: mpsc::UnboundedReceiver<oneshot::Sender<bool>>,
    marker: Marker,
    /// From which slot on a marker's is sought.
    from: u16,
    replicas: u32,
}

/// Names a key that may be written on this server, if there is one, and its slot in a cluster: one
/// from the given slot on.
pub(super) type Marker = Box<dyn Fn(u16) -> Option<(String, u16)> + Send + Sync>;

impl Gate {
    /// Opens when so many `replicas` have what was answered before. `marker` is a key of its own.
    pub(super) fn new(marker: Marker, replicas: u32) -> (Self, Waiting) {
        let (sender, received) = mpsc::unbounded_channel();
        let waiting = Waiting {
            received,
            marker,
            from: 0,
            replicas,
        };
        (Self(sender), waiting)
    }

    /// Whether the replicas have everything that the server has answered so far.
    pub(super) async fn passed(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).is_ok() && answer.await.unwrap_or(false)
    }
}

impl Waiting {
    /// Asks for all at once that wait, again and again.
    pub(super) async fn serve(mut self, client: &Client) -> Infallible {
        let mut together = Vec::new();
        loop {
            self.received.recv_many(&mut together, usize::MAX).await;
            if together.is_empty() {
                // The node is over.
                return std::future::pending().await;
            }
            let have_it = match self.ask(client).await {
                Ok(count) => count >= self.replicas,
                Err(error) => {
                    tracing::debug!(%error, "the replicas could not be asked");
                    false
                }
            };
            for reply in together.drain(..) {
                // A caller that is gone needs no answer.
                let _ = reply.send(have_it);
            }
        }
    }

    /// How many replicas have it. A slot on its way to another server takes no marker, and holds up
    /// nobody: there are others.
    async fn ask(&mut self, client: &Client) -> Result<u32, Error> {
        let begun = Instant::now();
        for _ in 0..SLOTS_TRIED {
            let Some((marker, slot)) = (self.marker)(self.from) else {
                break;
            };
            let mut answer = self.ask_after(&marker, client).await;
            if matches!(&answer, Err(error) if Refusal::of(error).told == Told::Full) {
                answer = self.ask_keeping(&marker, client).await;
            }
            match answer {
                Err(error) if Refusal::of(&error).then == Then::Elsewhere => {
                    self.from = slot.wrapping_add(SLOTS_BETWEEN);
                }
                answer => return answer,
            }
            if begun.elapsed() >= WAIT {
                break;
            }
        }
        Ok(0)
    }

    async fn ask_after(&self, marker: &str, client: &Client) -> Result<u32, Error> {
        let pipeline = client.pipeline();
        let kept = Some(Expiration::EX(MARKER_KEPT_S));
        let _: () = pipeline.set(marker, "", kept, None, false).await?;
        let (_, count): (Value, u32) = self.wait_after(&pipeline).await?;
        Ok(count)
    }

    /// A server without memory takes no new marker; that an old one stays is a write, too.
    async fn ask_keeping(&self, marker: &str, client: &Client) -> Result<u32, Error> {
        let pipeline = client.pipeline();
        let kept_ms = MARKER_KEPT_S * 1_000;
        let _: () = pipeline.pexpire(marker, kept_ms, None).await?;
        let (is_kept, count): (bool, u32) = self.wait_after(&pipeline).await?;
        Ok(if is_kept { count } else { 0 })
    }

    async fn wait_after<T: FromValue>(&self, pipeline: &Pipeline<Client>) -> Result<T, Error> {
        let wait = CustomCommand::new_static("WAIT", None::<u16>, true);
        let args: Vec<Value> = vec![
            self.replicas.to_string().into(),
            WAIT.as_millis().to_string().into(),
        ];
        let _: () = pipeline.custom(wait, args).await?;
        pipeline.all().await
    }
}
