//! Sends the commands that are waiting in one write: fred flushes after each EVALSHA sent by itself.

use std::convert::Infallible;

use fred::{
    bytes_utils::Str,
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike as _, FredResult},
    types::{ClusterHash, CustomCommand, Key, Value},
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::sync::{mpsc, oneshot};

/// Commands in one write.
const BATCH_MAX: usize = 64;
/// Writes whose replies are awaited at the same time. Under load the next commands gather while
/// these are under way.
const UNDER_WAY_MAX: usize = 4;
const WAITING_MAX: usize = 8_192;

/// Where commands are handed in.
pub(super) struct Batch(mpsc::Sender<Pending>);

/// The other end, which sends them.
pub(super) struct Sending(mpsc::Receiver<Pending>);

struct Pending {
    arguments: Vec<Value>,
    reply: oneshot::Sender<FredResult<Value>>,
}

/// Both ends.
pub(super) fn batch() -> (Batch, Sending) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Batch(sender), Sending(receiver))
}

impl Batch {
    /// EVALSHA; the error is the server's.
    pub(super) async fn evalsha(
        &self,
        sha: Str,
        keys: Vec<Key>,
        args: Vec<Value>,
    ) -> FredResult<Value> {
        let mut arguments = Vec::with_capacity(2 + keys.len() + args.len());
        arguments.push(Value::String(sha));
        arguments.push(Value::Integer(
            i64::try_from(keys.len()).unwrap_or(i64::MAX),
        ));
        arguments.extend(keys.into_iter().map(Value::from));
        arguments.extend(args);
        let (reply, answer) = oneshot::channel();
        let ended = |_| Error::new(ErrorKind::Canceled, "the connection has ended");
        let pending = Pending { arguments, reply };
        self.0.send(pending).await.map_err(|_| ended(()))?;
        answer.await.map_err(|_| ended(()))?
    }
}

impl Sending {
    /// Sends on `client` until dropped. Commands keep the order in which they were handed in.
    pub(super) async fn run(mut self, client: &Client) -> Infallible {
        let mut under_way = FuturesUnordered::new();
        let mut pending = Vec::with_capacity(BATCH_MAX);
        loop {
            tokio::select! {
                Some(()) = under_way.next() => {}
                count = self.0.recv_many(&mut pending, BATCH_MAX),
                    if under_way.len() < UNDER_WAY_MAX =>
                {
                    if count == 0 {
                        std::future::pending::<()>().await;
                    }
                    under_way.push(send(client, std::mem::take(&mut pending)));
                }
            }
        }
    }
}

async fn send(client: &Client, batch: Vec<Pending>) {
    let pipeline = client.pipeline();
    let mut replies = Vec::with_capacity(batch.len());
    for Pending { arguments, reply } in batch {
        let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        let queued: FredResult<()> = pipeline.custom(evalsha, arguments).await;
        match queued {
            Ok(()) => replies.push(reply),
            Err(error) => drop(reply.send(Err(error))),
        }
    }
    let answers: Vec<FredResult<Value>> = pipeline.try_all().await;
    // One answer for all: the batch failed as a whole.
    let failed = match answers.first() {
        Some(Err(error)) if answers.len() != replies.len() => Some(error.clone()),
        _ => None,
    };
    let mut answers = answers.into_iter();
    for reply in replies {
        let answer = match &failed {
            Some(error) => Err(error.clone()),
            None => answers.next().unwrap_or_else(|| {
                Err(Error::new(
                    ErrorKind::Protocol,
                    "fewer answers than commands",
                ))
            }),
        };
        let _ = reply.send(answer);
    }
}
