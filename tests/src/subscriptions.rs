//! The brokers' subscriptions at Redis, and how to cut one so that its messages are lost.

use std::time::Duration;

use crate::{clock::boottime, redis_connection::RedisConnection};

const CHANNELS: &str = "lh:b:*";
const LISTENING_LIMIT: Duration = Duration::from_secs(3);

/// The connections that listen to channels, by id.
pub async fn subscribers(raw: &mut RedisConnection) -> Vec<String> {
    let list = raw.must(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    let ids = list.text().lines().map(|line| {
        let id = line.split(' ').find_map(|word| word.strip_prefix("id="));
        id.expect("a client has an id").to_owned()
    });
    ids.collect()
}

/// Returns once so many brokers listen to their channels.
pub async fn listening(raw: &mut RedisConnection, brokers: usize) {
    let give_up = boottime() + LISTENING_LIMIT;
    while channels(raw).await != brokers {
        assert!(boottime() < give_up, "{brokers} should listen");
    }
}

/// How many brokers listen to their channels.
pub async fn channels(raw: &mut RedisConnection) -> usize {
    let channels = raw.must(&["PUBSUB", "CHANNELS", CHANNELS]).await;
    channels.array().len()
}

/// Ends these connections; nobody connects again before [`restore`].
pub async fn cut(raw: &mut RedisConnection, subscribers: &[String]) {
    raw.must(&["CONFIG", "SET", "maxclients", "1"]).await;
    for id in subscribers {
        raw.must(&["CLIENT", "KILL", "ID", id]).await;
    }
}

/// Lets brokers connect again.
pub async fn restore(raw: &mut RedisConnection) {
    raw.must(&["CONFIG", "SET", "maxclients", "10000"]).await;
}
