//! Cost of a hand-off in Redis commands, which does not depend on the number of waiters.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use leasehold_server::{
    lock::{AcquireCommand, BrokerId, ExpectedAttachment, LeaseRef, ReleaseScope},
    store::{
        Acquired, Event, HandOff, Renewal, Store,
        redis::{RedisStore, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis::{
        command_counts::CommandCounts,
        connection::RedisConnection,
        shared_server::{own_redis, redis_config},
    },
    scale::print_figures,
    store_fixture::{
        LONG_MS, TTL_MAX_MS, events, lease_of, lock_key, new_call, released_now, with_ttl,
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const QUEUE_LENGTHS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Number of hand-offs: a multiple of the four kinds of hand-off, and of the eight releases after
/// which records of old releases are removed.
const HAND_OFFS: usize = 200;
const NOTIFIED_WITHIN: Duration = Duration::from_secs(10);
const SENT_MAX: f64 = 2.0;
const INNER_MAX: f64 = 10.0;

/// A queue with waiters at two brokers. The brokers of the waiters alternate in pairs, so that
/// hand-offs go from each broker to itself and to the other broker.
struct CostQueue {
    brokers: [Broker; 2],
    name: String,
    waiters: VecDeque<(usize, AcquireCommand)>,
    joined: usize,
}

struct Broker {
    store: Arc<dyn Store>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// Number of commands that brokers sent per hand-off, and of calls that the scripts made in these
/// commands.
#[derive(Debug)]
struct Cost {
    sent: f64,
    inner: f64,
}

#[tokio::test]
async fn a_hand_off_costs_the_same_however_many_wait() {
    let tasks = TaskTracker::new();
    let stop = CancellationToken::new();
    let mut redis = RedisConnection::open(own_redis())
        .await
        .expect("connect to Redis");
    let mut costs = Vec::new();
    for waiters in QUEUE_LENGTHS {
        let mut line = CostQueue {
            brokers: [connect(&tasks, &stop).await, connect(&tasks, &stop).await],
            name: format!("{waiters} wait"),
            waiters: VecDeque::new(),
            joined: 0,
        };
        let [release, claim] = line.hand_off_costs(&mut redis, waiters).await;
        let touch = line.touch_cost(&mut redis).await;
        let sent = release.sent + claim.sent;
        print_figures(&format!(
            "cost: {waiters:>6} wait: {sent:.2} commands per hand-off; calls within a release that \
             hands over {:.2}, within a claim {:.2}; apart from these within a touch {:.2}",
            release.calls_per_command(),
            claim.calls_per_command(),
            touch.calls_per_command()
        ));
        assert!(sent <= SENT_MAX, "{sent} commands per hand-off");
        assert!(release.calls_per_command() <= INNER_MAX && claim.calls_per_command() <= INNER_MAX);
        costs.push([release, claim]);
    }
    for cost in &costs {
        for (one, first) in cost.iter().zip(&costs[0]) {
            let apart = (one.inner - first.inner).abs();
            assert!(one.sent == first.sent && apart < 0.1, "{costs:?}");
        }
    }
    let counts = CommandCounts::read(&mut redis).await;
    let searches: Vec<_> = ["keys", "scan", "hgetall", "hscan"]
        .iter()
        .filter(|name| counts.get(name) > 0)
        .collect();
    assert!(searches.is_empty(), "{searches:?} were called");
    stop.cancel();
}

impl Cost {
    /// Returns the number of calls within one command.
    fn calls_per_command(&self) -> f64 {
        self.inner / self.sent
    }
}

impl CostQueue {
    /// Returns the costs of the releases and of the claims.
    async fn hand_off_costs(&mut self, redis: &mut RedisConnection, waiters: usize) -> [Cost; 2] {
        let (mut at, mut holder) = self.first().await;
        while self.waiters.len() < waiters {
            self.join().await;
        }
        let (mut releases, mut claims) = (CommandCounts::default(), CommandCounts::default());
        for _ in 0..HAND_OFFS {
            let before = CommandCounts::read(redis).await;
            let released = self.brokers[at]
                .store
                .release(&holder, ReleaseScope::All, ExpectedAttachment::Any)
                .await;
            assert_eq!(released, Ok(released_now(0)));
            let between = CommandCounts::read(redis).await;
            (at, holder) = self.complete_hand_off(at).await;
            let after = CommandCounts::read(redis).await;
            releases.add(&before, &between);
            claims.add(&between, &after);
            self.join().await;
        }
        [cost(&releases, HAND_OFFS), cost(&claims, HAND_OFFS)]
    }

    /// Returns the cost of the touch that a broker sends about every second for a lock with
    /// waiters.
    async fn touch_cost(&mut self, redis: &mut RedisConnection) -> Cost {
        let lock = self.waiters[0].1.lock.clone();
        let before = CommandCounts::read(redis).await;
        self.brokers[0].store.touch(&lock).await.expect("touch");
        let mut touch = CommandCounts::default();
        touch.add(&before, &CommandCounts::read(redis).await);
        cost(&touch, 1)
    }

    fn call(&self) -> AcquireCommand {
        let call = new_call(&lock_key("default", &self.name));
        with_ttl(
            AcquireCommand {
                wait_ms: LONG_MS,
                ..call
            },
            TTL_MAX_MS,
        )
    }

    async fn first(&mut self) -> (usize, LeaseRef) {
        let call = self.call();
        let Ok(Acquired::Granted(grant)) = self.brokers[0].store.acquire(&call).await else {
            panic!("the lock is not free");
        };
        (0, lease_of(&call, grant.fencing_token))
    }

    async fn join(&mut self) {
        let (n, call) = (self.joined / 2 % 2, self.call());
        let reply = self.brokers[n].store.acquire(&call).await;
        assert!(matches!(reply, Ok(Acquired::Queued { .. })), "{reply:?}");
        self.joined += 1;
        self.waiters.push_back((n, call));
    }

    /// Completes the hand-off from a holder at broker `at` to the first waiter.
    async fn complete_hand_off(&mut self, at: usize) -> (usize, LeaseRef) {
        let (n, call) = self.waiters.pop_front().expect("a caller waits");
        let hand_off = self.brokers[n].next_hand_off().await;
        assert_eq!(
            (hand_off.request, hand_off.is_provisional),
            (call.request, n != at)
        );
        let lease = lease_of(&call, hand_off.fencing_token);
        if hand_off.is_provisional {
            let claimed = self.brokers[n]
                .store
                .renew(&lease, Renewal::default())
                .await;
            assert!(matches!(claimed, Ok(Ok(_))), "{claimed:?}");
        }
        (n, lease)
    }
}

impl Broker {
    async fn next_hand_off(&mut self) -> HandOff {
        loop {
            let event = timeout(NOTIFIED_WITHIN, self.events.recv()).await;
            if let Event::HandOff(_, hand_off, _) =
                event.expect("notified in time").expect("events go on")
            {
                return hand_off;
            }
        }
    }
}

async fn connect(tasks: &TaskTracker, stop: &CancellationToken) -> Broker {
    let config = redis_config("cost:", true);
    let broker = BrokerId::random();
    let store = RedisStore::start(config, broker, Scripts::standard(), tasks, stop.clone()).await;
    let store = Arc::new(store.expect("a Redis that can keep locks"));
    Broker {
        events: events(&*store),
        store,
    }
}

/// Computes the cost per repetition. Brokers send scripts as EVALSHA.
fn cost(spent: &CommandCounts, times: usize) -> Cost {
    let inner = [
        "time", "get", "hget", "hmget", "hset", "hdel", "pexpire", "publish",
    ];
    let inner = inner.iter().map(|name| spent.get(name)).sum();
    let per_time = |calls: u64| calls as f64 / times as f64;
    Cost {
        sent: per_time(spent.get("evalsha")),
        inner: per_time(inner),
    }
}
