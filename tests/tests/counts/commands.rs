//! Redis commands of each verb.

use std::sync::Arc;

use leasehold_server::{
    lock::{BrokerId, ExpectedAttachment, LeaseRef, ReleaseScope},
    store::{
        Acquired, Renewal, Store,
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
    store_fixture::{lease_of, released_now},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    kept::{COMMANDS, Count},
    locks::{CALLS, acquires, attachment},
};

/// A store, and a connection that reads the counts of its server.
struct CountedStore {
    store: Arc<dyn Store>,
    redis: RedisConnection,
}

/// Commands of all calls of each verb.
#[derive(Default)]
struct VerbCounts {
    acquire: CommandCounts,
    renew: CommandCounts,
    attach: CommandCounts,
    release: CommandCounts,
}

#[tokio::test]
async fn a_call_costs_the_kept_number_of_redis_commands() {
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let config = redis_config("counts:", true);
    let broker = BrokerId::random();
    let store = RedisStore::start(config, broker, Scripts::standard(), &tasks, stop.clone()).await;
    let mut counted = CountedStore {
        store: Arc::new(store.expect("a Redis that can keep locks")),
        redis: RedisConnection::open(own_redis())
            .await
            .expect("connect to Redis"),
    };
    // Creates the records of the locks.
    counted.run().await;
    let VerbCounts {
        acquire,
        renew,
        attach,
        release,
    } = counted.run().await;
    let measured = [
        ("acquire", acquire),
        ("renew", renew),
        ("attach", attach),
        ("release", release),
    ];
    let measured = measured.map(|(verb, counts)| counts_of(verb, &counts));
    COMMANDS.compare(measured.as_flattened());
    stop.cancel();
}

impl CountedStore {
    /// Calls each verb for each lock. The lease that is attached is another one than the lease that
    /// is renewed.
    async fn run(&mut self) -> VerbCounts {
        let mut counts = VerbCounts::default();
        let leases = self.acquire(&mut counts.acquire).await;
        let before = CommandCounts::read(&mut self.redis).await;
        for lease in &leases {
            let renewed = self.store.renew(lease, Renewal::default()).await;
            assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
        }
        self.add_since(before, &mut counts.renew).await;
        self.release(&leases, &mut counts.release).await;
        let leases = self.acquire(&mut CommandCounts::default()).await;
        let to = attachment(self.store.broker());
        let before = CommandCounts::read(&mut self.redis).await;
        for lease in &leases {
            let attached = self.store.attach(lease, to).await;
            assert!(matches!(attached, Ok(Ok(_))), "{attached:?}");
        }
        self.add_since(before, &mut counts.attach).await;
        let via = ExpectedAttachment::Stream(to.stream);
        for lease in &leases {
            let released = self.store.release(lease, ReleaseScope::All, via).await;
            assert_eq!(released, Ok(released_now(0)));
        }
        counts
    }

    async fn acquire(&mut self, counts: &mut CommandCounts) -> Vec<LeaseRef> {
        let before = CommandCounts::read(&mut self.redis).await;
        let mut leases = Vec::new();
        for call in acquires() {
            let reply = self.store.acquire(&call).await;
            let Ok(Acquired::Granted(grant)) = reply else {
                panic!("{reply:?} instead of a grant");
            };
            leases.push(lease_of(&call, grant.fencing_token));
        }
        self.add_since(before, counts).await;
        leases
    }

    async fn release(&mut self, leases: &[LeaseRef], counts: &mut CommandCounts) {
        let before = CommandCounts::read(&mut self.redis).await;
        for lease in leases {
            let released = self
                .store
                .release(lease, ReleaseScope::All, ExpectedAttachment::Any);
            assert_eq!(released.await, Ok(released_now(0)));
        }
        self.add_since(before, counts).await;
    }

    async fn add_since(&mut self, before: CommandCounts, counts: &mut CommandCounts) {
        counts.add(&before, &CommandCounts::read(&mut self.redis).await);
    }
}

/// Returns the numbers of commands per call that the store sent, and that the script called.
fn counts_of(verb: &str, counts: &CommandCounts) -> [Count; 2] {
    let per_call = |calls: u64| calls as f64 / CALLS as f64;
    let (mut called, mut names) = (0, Vec::new());
    for (name, calls) in counts.iter().filter(|(name, _)| *name != "evalsha") {
        called += calls;
        names.push(format!("{name} {:.2}", per_call(calls)));
    }
    print_figures(&format!("counts: {verb} calls {}", names.join(", ")));
    let count = |what: &str, calls| Count {
        name: format!("{verb}, {what}"),
        number: per_call(calls),
    };
    [
        count("sent", counts.get("evalsha")),
        count("called", called),
    ]
}
