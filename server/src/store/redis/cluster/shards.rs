//! Sharded channels, one for each slot: a message about a lock stays on the master of its slot.
//!
//! A channel lies in the slot of the locks that it is about, so nobody has to agree which master tells
//! whom. A node listens to that of a slot from the first call that waits there. Redis ends a subscription
//! when its slot moves away, which fred tells nobody: so each counts for a while only, and is then made
//! again. What is missed meanwhile is found by the touch that each line has every second.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fred::{clients::Client, error::Error, interfaces::PubsubInterface as _};
use tokio::time::{Instant, timeout};

use super::{redirect::Redirect, slot::tag_of};
use crate::store::redis::{connection::Endpoint, connection::NodeError};

/// How long a subscription counts.
const COUNTS_FOR: Duration = Duration::from_secs(10);
/// How long a call waits for one: the next touch tries again.
const WITHIN: Duration = Duration::from_millis(100);

/// The sharded channels of one broker at one master.
pub(in crate::store::redis) struct Shards {
    client: Client,
    /// The broker's, to which the tag of a slot is added.
    channel: String,
    heard: Mutex<HashMap<u16, Instant>>,
}

impl Shards {
    /// `client` hears the messages.
    pub(in crate::store::redis) fn new(client: Client, channel: String) -> Self {
        Self {
            client,
            channel,
            heard: Mutex::default(),
        }
    }

    /// Fails if the server does not let it listen. `slot`: one that it has.
    pub(in crate::store::redis) async fn check(
        &self,
        endpoint: &Endpoint,
        slot: u16,
    ) -> Result<(), NodeError> {
        match self.subscribe(slot).await {
            Err(error) if Redirect::of(&error, &endpoint.address).is_none() => {
                Err(endpoint.unreachable(&error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Listens to what is told of the locks of a slot. True if it did not until now: something may
    /// have been missed. Cancel safe.
    pub(in crate::store::redis) async fn hear(&self, slot: u16) -> bool {
        let heard_at = self.heard().get(&slot).copied();
        if heard_at.is_some_and(|at| at.elapsed() < COUNTS_FOR) {
            return false;
        }
        let asked_at = Instant::now();
        match timeout(WITHIN, self.subscribe(slot)).await {
            Ok(Ok(())) => {
                self.heard().insert(slot, asked_at);
                true
            }
            // The slot is elsewhere, or the node is about to end.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    async fn subscribe(&self, slot: u16) -> Result<(), Error> {
        let channel = format!("{}{}", self.channel, tag_of(slot));
        self.client.ssubscribe(channel).await
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<u16, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
