//! The Redis node as a broker uses it, with small bounds.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use fred::types::Value;
use leasehold_server::store::{
    StoreError,
    redis::{
        connection::{NodeError, RedisConfig},
        era::{Era, EraBounds},
        node::Node,
        place::Place,
        script::Script,
        scripts::Command,
        supervisor::{Channel, NodeEvent, Subscription, Supervisor},
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{redis_server::RedisServer, shared_redis::address};

/// What every key begins with.
pub const PREFIX: &str = "lh:";
/// Long enough for anything on this machine.
pub const SOON: Duration = Duration::from_secs(10);
/// What a caller waits for the store at most.
pub const PROMPT: Duration = Duration::from_secs(1);

/// A script without keys, and one that appends `ARGV[1]` to a list.
pub static SCRIPTS: LazyLock<Arc<[Script]>> = LazyLock::new(|| {
    Arc::from([
        Script::new("answer", "#!lua\nreturn 42"),
        Script::new(
            "append",
            "#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])",
        ),
    ])
});

/// What a broker does with a Redis store, without the rest of it.
pub struct Broker {
    pub supervisor: Supervisor,
    events: mpsc::UnboundedReceiver<NodeEvent>,
    stop: CancellationToken,
}

impl Broker {
    /// Connects; the store must be fit.
    pub async fn start(config: RedisConfig) -> Self {
        Self::try_start(config).await.expect("the store is fit")
    }

    /// Connects.
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
                of_all: format!("{}:all", uuid::Uuid::new_v4()),
                messages_max: 65_536,
            },
            tell,
        };
        let supervisor =
            Supervisor::start(config, scripts, subscription, &tasks, stop.clone()).await?;
        Ok(Self {
            supervisor,
            events,
            stop,
        })
    }

    /// The present node, or the next.
    pub async fn node(&self) -> Arc<Node> {
        self.supervisor.node(SOON).await.expect("a node serves")
    }

    /// What comes next.
    pub async fn event(&mut self) -> NodeEvent {
        timeout(SOON, self.events.recv())
            .await
            .expect("an event comes")
            .expect("the supervisor lives")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Small bounds, and a store that is trusted when empty.
pub fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        key_prefix: PREFIX.to_owned(),
        bounds: EraBounds {
            ttl_max_ms: 10_000,
            lock_delay_max_ms: 1_000,
            former_master_max_ms: 0,
        },
        trust_empty_store: true,
        ..RedisConfig::at(Place::Server(address(server.addr())))
    }
}

/// A command for one of the scripts.
pub fn command<const K: usize, const A: usize>(keys: [&str; K], args: [&str; A]) -> Command {
    Command {
        keys: keys.map(str::to_owned).to_vec(),
        args: args.map(Value::from).to_vec(),
    }
}

/// Runs a script.
pub async fn answer(node: &Node) -> Result<u64, StoreError> {
    let reply = node.eval(&SCRIPTS[0], || command([], [])).await?;
    Ok(reply.convert().expect("a number"))
}

/// How long from now the era lets nobody grant.
pub fn quarantine_ms(node: &Node) -> u64 {
    let now_ms = node.not_after_ms() - leasehold_server::lock::NOT_AFTER_MS;
    let era = node.era().expect("one for all locks");
    era.no_grants_before_ms.saturating_sub(now_ms)
}

/// `Q` of the bounds above.
pub const Q_MS: u64 = 12_250 + 1_000 + 1_000;

/// The quarantine began a moment ago.
pub fn assert_quarantine(node: &Node) {
    let left_ms = quarantine_ms(node);
    assert!((Q_MS - 3_000..=Q_MS).contains(&left_ms), "{left_ms} ms");
}

/// What the server holds.
pub async fn stored_era(server: &RedisServer) -> Era {
    let text = server.connect().await.must(&["GET", "lh:era"]).await;
    Era::parse(text.text()).expect("an era")
}

/// How long the node took to end.
pub async fn ended(node: &Node, within: Duration) -> Duration {
    let start = Instant::now();
    timeout(within, node.ended()).await.expect("the node ends");
    start.elapsed()
}

/// Why the store was refused.
pub fn sentence(result: Result<Broker, NodeError>) -> String {
    match result {
        Ok(_) => panic!("the store was not refused"),
        Err(error) => error.to_string(),
    }
}
