//! Recorder of the commands that brokers send to Redis (`MONITOR`).

use std::{collections::BTreeSet, net::SocketAddr};

use crate::{broker::process::KEY_PREFIX, redis::connection::RedisConnection};

/// Suffix of the key with the era of the data.
const ERA_KEY_SUFFIX: &str = "era";

/// Records every command that a server executes.
#[derive(Debug)]
pub struct CommandRecorder {
    monitor: RedisConnection,
    marker_connection: RedisConnection,
    marker_count: usize,
    /// Addresses of the connections that are ignored.
    ignored: BTreeSet<String>,
}

impl CommandRecorder {
    /// Starts recording the commands of all connections that are opened after this call.
    pub async fn start(redis: SocketAddr) -> Self {
        let mut monitor = RedisConnection::open(redis).await.expect("Redis is there");
        let mut marks = RedisConnection::open(redis).await.expect("Redis is there");
        monitor.must(&["MONITOR"]).await;
        let deaf_to = connections(&mut marks).await;
        Self {
            monitor,
            marker_connection: marks,
            marker_count: 0,
            ignored: deaf_to,
        }
    }

    /// Ignores the connections that were opened after `known` was read.
    pub async fn ignore_opened_after(&mut self, known: &BTreeSet<String>) {
        let now = connections(&mut self.marker_connection).await;
        self.ignored.extend(now.difference(known).cloned());
    }

    /// Returns the addresses of the open connections.
    pub async fn connections(&mut self) -> BTreeSet<String> {
        connections(&mut self.marker_connection).await
    }

    /// Returns the commands since the previous call, without the brokers' background commands.
    pub async fn take_commands(&mut self) -> Vec<String> {
        self.marker_count += 1;
        let mark = format!("mark-{}", self.marker_count);
        self.marker_connection.must(&["ECHO", &mark]).await;
        let mut commands = Vec::new();
        loop {
            let line = self.monitor.next_message().await.expect("MONITOR goes on");
            let line = line.text();
            if line.contains(&mark) {
                return commands;
            }
            let from = line.split(['[', ']']).nth(1).unwrap_or_default();
            let from = from.split(' ').nth(1).unwrap_or_default();
            // Commands within a script are skipped, because the script itself is recorded.
            if from != "lua" && !is_background_command(line) && !self.ignored.contains(from) {
                commands.push(line.to_owned());
            }
        }
    }
}

/// Returns true for a command that a broker sends in the background: health checks, era checks,
/// clock readings and subscriptions.
fn is_background_command(line: &str) -> bool {
    let mut words = line.split('"').skip(1).step_by(2);
    let (command, argument) = (words.next().unwrap_or_default(), words.next());
    match command.to_ascii_uppercase().as_str() {
        "PING" | "INFO" | "TIME" | "CLIENT" | "SUBSCRIBE" => true,
        "GET" => argument.and_then(|key| key.strip_prefix(KEY_PREFIX)) == Some(ERA_KEY_SUFFIX),
        _ => false,
    }
}

async fn connections(raw: &mut RedisConnection) -> BTreeSet<String> {
    let list = raw.must(&["CLIENT", "LIST"]).await.text().to_owned();
    let fields = list.split_whitespace();
    let addresses = fields.filter_map(|field| field.strip_prefix("addr="));
    addresses.map(str::to_owned).collect()
}
