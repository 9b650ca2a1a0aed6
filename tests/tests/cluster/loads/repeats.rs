//! Calls that are repeated or cancelled after their slot has moved. A repeat has no second effect,
//! and cancelled attempts are rolled back at the new master.

#![expect(
    clippy::disallowed_methods,
    reason = "a call that stays open is a task of the test"
)]

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::ClusterDeployment,
        fixture::{ClusterFixture, SHARDS, initial_slots_of, lock_names_in_each},
    },
    net::http2_proxy::{Http2Proxy, ProxyMode},
    scale::{print_figures, scaled_count},
    status::{error_reason, is_transport_error},
    until::until,
};
use rand::Rng as _;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

const LOCKS: usize = 8;
/// TTL that exceeds the time until a rollback, so that no lease expires before.
const TTL: Duration = Duration::from_secs(20);
/// Time after which a call that is not repeated is rolled back.
const ROLLED_BACK_AFTER: Duration = Duration::from_secs(1);
const ROLLED_BACK_LIMIT: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(30);

/// Endpoint indexes of the client: the first broker behind a proxy, the second broker, and the
/// first broker without the proxy.
const PROXIED: usize = 0;
const OTHER: usize = 1;
const DIRECT: usize = 2;

struct Run {
    fixture: ClusterFixture,
    proxy: Http2Proxy,
    client: Client,
    /// Slots that have been moved, in which nothing is granted for a while.
    used: Mutex<HashSet<u16>>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_repeated_after_its_slot_moved_has_no_second_effect() {
    let run = Run::start().await;
    let rounds = scaled_count(20, 2);
    for _ in 0..rounds {
        run.repeat_an_acquire_after_a_move().await;
        run.repeat_after_a_move().await;
    }
    print_figures(&format!(
        "cluster_repeats: {} acquires, renewals and releases each, repeated after their slot had moved: \
         double_leases=0 lost_leases=0",
        rounds * LOCKS
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_cancelled_while_its_slot_moves_is_rolled_back() {
    let run = Run::start().await;
    let mut slowest = Duration::ZERO;
    let rounds = scaled_count(20, 2);
    for round in 0..rounds {
        slowest = slowest.max(run.cut_during_migration(round % 2 == 0).await);
    }
    print_figures(&format!(
        "cluster_repeats: {} calls in the queue, half of them just granted, cut while their slot moved: all gone after \
         at most {} ms",
        rounds * LOCKS,
        slowest.as_millis()
    ));
}

impl Run {
    async fn start() -> Self {
        let fixture = ClusterFixture::with_ttl_max(TTL, 2).await;
        let addrs = fixture.addrs();
        let proxy = Http2Proxy::start(addrs[0]).await;
        let client = Client::new("careful", &[proxy.addr(), addrs[1], addrs[0]], DIRECT);
        Self {
            fixture,
            proxy,
            client,
            used: Mutex::default(),
        }
    }

    /// Asserts that a repeat with a lease in a moved slot is rejected until `Q` has
    /// passed, because the lease may be stale. The first copy, whose broker has already responded,
    /// keeps its lease.
    async fn repeat_an_acquire_after_a_move(&self) {
        let (slot, names) = self.slot();
        let calls: Vec<_> = names
            .iter()
            .map(|name| call(name, Duration::ZERO))
            .collect();
        self.lose_replies(&calls, acquire).await;
        let first = join_all(names.iter().map(|name| self.holder(name))).await;
        move_slot(&self.fixture.cluster, slot).await;
        for refused in join_all(calls.iter().map(|call| self.client.acquire_at(OTHER, call))).await
        {
            let refused = refused.expect_err("its lease may have come back");
            let reason = error_reason(&refused);
            assert_eq!(reason, Some(ErrorReason::StoreRecovering), "{refused}");
        }
        let still = join_all(names.iter().map(|name| self.holder(name))).await;
        assert_eq!(still, first);
    }

    async fn repeat_after_a_move(&self) {
        let (slot, names) = self.slot();
        let calls: Vec<_> = names
            .iter()
            .map(|name| call(name, Duration::ZERO))
            .collect();
        let held = join_all(calls.iter().map(|call| self.client.acquire_at(OTHER, call))).await;
        let held: Result<Vec<_>, _> = held.into_iter().collect();
        let held = held.expect("they are free");
        self.lose_replies(&held, renew).await;
        move_slot(&self.fixture.cluster, slot).await;
        self.assert_all_held(&held).await;

        self.lose_replies(&held, release).await;
        move_slot(&self.fixture.cluster, slot).await;
        for held in &held {
            let again = self.client.release_at(OTHER, held).await;
            assert!(again.expect("a repeat").already_released, "done once");
        }
        for call in &calls {
            let late = self.client.acquire_at(DIRECT, call).await;
            let late = late.expect_err("its lease is over");
            assert_eq!(
                error_reason(&late),
                Some(ErrorReason::LeaseExpired),
                "{late}"
            );
        }
    }

    /// Cuts waiting calls, half of which are granted their lock before the broker detects the cut.
    /// Their slot is migrating or has moved when the broker rolls them back. Returns the time until
    /// the rollback.
    async fn cut_during_migration(&self, whole: bool) -> Duration {
        let (slot, names) = self.slot();
        let (granted, queued) = names.split_at(LOCKS / 2);
        let calls: Vec<_> = names
            .iter()
            .map(|name| call(name, Duration::ZERO))
            .collect();
        let held = join_all(calls.iter().map(|call| self.client.acquire_at(OTHER, call))).await;
        let held: Result<Vec<_>, _> = held.into_iter().collect();
        let held = held.expect("they are free");
        let (leaving, staying) = held.split_at(LOCKS / 2);
        let calls: Vec<_> = names.iter().map(|name| call(name, WAIT)).collect();
        let waiting = calls
            .iter()
            .map(|call| self.client.start_acquire_at(PROXIED, call));
        let waiting: Vec<_> = waiting.collect();
        for name in &names {
            self.client.wait_for_queue_length_at(OTHER, name, 1).await;
        }
        let cluster = &self.fixture.cluster;
        let target = (cluster.master_of(slot).await + 1) % SHARDS;
        assert!(
            self.proxy.close_connections().await > 0,
            "a connection was cut"
        );
        let cut = boottime();
        let released = join_all(
            leaving
                .iter()
                .map(|held| self.client.release_at(OTHER, held)),
        );
        for released in released.await {
            assert!(!released.expect("it is held").already_released);
        }
        // The cut calls have been granted their locks, whether claimed or not.
        for (name, former) in granted.iter().zip(leaving) {
            let lock = self.client.get_lock_at(OTHER, name).await;
            let newest = lock.expect("it is handed on").last_fencing_token;
            assert!(newest > former.token(), "{name} is not handed on");
        }
        let mut migration = cluster.start_migration(slot, target).await;
        migration.move_remaining_keys().await;
        let on_its_way = boottime() - cut;
        if whole {
            migration.finish().await;
            self.wait_until_free(granted, queued, cut).await;
        } else {
            self.wait_until_free(granted, queued, cut).await;
            migration.finish().await;
        }
        let gone = boottime() - cut;
        assert!(
            on_its_way < ROLLED_BACK_AFTER,
            "moved too late: {on_its_way:?}"
        );
        for call in waiting {
            let given_up = call.await.expect("a call does not panic");
            let status = given_up.expect_err("its connection is cut");
            assert!(is_transport_error(&status), "{status}");
        }
        self.assert_all_held(staying).await;
        gone
    }

    /// Sends calls, drops their replies, and cuts their connection.
    async fn lose_replies<C: Clone + Send + 'static, F>(
        &self,
        calls: &[C],
        send: impl Fn(Client, C) -> F,
    ) where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let connected = || self.client.get_lock_at(PROXIED, "nobody-s");
        while connected()
            .await
            .is_err_and(|status| is_transport_error(&status))
        {}
        self.proxy.set_mode(ProxyMode::DropReplies);
        let before = self.proxy.dropped_replies();
        let open = calls.iter().map(|call| {
            let sent = send(self.client.clone(), call.clone());
            AbortOnDropHandle::new(tokio::spawn(sent))
        });
        let open: Vec<_> = open.collect();
        self.proxy
            .wait_for_dropped_replies(before + calls.len())
            .await;
        assert!(
            self.proxy.close_connections().await > 0,
            "a connection was cut"
        );
        self.proxy.set_mode(ProxyMode::Forward);
        for answer in join_all(open).await {
            let answer = answer.expect("a call does not panic");
            let status = answer.expect_err("its reply is lost");
            assert!(is_transport_error(&status), "{status}");
        }
    }

    /// Returns a slot that no round has moved yet, and locks in it.
    fn slot(&self) -> (u16, Vec<String>) {
        let mut rng = rand::thread_rng();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = loop {
            let slots = initial_slots_of(rng.gen_range(0..SHARDS));
            let slot = rng.gen_range(slots);
            if used.insert(slot) {
                break slot;
            }
        };
        let what = format!("repeats/{}", boottime().as_millis());
        (slot, lock_names_in_each(&[slot], &what, LOCKS).remove(0))
    }

    /// Returns the only holder of the lock.
    async fn holder(&self, name: &str) -> (String, i64) {
        let lock = self.client.get_lock_at(OTHER, name).await;
        let lock = lock.expect("it is held");
        let [holder] = lock.holders.as_slice() else {
            panic!("one holder: {lock:?}")
        };
        (holder.lease_id.clone(), holder.fencing_token)
    }

    /// Asserts through both brokers that all leases are held.
    async fn assert_all_held(&self, held: &[HeldLease]) {
        for at in [DIRECT, OTHER] {
            let renewed = join_all(held.iter().map(|held| self.client.renew_at(at, held))).await;
            for (held, renewed) in held.iter().zip(renewed) {
                let renewed = renewed.expect("it is held");
                assert_eq!(identity(&renewed), identity(held));
            }
        }
    }

    /// Waits until the granted locks are free and the queues are empty.
    async fn wait_until_free(&self, granted: &[String], waiting: &[String], since: Duration) {
        for name in waiting {
            self.client.wait_for_queue_length_at(OTHER, name, 0).await;
        }
        for name in granted {
            until("a grant is undone", async || {
                let state = self.client.get_lock_at(OTHER, name).await;
                let gone = state.err().map(|status| error_reason(&status));
                (gone == Some(Some(ErrorReason::LeaseNotFound))).then_some(())
            })
            .await;
        }
        let took = boottime() - since;
        assert!(took <= ROLLED_BACK_LIMIT, "{took:?}");
    }
}

/// Moves a slot to the next master, like an operator does.
async fn move_slot(cluster: &ClusterDeployment, slot: u16) {
    let to = (cluster.master_of(slot).await + 1) % SHARDS;
    let mut migration = cluster.start_migration(slot, to).await;
    migration.move_remaining_keys().await;
    migration.finish().await;
}

async fn acquire(client: Client, call: AcquireCall) -> Result<(), Status> {
    client.acquire_at(PROXIED, &call).await.map(drop)
}

async fn renew(client: Client, held: HeldLease) -> Result<(), Status> {
    client.renew_at(PROXIED, &held).await.map(drop)
}

async fn release(client: Client, held: HeldLease) -> Result<(), Status> {
    client.release_at(PROXIED, &held).await.map(drop)
}

fn call(name: &str, wait: Duration) -> AcquireCall {
    AcquireCall::new(name, TTL, wait)
}

fn identity(held: &HeldLease) -> (String, i64) {
    (held.lease.lease_id.clone(), held.token())
}
