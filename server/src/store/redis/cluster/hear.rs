//! Listens to the broker's channel on one node of a cluster: a message that is published to any
//! master reaches all of them.

use std::{convert::Infallible, time::Duration};

use fred::{clients::Client, interfaces::ClientLike as _};
use tokio::{
    select,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::debug;

use super::Router;
use crate::store::redis::{
    connection::Endpoint, open::listen, place::Address, supervisor::pass_on,
};

const PING_EVERY: Duration = Duration::from_millis(500);
const MISSED_MAX: u32 = 3;
const AGAIN: Duration = Duration::from_millis(50);

impl Router {
    /// Stays with one node as long as it lives, then goes to another. Each time messages may have
    /// been lost, and the first thing told is that.
    pub(super) async fn hear(&self) -> Infallible {
        let mut turn = 0;
        loop {
            let mut living = self.living();
            if living.is_empty() {
                self.news.notified().await;
                continue;
            }
            let (address, node) = living.swap_remove(turn % living.len());
            let endpoint = Endpoint::new(address, self.config.clone());
            let run_id = &node.server().run_id;
            match listen(&endpoint, run_id, Some(&self.channel)).await {
                Ok(Some(subscriber)) => {
                    let client = subscriber.connection.client().clone();
                    select! {
                        () = node.ended() => {}
                        why = pass_on(Some(subscriber), &*self.tell) => log(&endpoint.address, &why),
                        why = silent(client) => log(&endpoint.address, &why),
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    log(&endpoint.address, &error.to_string());
                    turn += 1;
                }
            }
            sleep(AGAIN).await;
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

fn log(address: &Address, why: &str) {
    debug!(%address, why, "messages are heard elsewhere from now on");
}
