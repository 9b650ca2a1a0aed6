//! Holds answers back until replicas have what they tell of.
//!
//! WAIT counts the replicas that have everything which *its own connection* has written, so the gate
//! writes a marker of its own first: everything that was answered before lies before it.

use std::{convert::Infallible, time::Duration};

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{CustomCommand, Expiration, Value},
};
use tokio::sync::{mpsc, oneshot};

/// How long replicas have: less than a caller of the store waits.
const WAIT: Duration = Duration::from_millis(400);
const MARKER_KEPT_S: i64 = 60;

/// Where answers wait.
#[derive(Debug)]
pub(super) struct Gate(mpsc::UnboundedSender<oneshot::Sender<bool>>);

/// The other side of it.
pub(super) struct Waiting {
    received: mpsc::UnboundedReceiver<oneshot::Sender<bool>>,
    marker: Marker,
    replicas: u32,
}

/// Names a key that may be written on this server, if there is one.
pub(super) type Marker = Box<dyn Fn() -> Option<String> + Send + Sync>;

impl Gate {
    /// Opens when so many `replicas` have what was answered before. `marker` is a key of its own.
    pub(super) fn new(marker: Marker, replicas: u32) -> (Self, Waiting) {
        let (sender, received) = mpsc::unbounded_channel();
        let waiting = Waiting {
            received,
            marker,
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

    async fn ask(&self, client: &Client) -> Result<u32, Error> {
        let pipeline = client.pipeline();
        let kept = Some(Expiration::EX(MARKER_KEPT_S));
        let Some(marker) = (self.marker)() else {
            return Ok(0);
        };
        let _: () = pipeline.set(marker, "", kept, None, false).await?;
        let wait = CustomCommand::new_static("WAIT", None::<u16>, true);
        let args: Vec<Value> = vec![
            self.replicas.to_string().into(),
            WAIT.as_millis().to_string().into(),
        ];
        let _: () = pipeline.custom(wait, args).await?;
        let (_, count): (Value, u32) = pipeline.all().await?;
        Ok(count)
    }
}
