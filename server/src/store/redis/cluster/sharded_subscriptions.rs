//! Sharded pub/sub channels, one for each slot, so that a message about a lock stays on the master
//! of its slot.
//!
//! A channel is in the slot of its locks, so its master is the one that has the locks. A node
//! subscribes to the channel of a slot with the first call that waits there. Redis ends a
//! subscription when its slot moves away, which fred does not report. Each subscription therefore
//! counts only for [`SUBSCRIPTION_TTL`], and is then made again. Messages lost in between are
//! replaced by the touch that each queue receives every second.

use std::{collections::HashMap, time::Duration};

use fred::{clients::Client, error::Error, interfaces::PubsubInterface as _};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{redirect::Redirect, slot::tag_of};
use crate::store::redis::{connection::Endpoint, connection::NodeError};

/// Time for which a subscription counts.
const SUBSCRIPTION_TTL: Duration = Duration::from_secs(10);
/// Longest time for which a call waits for a subscription. The next touch tries again.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(100);

/// The sharded channels to which one broker subscribes at one master.
pub(in crate::store::redis) struct ShardedSubscriptions {
    client: Client,
    /// Name of the broker's channel, to which the tag of a slot is added.
    channel: String,
    subscribed: Mutex<HashMap<u16, Instant>>,
}

impl ShardedSubscriptions {
    /// Creates a set of subscriptions on the connection `client`.
    pub(in crate::store::redis) fn new(client: Client, channel: String) -> Self {
        Self {
            client,
            channel,
            subscribed: Mutex::default(),
        }
    }

    /// Returns an error if the server does not permit subscriptions. `slot` is one of its slots.
    pub(in crate::store::redis) async fn check(
        &self,
        endpoint: &Endpoint,
        slot: u16,
    ) -> Result<(), NodeError> {
        match self.subscribe(slot).await {
            Err(error) if Redirect::from_error(&error, &endpoint.address).is_none() => {
                Err(endpoint.unreachable(&error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Subscribes to the messages about the locks of a slot. Returns true if the subscription is
    /// new, in which case messages may have been lost. Cancel safe.
    pub(in crate::store::redis) async fn ensure_subscribed(&self, slot: u16) -> bool {
        let subscribed_at = self.subscribed.lock().get(&slot).copied();
        if subscribed_at.is_some_and(|at| at.elapsed() < SUBSCRIPTION_TTL) {
            return false;
        }
        let started_at = Instant::now();
        match timeout(SUBSCRIBE_TIMEOUT, self.subscribe(slot)).await {
            Ok(Ok(())) => {
                self.subscribed.lock().insert(slot, started_at);
                true
            }
            // The slot is on another server, or the node is about to be closed.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    async fn subscribe(&self, slot: u16) -> Result<(), Error> {
        let channel = format!("{}{}", self.channel, tag_of(slot));
        self.client.ssubscribe(channel).await
    }
}
