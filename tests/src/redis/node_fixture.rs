//! The broker's Redis node and its supervisor, with small bounds.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use fred::types::Value;
use leasehold_server::{
    lock::RecoveryCause,
    store::{
        StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            era::{Era, EraBounds, Quarantine},
            location::StoreLocation,
            node::Node,
            script::Script,
            scripts::Command,
            span_limit::StoredSpanLimit,
            supervisor::{Channel, NodeEvent, Subscription, Supervisor},
        },
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::redis::{server::RedisServer, shared_server::config_address};

/// Prefix of every key.
pub const PREFIX: &str = "lh:";
/// Upper bound of the time for anything on this machine.
pub const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time for which a caller waits for the store at most.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A script without keys, and a script that appends `ARGV[1]` to a list.
pub static SCRIPTS: LazyLock<Arc<[Script]>> = LazyLock::new(|| {
    Arc::from([
        Script::new("answer", "#!lua\nreturn 42"),
        Script::new(
            "append",
            "#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])",
        ),
    ])
});

/// The part of a broker that manages the Redis node.
pub struct NodeFixture {
    pub supervisor: Supervisor,
    events: mpsc::UnboundedReceiver<NodeEvent>,
    stop: CancellationToken,
}

impl NodeFixture {
    /// Connects and asserts that the store is accepted.
    pub async fn start(config: RedisConfig) -> Self {
        Self::try_start(config).await.expect("the store is fit")
    }

    /// Connects, or returns the error if the store is rejected.
    pub async fn try_start(config: RedisConfig) -> Result<Self, NodeError> {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let scripts = Arc::clone(&SCRIPTS);
        let channel = format!("{PREFIX}channel");
        let (sender, events) = mpsc::unbounded_channel();
        let tell = Box::new(move |event| drop(sender.send(event)));
        let subscription = Subscription {
            channel: Channel {
                name: channel,
                shared_name: format!("{}:all", uuid::Uuid::new_v4()),
                messages_max: 65_536,
            },
            on_event: tell,
        };
        let supervisor =
            Supervisor::start(config, scripts, subscription, &tasks, stop.clone()).await?;
        Ok(Self {
            supervisor,
            events,
            stop,
        })
    }

    /// Returns the current node, or waits for the next one.
    pub async fn node(&self) -> Arc<Node> {
        self.supervisor.node(WAIT_MAX).await.expect("a node serves")
    }

    /// Waits for the next event.
    pub async fn next_event(&mut self) -> NodeEvent {
        timeout(WAIT_MAX, self.events.recv())
            .await
            .expect("an event comes")
            .expect("the supervisor lives")
    }
}

impl Drop for NodeFixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns a configuration with small bounds that trusts an empty store.
pub fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        key_prefix: PREFIX.to_owned(),
        bounds: EraBounds {
            ttl_max_ms: 10_000,
            lock_delay_max_ms: 1_000,
            former_master_max_ms: 0,
        },
        trust_empty_store: true,
        ..RedisConfig::at(StoreLocation::Server(config_address(server.addr())))
    }
}

pub fn script_command<const K: usize, const A: usize>(keys: [&str; K], args: [&str; A]) -> Command {
    Command {
        keys: keys.map(str::to_owned).to_vec(),
        args: args.map(Value::from).to_vec(),
    }
}

/// Runs the script `answer`.
pub async fn run_answer_script(node: &Node) -> Result<u64, StoreError> {
    let reply = node.eval(&SCRIPTS[0], script_command([], [])).await?;
    Ok(reply.convert().expect("a number"))
}

/// Returns the time in milliseconds until the era permits grants.
pub fn remaining_quarantine_ms(node: &Node) -> u64 {
    let now_ms = node.not_after_ms() - leasehold_server::lock::COMMAND_DEADLINE_MS;
    let era = node.era().expect("one for all locks");
    era.no_grants_before_ms.saturating_sub(now_ms)
}

/// Quarantine `Q` in milliseconds, for the bounds in [`config`].
pub const Q_MS: u64 = 12_250 + 1_000 + 1_000;

/// Asserts that the quarantine started at most 3 s ago, for this reason.
pub fn assert_quarantine(node: &Node, cause: RecoveryCause) {
    let left_ms = remaining_quarantine_ms(node);
    assert!((Q_MS - 3_000..=Q_MS).contains(&left_ms), "{left_ms} ms");
    let era = node.era().expect("one for all locks");
    let begun = Quarantine {
        cause: Some(cause),
        since_ms: era.no_grants_before_ms - Q_MS,
    };
    assert_eq!(era.quarantine, Some(begun));
}

/// Returns the era that the server stores.
pub async fn stored_era(server: &RedisServer) -> Era {
    let text = server.connect().await.must(&["GET", "lh:era"]).await;
    Era::parse(text.text()).expect("an era")
}

/// Returns the duration of the quarantine with which an era began.
#[must_use]
pub fn quarantine_ms(era: &Era) -> u64 {
    let begun = era.quarantine.expect("the era began with one");
    era.no_grants_before_ms - begun.since_ms
}

/// Replaces the limit of spans in the stored era.
pub async fn set_span_limit(server: &RedisServer, limit: StoredSpanLimit) {
    let era = Era {
        span_limit: Some(limit),
        ..stored_era(server).await
    };
    let text = format!(
        "{}|{}|{}",
        era.id,
        era.no_grants_before_ms,
        era.fields_after_time()
    );
    let mut raw = server.connect().await;
    raw.must(&["SET", &format!("{PREFIX}era"), &text]).await;
}

/// Waits until the node has ended and returns the time that it took.
pub async fn wait_for_node_end(node: &Node, within: Duration) -> Duration {
    let start = Instant::now();
    timeout(within, node.closed()).await.expect("the node ends");
    start.elapsed()
}

/// Asserts that the store was rejected and returns the error message.
pub fn rejection_message(result: Result<NodeFixture, NodeError>) -> String {
    match result {
        Ok(_) => panic!("the store was not refused"),
        Err(error) => error.to_string(),
    }
}
