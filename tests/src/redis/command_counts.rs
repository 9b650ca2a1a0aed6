//! Numbers of commands that a Redis server has executed.

use std::collections::BTreeMap;

use super::connection::RedisConnection;

/// Numbers of executed commands, by name. Commands that scripts call count as well.
#[derive(Debug, Clone, Default)]
pub struct CommandCounts(BTreeMap<String, u64>);

impl CommandCounts {
    /// Returns the numbers since the start of the server.
    pub async fn read(redis: &mut RedisConnection) -> Self {
        let reply = redis.must(&["INFO", "commandstats"]).await;
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), calls))
        };
        Self(reply.text().lines().filter_map(line).collect())
    }

    /// Adds the commands between two readings, without those of the readings and of the brokers'
    /// health checks. A health check sends one each of INFO, PING, TIME and GET.
    pub fn add(&mut self, before: &Self, after: &Self) {
        let spent = |name: &str| after.get(name) - before.get(name);
        let pings = spent("ping");
        for name in after.0.keys() {
            let of_checks = match name.as_str() {
                "ping" | "info" => spent(name),
                "time" | "get" => pings,
                _ => 0,
            };
            let calls = spent(name).saturating_sub(of_checks);
            if calls > 0 {
                *self.0.entry(name.clone()).or_default() += calls;
            }
        }
    }

    /// Returns the number of commands with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns the names and numbers, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, calls)| (name.as_str(), *calls))
    }
}
