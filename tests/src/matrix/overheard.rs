//! What brokers send to Redis, command by command.

use std::{collections::BTreeSet, net::SocketAddr};

use crate::{broker_process::KEY_PREFIX, redis_connection::RedisConnection};

/// The key that says which data a server serves.
const ERA: &str = "era";

/// Hears every command that a server executes.
#[derive(Debug)]
pub struct Overheard {
    monitor: RedisConnection,
    marks: RedisConnection,
    mark: usize,
    /// Connections that are not listened to.
    deaf_to: BTreeSet<String>,
}

impl Overheard {
    /// Begins to listen to all connections that come from now on.
    pub async fn start(redis: SocketAddr) -> Self {
        let mut monitor = RedisConnection::open(redis).await.expect("Redis is there");
        let mut marks = RedisConnection::open(redis).await.expect("Redis is there");
        monitor.must(&["MONITOR"]).await;
        let deaf_to = connections(&mut marks).await;
        Self {
            monitor,
            marks,
            mark: 0,
            deaf_to,
        }
    }

    /// Does not listen to the connections that came since `known`.
    pub async fn ignore_those_after(&mut self, known: &BTreeSet<String>) {
        let now = connections(&mut self.marks).await;
        self.deaf_to.extend(now.difference(known).cloned());
    }

    /// Which connections there are now.
    pub async fn connections(&mut self) -> BTreeSet<String> {
        connections(&mut self.marks).await
    }

    /// What was sent since the last time, but for what brokers send by themselves.
    pub async fn commands(&mut self) -> Vec<String> {
        self.mark += 1;
        let mark = format!("mark-{}", self.mark);
        self.marks.must(&["ECHO", &mark]).await;
        let mut heard = Vec::new();
        loop {
            let line = self.monitor.message().await.expect("MONITOR goes on");
            let line = line.text();
            if line.contains(&mark) {
                return heard;
            }
            let from = line.split(['[', ']']).nth(1).unwrap_or_default();
            let from = from.split(' ').nth(1).unwrap_or_default();
            // Within a script: the script itself has been heard.
            if from != "lua" && !by_itself(line) && !self.deaf_to.contains(from) {
                heard.push(line.to_owned());
            }
        }
    }
}

/// What a broker sends without being asked: whether the server lives and is the one it was, what its
/// clock says, and how it begins to listen to it.
fn by_itself(line: &str) -> bool {
    let mut words = line.split('"').skip(1).step_by(2);
    let (command, argument) = (words.next().unwrap_or_default(), words.next());
    match command.to_ascii_uppercase().as_str() {
        "PING" | "INFO" | "TIME" | "CLIENT" | "SUBSCRIBE" => true,
        "GET" => argument.and_then(|key| key.strip_prefix(KEY_PREFIX)) == Some(ERA),
        _ => false,
    }
}

async fn connections(raw: &mut RedisConnection) -> BTreeSet<String> {
    let list = raw.must(&["CLIENT", "LIST"]).await.text().to_owned();
    let fields = list.split_whitespace();
    let addresses = fields.filter_map(|field| field.strip_prefix("addr="));
    addresses.map(str::to_owned).collect()
}
