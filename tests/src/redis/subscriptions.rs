//! Subscriptions of brokers in Redis, and how to cut one so that its messages are lost.

use std::time::Duration;

use crate::{clock::boottime, redis::connection::RedisConnection};

const CHANNEL_PATTERN: &str = "lh:b:*";
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the client ids of the connections with subscriptions.
pub async fn subscriber_ids(raw: &mut RedisConnection) -> Vec<String> {
    let list = raw.must(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    let ids = list.text().lines().map(|line| {
        let id = line.split(' ').find_map(|word| word.strip_prefix("id="));
        id.expect("a client has an id").to_owned()
    });
    ids.collect()
}

/// Waits until `brokers` brokers have subscribed to their channels.
pub async fn wait_for_subscriptions(raw: &mut RedisConnection, brokers: usize) {
    let give_up = boottime() + SUBSCRIBE_TIMEOUT;
    while subscription_count(raw).await != brokers {
        assert!(boottime() < give_up, "{brokers} should listen");
    }
}

/// Returns the number of brokers with a subscription to their channel.
pub async fn subscription_count(raw: &mut RedisConnection) -> usize {
    let channels = raw.must(&["PUBSUB", "CHANNELS", CHANNEL_PATTERN]).await;
    channels.array().len()
}

/// Closes these connections and rejects new ones until [`unblock`].
pub async fn close_and_block(raw: &mut RedisConnection, subscribers: &[String]) {
    raw.must(&["CONFIG", "SET", "maxclients", "1"]).await;
    for id in subscribers {
        raw.must(&["CLIENT", "KILL", "ID", id]).await;
    }
}

/// Accepts new connections again.
pub async fn unblock(raw: &mut RedisConnection) {
    raw.must(&["CONFIG", "SET", "maxclients", "10000"]).await;
}
