//! `store.wait_replicas` in a cluster: each grant waits for a replica of its own master.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster::ClusterOptions,
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard, slot_of_lock},
    cluster_work::{Lock, Work},
    scale::{count, figures},
    status::reason,
    until::until,
};
use tokio::time::{sleep, timeout};
use tonic::Code;

const NOW: Duration = Duration::ZERO;
/// What a call takes at most whose replica is silent: it is answered within a second.
const ANSWERED: Duration = Duration::from_secs(2);
/// The slowest of those that wait for nobody, which would be refused if they did; two cores run three
/// clusters.
const PROMPT: Duration = Duration::from_millis(1_500);
const UNTOLD: Duration = Duration::from_secs(1);
/// An attempt that got no answer is undone after its caller's time to come again.
const UNDONE_WITHIN: Duration = Duration::from_secs(10);
/// Leases that outlast a fail-over, whoever's turn the machine says it is.
const LONG: Duration = Duration::from_secs(60);
const CALLERS: usize = 8;
/// How long a master goes on that its replica does not hear.
const UNHEARD: Duration = Duration::from_millis(500);
const SLOTS_MOVED: u16 = 3;
const HALF_WAY: Duration = Duration::from_secs(1);

/// Brokers that wait for one replica.
async fn gated(options: ClusterOptions, ttl_max: Duration, brokers: usize) -> ClusterSite {
    let mut site = ClusterSite::unprepared(options).await;
    let settings = [
        ("STORE__WAIT_REPLICAS", "1".to_owned()),
        ("LIMITS__TTL_MAX", format!("{}s", ttl_max.as_secs())),
    ];
    let settings = settings.map(|(key, value)| (format!("LEASEHOLD__{key}"), value));
    site.options.env.extend(settings);
    site.options.init_store().await;
    site.add_brokers(brokers).await;
    site
}

fn now(name: &str) -> AcquireCall {
    AcquireCall::new(name, TTL, NOW)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replica_holds_up_its_own_master_alone() {
    let site = gated(ClusterOptions::default(), TTL, 2).await;
    let client = Client::new("caller", &site.addrs(), 0);
    let [held, handed, untold] = ["held", "handed", "untold"].map(|what| one_in(0, what));
    let held = client.acquire_at(0, &now(&held)).await.expect("free");
    let first = client.acquire_at(0, &now(&handed)).await.expect("free");
    let mut waiting = client.open_at(1, &AcquireCall::new(&handed, TTL, 2 * TTL));
    client.queued_at(0, &handed, 1).await;

    let replica = site.cluster.replicas_of(0).await[0];
    site.cluster.server(replica).process().pause().await;
    let others = (1..SHARDS).flat_map(|index| locks_in(&shard(index), "others", count(400, 40)));
    let others: Vec<_> = others.collect();
    let (refused, slowest) = tokio::join!(
        async {
            let began = boottime();
            let refused = client.acquire_at(0, &now(&untold)).await;
            let took = boottime() - began;
            assert!(took < ANSWERED, "{took:?}");
            let not_renewed = client.renew_at(0, &held).await;
            client.release_at(0, &first).await.expect("it is ours");
            let told = timeout(UNTOLD, &mut waiting).await;
            assert!(told.is_err(), "{told:?}");
            [refused, not_renewed].map(|result| result.expect_err("no replica has it"))
        },
        async {
            let mut slowest = Duration::ZERO;
            for name in &others {
                let began = boottime();
                let held = client.acquire_at(1, &now(name)).await;
                held.expect("its replica has it");
                slowest = slowest.max(boottime() - began);
            }
            slowest
        }
    );
    figures(&format!(
        "cluster_gate silent replica: {} grants of other masters, the slowest after {} ms",
        others.len(),
        slowest.as_millis()
    ));
    for status in refused {
        assert_eq!(
            reason(&status),
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
    let undone = timeout(UNDONE_WITHIN, undone).await;
    undone.expect("nobody knows of it");

    site.cluster.server(replica).process().resume();
    client.acquire(&now(&untold)).await.expect("free again");
    let granted = timeout(UNDONE_WITHIN, waiting).await;
    let granted = granted.expect("told in time").expect("no panic");
    assert!(granted.expect("granted").token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_behind_the_gate_loses_no_grant_that_was_told() {
    let options = ClusterOptions {
        gated: true,
        ..quick()
    };
    let mut site = gated(options, LONG, 1).await;
    let client = Client::new("caller", &site.addrs(), 0);
    let replica = site.cluster.replicas_of(0).await[0];
    let leases = count(300, 30);
    let enough = tokio::sync::Semaphore::new(0);
    let dead = tokio_util::sync::CancellationToken::new();
    let callers = join_all((0..CALLERS).map(async |index| {
        let (mut told, mut untold) = (Vec::new(), 0);
        let mut names = (0..).map(|number| format!("told/{index}/{number}"));
        while !dead.is_cancelled() {
            let name = names.find(|name| shard(0).contains(&slot_of_lock(name)));
            let call = AcquireCall::new(&name.expect("it has locks"), LONG, NOW);
            match client.acquire_at(0, &call).await {
                Ok(held) => {
                    told.push(held);
                    enough.add_permits(1);
                }
                Err(_) => untold += 1,
            }
        }
        (told, untold)
    }));
    let all = u32::try_from(leases).expect("a small count");
    let death = async {
        let told = enough.acquire_many(all).await;
        told.expect("never closed").forget();
        site.cluster.hold_up_replica(replica, 0);
        sleep(UNHEARD).await;
        site.cluster.kill(0).await;
        dead.cancel();
    };
    let (callers, ()) = tokio::join!(callers, death);
    let killed = boottime();
    let untold: usize = callers.iter().map(|(_, untold)| untold).sum();
    let told = callers.into_iter().flat_map(|(told, _)| told);
    let mut told: Vec<Held> = told.collect();
    assert_eq!(site.cluster.promoted(*shard(0).start(), 0).await, replica);
    let promoted = boottime() - killed;
    // Without a replica of its own the new master's renewals would not be told.
    site.cluster
        .restart(0, leasehold_tests::redis_server::Data::Kept)
        .await;
    let renewals = told.iter_mut().map(async |held| {
        let token = held.token();
        client.renew(held).await.map(|()| held.token() == token)
    });
    let renewals = join_all(renewals).await;
    let lost = renewals
        .iter()
        .filter(|renewed| !matches!(renewed, Ok(true)));
    let lost: Vec<_> = lost.collect();
    figures(&format!(
        "cluster_gate fail-over: told={} not told={untold} lost={}; promoted after {} ms, renewed after {} ms",
        renewals.len(),
        lost.len(),
        promoted.as_millis(),
        (boottime() - killed).as_millis()
    ));
    assert!(untold > 0, "nobody called while the replica heard nothing");
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_on_their_way_hold_up_nobody_elsewhere_on_their_master() {
    let site = gated(ClusterOptions::default(), TTL, 1).await;
    let stays = SLOTS_MOVED..=*shard(0).end();
    let names = locks_in(&stays, "stays", 4).into_iter();
    let locks = names.map(|name| Lock { name, group: 0 }).collect();
    let work = Work::new(locks, &site.addrs());
    let kept = work.locks.len() - 1;
    let others: Vec<_> = (0..kept).collect();
    let callers = join_all((0..CALLERS).map(|index| work.call(&others, index)));
    let moves = async {
        // In the order in which tools move slots.
        for slot in 0..SLOTS_MOVED {
            let mut migration = site.cluster.begin_migration(slot, 1).await;
            sleep(HALF_WAY).await;
            migration.move_all().await;
            sleep(HALF_WAY).await;
            migration.finish().await;
        }
        sleep(HALF_WAY).await;
        work.stop.cancel();
    };
    let (_, stay, ()) = tokio::join!(callers, work.keep(kept, kept, &work.stop), moves);
    let tally = work.tally(|_| true);
    figures(&format!("cluster_gate {SLOTS_MOVED} slots moved: {tally}"));
    assert!(stay.lost.is_none(), "{stay:?}");
    assert!(tally.done() > 0 && tally.failed() == 0, "{tally}");
    assert!(tally.is_prompt(), "{tally}");
}

fn one_in(index: usize, what: &str) -> String {
    locks_in(&shard(index), what, 1).remove(0)
}
