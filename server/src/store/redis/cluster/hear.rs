//! Listens to the broker's channel on one node of a cluster: a message that is published to any
//! master reaches all of them.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fred::{clients::Client, interfaces::ClientLike as _};
use tokio::{
    select,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{debug, warn};

use super::Router;
use crate::store::redis::{
    connection::Endpoint,
    node::Node,
    open::{Subscriber, listen},
    supervisor::pass_on,
};

/// A server that stands still holds up the hand-offs of all others: it is left soon.
const PING_EVERY: Duration = Duration::from_millis(250);
const MISSED_MAX: u32 = 2;
const AGAIN: Duration = Duration::from_millis(50);

/// Where messages are heard.
pub(super) struct Ear {
    node: Arc<Node>,
    subscriber: Subscriber,
}

impl Router {
    /// Stays with one node as long as it lives, then goes to another. Each time messages may have
    /// been lost, and the first thing told is that.
    pub(super) async fn hear(&self, mut next: Option<Ear>) -> Infallible {
        let mut turn = 0;
        loop {
            if let Some(Ear { node, subscriber }) = next.take() {
                let client = subscriber.connection.client().clone();
                let why = select! {
                    () = node.ended() => "its node is lost".to_owned(),
                    why = pass_on(Some(subscriber), &*self.tell) => why,
                    why = silent(client) => why,
                };
                debug!(why, "{} is not listened to any more", node.name());
                turn += 1;
            }
            sleep(AGAIN).await;
            next = self.ear(turn).await;
            if next.is_none() {
                turn += 1;
                let _ = timeout(PING_EVERY, self.news.notified()).await;
            }
        }
    }

    /// Listens to one of the nodes that serve, to other ones by turns.
    pub(super) async fn ear(&self, turn: usize) -> Option<Ear> {
        let mut living = self.living();
        if living.is_empty() {
            return None;
        }
        let (address, node) = living.swap_remove(turn % living.len());
        let endpoint = Endpoint::new(address, self.config.clone());
        let run_id = &node.server().run_id;
        match listen(&endpoint, run_id, Some(&self.channel)).await {
            Ok(subscriber) => subscriber.map(|subscriber| Ear { node, subscriber }),
            Err(error) => {
                if self.complaints.due("ear", "").is_some() {
                    warn!("{error}");
                }
                None
            }
        }
    }
}

/// Resolves when the connection answers no more.
async fn silent(client: Client) -> String {
    let mut ticks = interval(PING_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    while missed < MISSED_MAX {
        ticks.tick().await;
        match timeout(PING_EVERY, client.ping::<()>(None)).await {
            // An error is an answer, but for that of a broken connection, which is noticed anyway.
            Ok(_) => missed = 0,
            Err(_) => missed += 1,
        }
    }
    "no answer".to_owned()
}
