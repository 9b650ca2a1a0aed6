//! `store.wait_replicas` in a cluster: each grant waits for a replica of its own master.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::ClusterOptions,
        fixture::{
            ClusterFixture, SHARDS, TTL, fast_failover_options, initial_slots_of, lock_names_in,
            slot_of_lock,
        },
        workload::{Lock, Workload},
    },
    scale::{print_figures, scaled_count},
    status::error_reason,
    until::until,
};
use tokio::time::{sleep, timeout};
use tonic::Code;

const NOW: Duration = Duration::ZERO;
/// Upper bound of a call whose replica does not respond. The broker returns an error after a
/// second.
const ANSWERED: Duration = Duration::from_secs(2);
/// Upper bound of calls that need not wait, which would fail if they waited. Two cores run three
/// clusters.
const PROMPT: Duration = Duration::from_millis(1_500);
const SILENCE: Duration = Duration::from_secs(1);
/// Upper bound of the time until an unconfirmed attempt is rolled back, which includes the time for
/// a repeat.
const ROLLED_BACK_WITHIN: Duration = Duration::from_secs(10);
/// TTL of leases that outlast a failover even on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const CALLERS: usize = 8;
/// Time for which a master runs while its replica receives nothing.
const REPLICATION_LAG: Duration = Duration::from_millis(500);
const SLOTS_MOVED: u16 = 3;
const HALF_WAY: Duration = Duration::from_secs(1);

/// Starts brokers that wait for one replica.
async fn start_gated(options: ClusterOptions, ttl_max: Duration, brokers: usize) -> ClusterFixture {
    let mut fixture = ClusterFixture::uninitialized(options).await;
    let settings = [
        ("STORE__WAIT_REPLICAS", "1".to_owned()),
        ("LIMITS__TTL_MAX", format!("{}s", ttl_max.as_secs())),
    ];
    let settings = settings.map(|(key, value)| (format!("LEASEHOLD__{key}"), value));
    fixture.options.env.extend(settings);
    fixture.options.init_store().await;
    fixture.add_brokers(brokers).await;
    fixture
}

fn immediate_call(name: &str) -> AcquireCall {
    AcquireCall::new(name, TTL, NOW)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replica_delays_only_its_own_master() {
    let fixture = start_gated(ClusterOptions::default(), TTL, 2).await;
    let client = Client::new("caller", &fixture.addrs(), 0);
    let [held, handed, untold] = ["held", "handed", "untold"].map(|what| one_in(0, what));
    let held = client
        .acquire_at(0, &immediate_call(&held))
        .await
        .expect("free");
    let first = client
        .acquire_at(0, &immediate_call(&handed))
        .await
        .expect("free");
    let mut waiting = client.start_acquire_at(1, &AcquireCall::new(&handed, TTL, 2 * TTL));
    client.wait_for_queue_length_at(0, &handed, 1).await;

    let replica = fixture.cluster.replicas_of(0).await[0];
    fixture.cluster.server(replica).process().pause().await;
    let others = (1..SHARDS)
        .flat_map(|index| lock_names_in(&initial_slots_of(index), "others", scaled_count(400, 40)));
    let others: Vec<_> = others.collect();
    let (refused, slowest) = tokio::join!(
        async {
            let started_at = boottime();
            let refused = client.acquire_at(0, &immediate_call(&untold)).await;
            let took = boottime() - started_at;
            assert!(took < ANSWERED, "{took:?}");
            let not_renewed = client.renew_at(0, &held).await;
            client.release_at(0, &first).await.expect("it is ours");
            let timed_out = timeout(SILENCE, &mut waiting).await;
            assert!(timed_out.is_err(), "{timed_out:?}");
            [refused, not_renewed].map(|result| result.expect_err("no replica has it"))
        },
        async {
            let mut slowest = Duration::ZERO;
            for name in &others {
                let started_at = boottime();
                let held = client.acquire_at(1, &immediate_call(name)).await;
                held.expect("its replica has it");
                slowest = slowest.max(boottime() - started_at);
            }
            slowest
        }
    );
    print_figures(&format!(
        "cluster_gate silent replica: {} grants of other masters, the slowest after {} ms",
        others.len(),
        slowest.as_millis()
    ));
    for status in refused {
        assert_eq!(
            error_reason(&status),
            Some(ErrorReason::StoreUnavailable),
            "{status}"
        );
    }
    assert!(slowest <= PROMPT, "{slowest:?}");
    let undone = until("the grant is taken back", async || {
        let state = client.get_lock_at(0, &untold).await;
        state
            .is_err_and(|status| status.code() == Code::NotFound)
            .then_some(())
    });
    let undone = timeout(ROLLED_BACK_WITHIN, undone).await;
    undone.expect("no caller knows of it");

    fixture.cluster.server(replica).process().resume();
    client
        .acquire(&immediate_call(&untold))
        .await
        .expect("free again");
    let granted = timeout(ROLLED_BACK_WITHIN, waiting).await;
    let granted = granted.expect("notified in time").expect("no panic");
    assert!(granted.expect("granted").token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_with_the_replication_barrier_loses_no_reported_grant() {
    let options = ClusterOptions {
        has_partition_proxies: true,
        ..fast_failover_options()
    };
    let mut fixture = start_gated(options, LONG, 1).await;
    let client = Client::new("caller", &fixture.addrs(), 0);
    let replica = fixture.cluster.replicas_of(0).await[0];
    let leases = scaled_count(300, 30);
    let enough = tokio::sync::Semaphore::new(0);
    let dead = tokio_util::sync::CancellationToken::new();
    let callers = join_all((0..CALLERS).map(async |index| {
        let (mut timed_out, mut untold) = (Vec::new(), 0);
        let mut names = (0..).map(|number| format!("told/{index}/{number}"));
        while !dead.is_cancelled() {
            let name = names.find(|name| initial_slots_of(0).contains(&slot_of_lock(name)));
            let call = AcquireCall::new(&name.expect("it has locks"), LONG, NOW);
            match client.acquire_at(0, &call).await {
                Ok(held) => {
                    timed_out.push(held);
                    enough.add_permits(1);
                }
                Err(_) => untold += 1,
            }
        }
        (timed_out, untold)
    }));
    let all = u32::try_from(leases).expect("a small count");
    let death = async {
        let timed_out = enough.acquire_many(all).await;
        timed_out.expect("never closed").forget();
        fixture.cluster.block_replication(replica, 0);
        sleep(REPLICATION_LAG).await;
        fixture.cluster.kill(0).await;
        dead.cancel();
    };
    let (callers, ()) = tokio::join!(callers, death);
    let killed = boottime();
    let untold: usize = callers.iter().map(|(_, untold)| untold).sum();
    let timed_out = callers.into_iter().flat_map(|(timed_out, _)| timed_out);
    let mut timed_out: Vec<HeldLease> = timed_out.collect();
    assert_eq!(
        fixture
            .cluster
            .wait_for_promotion(*initial_slots_of(0).start(), 0)
            .await,
        replica
    );
    let promoted = boottime() - killed;
    // Without a replica of the new master, its renewals would not be confirmed.
    fixture
        .cluster
        .restart(0, leasehold_tests::redis::server::RestartData::Kept)
        .await;
    let renewals = timed_out.iter_mut().map(async |held| {
        let token = held.token();
        client.renew(held).await.map(|()| held.token() == token)
    });
    let renewals = join_all(renewals).await;
    let lost = renewals
        .iter()
        .filter(|renewed| !matches!(renewed, Ok(true)));
    let lost: Vec<_> = lost.collect();
    print_figures(&format!(
        "cluster_gate fail-over: told={} not notified={untold} lost={}; promoted after {} ms, renewed after {} ms",
        renewals.len(),
        lost.len(),
        promoted.as_millis(),
        (boottime() - killed).as_millis()
    ));
    assert!(
        untold > 0,
        "no caller called while the replica heard nothing"
    );
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_slots_do_not_delay_other_slots_of_their_master() {
    let fixture = start_gated(ClusterOptions::default(), TTL, 1).await;
    let staying_slots = SLOTS_MOVED..=*initial_slots_of(0).end();
    let names = lock_names_in(&staying_slots, "stays", 4).into_iter();
    let locks = names.map(|name| Lock { name, group: 0 }).collect();
    let work = Workload::new(locks, &fixture.addrs());
    let kept_index = work.locks.len() - 1;
    let others: Vec<_> = (0..kept_index).collect();
    let callers = join_all((0..CALLERS).map(|index| work.run_caller(&others, index)));
    let moves = async {
        // The slots move in the order in which migration tools move them.
        for slot in 0..SLOTS_MOVED {
            let mut migration = fixture.cluster.start_migration(slot, 1).await;
            sleep(HALF_WAY).await;
            migration.move_remaining_keys().await;
            sleep(HALF_WAY).await;
            migration.finish().await;
        }
        sleep(HALF_WAY).await;
        work.stop.cancel();
    };
    let (_, hold, ()) = tokio::join!(
        callers,
        work.hold_unary(kept_index, kept_index, &work.stop),
        moves
    );
    let counts = work.count_attempts(|_| true);
    print_figures(&format!("cluster_gate {SLOTS_MOVED} slots moved: {counts}"));
    assert!(hold.lost.is_none(), "{hold:?}");
    assert!(counts.succeeded() > 0 && counts.failed() == 0, "{counts}");
    assert!(counts.is_prompt(), "{counts}");
}

fn one_in(index: usize, what: &str) -> String {
    lock_names_in(&initial_slots_of(index), what, 1).remove(0)
}
