//! Eras of a cluster, one per slot: the times from which grants are permitted, and the agreement
//! between brokers.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::era::Era;
use leasehold_tests::{
    broker::process::{BrokerProcess, KEY_PREFIX},
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions, SLOTS, slot_of},
        fixture::{
            ClusterFixture, QUARANTINE, SHARDS, TTL, fast_failover_options, initial_slots_of,
            lock_names_in, slot_of_lock,
        },
        grant_probe::MasterFailover,
        workload::{CallKind, CallResult, Lock, Workload},
    },
    net::{http2_proxy::Http2Proxy, raw_http2::frames::SETTINGS},
    scale::{print_figures, scaled_count},
    status::error_reason,
    until::until,
};
use tokio::time::sleep;
use tonic::Status;
use tonic_types::StatusExt as _;

const SAMPLE: usize = 300;
/// Number of locks that are acquired repeatedly.
const POLLED: usize = 15;
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const CALLERS: usize = 4;
const HOT: usize = 3;
/// Maximum difference between the starts of the quarantine in all slots of a cluster.
const AT_ONCE: Duration = Duration::from_secs(2);
const LARGER_TTL_MS: u64 = 8_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_cluster_grants_at_once_in_every_slot() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 1).await;
    let client = Client::new("first", &fixture.addrs(), 0);
    let (names, started_at) = (sample("first"), boottime());
    let answers = join_all(names.iter().map(|name| ask(&client, 0, name))).await;
    let took = boottime() - started_at;
    let refused: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    assert!(refused.is_empty(), "{refused:?}");

    let eras = eras(&fixture.cluster).await;
    let quarantined = eras.values().filter(|era| era.no_grants_before_ms > 0);
    print_figures(&format!(
        "cluster_eras prepared: {SAMPLE} locks all granted in {} ms, eras={} quarantined={}",
        took.as_millis(),
        eras.len(),
        quarantined.clone().count()
    ));
    assert_eq!(eras.len(), usize::from(SLOTS), "an era for each slot");
    assert_eq!(quarantined.count(), 0);
    for master in fixture.cluster.masters().await {
        let mut raw = fixture.cluster.connect(master).await;
        let key = format!("{KEY_PREFIX}key");
        let exists = raw.command(&["EXISTS", &key]).await.expect("an answer");
        assert_ne!(
            format!("{exists:?}"),
            "Integer(1)",
            "no store keeps the key"
        );
    }
    let (done, again) = fixture.options.run("init-store", &[]).await;
    assert!(!done && again.contains("already"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninitialized_cluster_waits_once_for_all_slots() {
    let mut fixture = ClusterFixture::uninitialized(ClusterOptions::default()).await;
    let started_at = boottime();
    fixture.add_brokers(1).await;
    let client = Client::new("first", &fixture.addrs(), 0);
    let early = sample("early");
    for answer in join_all(early.iter().map(|name| ask(&client, 0, name))).await {
        assert_recovering(&answer.expect_err("nothing is granted at first"));
    }
    let polled = early.iter().step_by(SAMPLE / POLLED);
    let granted = join_all(polled.map(|name| granted_at(&client, name))).await;
    let [soonest, latest] =
        [granted.iter().min(), granted.iter().max()].map(|at| *at.expect("a sample") - started_at);
    let eras = until("an era for each slot", async || {
        let eras = eras(&fixture.cluster).await;
        (eras.len() == usize::from(SLOTS)).then_some(eras)
    })
    .await;
    let ends = eras.values().map(|era| era.no_grants_before_ms);
    let [first_ms, last_ms] = [ends.clone().min(), ends.max()].map(Option::unwrap_or_default);
    print_figures(&format!(
        "cluster_eras unprepared: slots in use grant after {} to {} ms (Q={} ms); the quarantines of all {} slots \
         end within {} ms",
        soonest.as_millis(),
        latest.as_millis(),
        QUARANTINE.as_millis(),
        eras.len(),
        last_ms - first_ms
    ));
    assert!(soonest >= QUARANTINE, "{soonest:?}");
    assert!(latest <= QUARANTINE + RESUMED_WITHIN, "{latest:?}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is later than 1970");
    sleep(Duration::from_millis(last_ms + 1).saturating_sub(now)).await;
    // Slots that are used for the first time need no further quarantine.
    for answer in join_all(sample("late").iter().map(|name| ask(&client, 0, name))).await {
        answer.expect("it has waited long ago");
    }
    fixture.add_brokers(1).await;
    let second = Client::new("second", &fixture.addrs()[1..], 0);
    let served = boottime();
    let names = sample("second").into_iter().step_by(SAMPLE / POLLED);
    let names: Vec<_> = names.collect();
    let granted = join_all(names.iter().map(|name| granted_at(&second, name))).await;
    let last = granted.into_iter().max().expect("a sample") - served;
    assert!(
        last <= RESUMED_WITHIN,
        "a second broker begins no other era: {last:?}"
    );
    assert!(ids(&self::eras(&fixture.cluster).await) == ids(&eras));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_master_grants_nothing_for_a_while_and_the_others_go_on() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 2).await;
    let locks = (0..SHARDS).flat_map(|group| {
        let names = lock_names_in(&initial_slots_of(group), "load", HOT + 1).into_iter();
        names.map(move |name| Lock { name, group })
    });
    let work = Workload::new(locks.collect(), &fixture.addrs());
    let each: Vec<Vec<usize>> = (0..SHARDS)
        .map(|group| (group * (HOT + 1)..(group + 1) * (HOT + 1)).collect())
        .collect();
    let callers = each.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.run_caller(&locks[..HOT], index))
    });
    let keepers = each
        .iter()
        .map(|locks| work.hold_unary(locks[HOT], locks[HOT], &work.stop));
    let fresh = lock_names_in(&initial_slots_of(0), "fresh", POLLED);
    let client = Client::new("fresh", &fixture.addrs(), 0);
    let flush = async {
        sleep(QUIET_PERIOD).await;
        let mut raw = fixture.cluster.connect(0).await;
        let from = boottime();
        raw.must(&["FLUSHALL"]).await;
        let flushed = boottime();
        let granted = join_all(fresh.iter().map(|name| granted_at(&client, name))).await;
        sleep(QUIET_PERIOD).await;
        work.stop.cancel();
        (from, flushed, granted)
    };
    let (_, holds, (from, flushed, granted)) =
        tokio::join!(join_all(callers), join_all(keepers), flush);
    // The new eras may be older than the reply to `FLUSHALL`, but not older than the command.
    let [soonest, latest] =
        [granted.iter().min(), granted.iter().max()].map(|at| *at.expect("a sample") - from);
    let hit = work.count_attempts(|attempt| attempt.group == 0 && attempt.ended_at > from);
    let too_soon = work.count_attempts(|attempt| {
        let in_quarantine = |granted| granted > flushed && granted < from + QUARANTINE;
        attempt.group == 0 && attempt.granted_at.is_some_and(in_quarantine)
    });
    let others = work.count_attempts(|attempt| attempt.group != 0);
    let verdict = work.oracle.verdict();
    print_figures(&format!(
        "cluster_eras FLUSHALL: its slots grant after {} to {} ms (Q={} ms), overlaps={} regressions={}; there: \
         {hit}; elsewhere: {others}",
        soonest.as_millis(),
        latest.as_millis(),
        QUARANTINE.as_millis(),
        verdict.overlaps,
        verdict.regressions
    ));
    assert_eq!(too_soon.grants(), 0, "{too_soon}");
    assert!(soonest >= QUARANTINE && latest <= QUARANTINE + RESUMED_WITHIN);
    assert!(latest - soonest <= AT_ONCE, "all slots wait at once");
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(others.failed(), 0, "other masters lose no call");
    assert!(others.is_prompt(), "other masters wait for nothing");
    assert_eq!(hit.count(is_unexplained), 0, "{hit}");
    for hold in holds {
        assert_eq!(hold.lost.is_some(), hold.group == 0, "{hold:?}");
    }
}

/// The quarantine covers grants of a former master soon after the promotion, but not grants after
/// `Q`. By then no broker may send commands to the former master. This includes brokers that ran
/// throughout, that start while the former master is paused, or that start at the moment when it
/// resumes, although their configuration contains its address and it still considers itself a
/// master.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_wakes_after_the_quarantine_grants_nothing() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), 2).await;
    let master = fixture
        .cluster
        .master_of(*initial_slots_of(0).start())
        .await;
    assert!(master < SHARDS, "brokers are configured with it");
    fixture.cluster.server(master).process().pause().await;
    let hit = boottime();
    let next = fixture
        .cluster
        .wait_for_promotion(*initial_slots_of(0).start(), master)
        .await;
    fixture.brokers[0].restart().await;
    let fail_over = MasterFailover::new(&fixture.cluster, master, next);
    let addrs = fixture.addrs();
    let client = Client::new("probe", &addrs, 0);
    let asleep = lock_names_in(&initial_slots_of(0), "asleep", 2);
    for (broker, name) in asleep.iter().enumerate() {
        let probe = fail_over.probe(&client, broker, name).await;
        // A paused server grants nothing.
        probe.check(hit, hit);
    }

    let names = lock_names_in(&initial_slots_of(0), "load", 2 * HOT).into_iter();
    let work = Workload::new(names.map(|name| Lock { name, group: 0 }).collect(), &addrs);
    let hot: Vec<_> = (0..HOT).collect();
    let callers = (0..CALLERS).map(|index| work.run_caller(&hot, index));
    // Two clients hold each of these locks alternately, until the end of the validity.
    let sitters = (0..2 * HOT).map(|index| work.run_non_renewing_holder(HOT + index % HOT, index));
    let wakes = async {
        sleep(QUIET_PERIOD).await;
        let names = lock_names_in(&initial_slots_of(0), "woken", scaled_count(100, 20));
        let woken = boottime();
        fixture.cluster.server(master).process().resume();
        let probes = names.iter().enumerate();
        let probes = probes.map(|(broker, name)| fail_over.probe(&client, broker, name));
        let at_new_broker = async {
            let broker = BrokerProcess::start(&fixture.options).await;
            let client = Client::new("late", &[broker.addr()], 0);
            let name = lock_names_in(&initial_slots_of(0), "late", 1).remove(0);
            fail_over.probe(&client, 0, &name).await
        };
        let demoted = fixture.cluster.wait_for_demotion(master);
        let (probes, late, demoted) = tokio::join!(join_all(probes), at_new_broker, demoted);
        fixture.cluster.wait_until_ready().await;
        sleep(QUIET_PERIOD).await;
        work.stop.cancel();
        (woken, demoted, probes, late)
    };
    let (_, _, (woken, demoted, probes, late)) =
        tokio::join!(join_all(callers), join_all(sitters), wakes);
    let verdict = work.oracle.verdict();
    let since = work.count_attempts(|attempt| attempt.granted_at > Some(woken));
    print_figures(&format!(
        "cluster_eras woken after {} ms (Q={} ms): demoted after {} ms, fresh locks granted={} visits={} overlaps={} \
         regressions={}; since: {since}",
        (woken - hit).as_millis(),
        QUARANTINE.as_millis(),
        (demoted - woken).as_millis(),
        probes.len() + 1,
        verdict.uses,
        verdict.overlaps,
        verdict.regressions
    ));
    for probe in probes.iter().chain([&late]) {
        assert_eq!(probe.grants.len(), 1, "the woken master granted: {probe:?}");
    }
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(since.grants() > 0, "locks change hands after that");
}

/// A broker that was paused as well has not learned of the promotion when it resumes, and is still
/// connected to the former master.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_master_that_resumes_together_with_a_broker_grants_nothing() {
    let fixture = ClusterFixture::start(fast_failover_options(), 2).await;
    let (stopped, awake) = (&fixture.brokers[0], 1);
    let proxy = Http2Proxy::start(stopped.addr()).await;
    let client = Client::new("both", &[proxy.addr(), fixture.brokers[awake].addr()], 0);
    let master = fixture
        .cluster
        .master_of(*initial_slots_of(0).start())
        .await;
    stopped.process().pause().await;
    fixture.cluster.server(master).process().pause().await;
    let next = fixture
        .cluster
        .wait_for_promotion(*initial_slots_of(0).start(), master)
        .await;
    let fail_over = MasterFailover::new(&fixture.cluster, master, next);
    let names = lock_names_in(&initial_slots_of(0), "held", scaled_count(40, 20));
    let held = names
        .iter()
        .map(|name| fail_over.probe(&client, awake, name));
    let held = join_all(held).await;
    assert!(held.iter().all(|probe| probe.grants.len() == 1), "{held:?}");
    let calls: Vec<_> = names
        .iter()
        .map(|name| client.start_acquire_at(0, &AcquireCall::new(name, TTL, Duration::ZERO)))
        .collect();
    // The requests are in the socket of the broker before it resumes, and the broker resumes before
    // the former master.
    proxy.wait_for_requests(names.len()).await;
    stopped.process().resume();
    until("the broker reads what was sent", async || {
        (proxy.frames_from_broker(SETTINGS) > 0).then_some(())
    })
    .await;
    fixture.cluster.server(master).process().resume();
    let answers = join_all(calls).await;
    let answers = answers.into_iter().map(|answer| answer.expect("no panic"));
    let (granted, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    assert!(
        granted.is_empty(),
        "granted by the former master: {granted:?}"
    );
    let answered =
        |answer: &Result<HeldLease, Status>| answer.as_ref().err().and_then(error_reason).is_some();
    assert!(
        refused.iter().any(answered),
        "the broker answered no caller: {refused:?}"
    );
    // The broker was connected to the former master, to which it would have sent the acquires.
    let silent = format!("{} is lost: no answer for", fixture.cluster.addr(master));
    until(
        "the broker finds that the former master was silent",
        async || stopped.log().contains(&silent).then_some(()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_a_larger_ttl_raises_all_eras() {
    let mut fixture = ClusterFixture::start(ClusterOptions::default(), 1).await;
    let before = eras(&fixture.cluster).await;
    let mut larger = fixture.options.clone();
    let ttl_max = "LEASEHOLD__LIMITS__TTL_MAX";
    let setting = larger.env.iter_mut().find(|(key, _)| key == ttl_max);
    setting.expect("it is set").1 = format!("{LARGER_TTL_MS}ms");
    fixture.brokers.push(BrokerProcess::start(&larger).await);
    let client = Client::new("both", &fixture.addrs(), 0);
    let raised = until("every era has the larger bound", async || {
        let eras = eras(&fixture.cluster).await;
        let raised = eras
            .values()
            .all(|era| era.bounds.ttl_max_ms == LARGER_TTL_MS);
        raised.then_some(eras)
    })
    .await;
    assert!(ids(&before) == ids(&raised), "the same eras");
    for at in 0..2 {
        let names = sample(&format!("raised-{at}"));
        for answer in join_all(names.iter().map(|name| ask(&client, at, name))).await {
            answer.expect("a larger bound takes nothing away");
        }
    }
    print_figures(&format!(
        "cluster_eras raised: {} eras from {} to {LARGER_TTL_MS} ms, grants went on",
        raised.len(),
        TTL.as_millis()
    ));
}

/// Returns names of locks in all parts of the cluster.
fn sample(what: &str) -> Vec<String> {
    let each = (0..SHARDS)
        .flat_map(|index| lock_names_in(&initial_slots_of(index), what, SAMPLE / SHARDS));
    each.collect()
}

async fn ask(client: &Client, at: usize, name: &str) -> Result<i64, Status> {
    let call = AcquireCall::new(name, TTL, Duration::ZERO);
    Ok(client.acquire_at(at, &call).await?.token())
}

/// Acquires a lock repeatedly and returns the time of the grant. Asserts that the store recovers
/// until then.
async fn granted_at(client: &Client, name: &str) -> Duration {
    until(
        &format!("grants in slot {}", slot_of_lock(name)),
        async || match ask(client, 0, name).await {
            Ok(_) => Some(boottime()),
            Err(status) => {
                assert_recovering(&status);
                None
            }
        },
    )
    .await
}

fn assert_recovering(status: &Status) {
    assert_eq!(
        error_reason(status),
        Some(ErrorReason::StoreRecovering),
        "{status}"
    );
    let details = status.get_error_details();
    let again = details.retry_info().and_then(|info| info.retry_delay);
    let again = again.expect("it says when to come again");
    assert!(again <= QUARANTINE, "{again:?}");
}

/// Returns the eras of all slots as stored on the masters.
async fn eras(cluster: &ClusterDeployment) -> BTreeMap<u16, Era> {
    let mut eras = BTreeMap::new();
    let prefix = format!("{KEY_PREFIX}era");
    for master in cluster.masters().await {
        let mut raw = cluster.connect(master).await;
        for (key, pttl) in raw.keys_with_pttl(&prefix).await {
            assert_eq!(pttl, -1, "an era does not end: {key}");
            let text = raw.must(&["GET", &key]).await;
            let era = Era::parse(text.text()).expect("an era");
            let twice = eras.insert(slot_of(&key), era);
            assert!(twice.is_none(), "two eras of one slot: {key}");
        }
    }
    eras
}

fn ids(eras: &BTreeMap<u16, Era>) -> Vec<&str> {
    eras.values().map(|era| era.id.as_str()).collect()
}

/// Returns true if the loss of the data does not explain the result.
fn is_unexplained(verb: CallKind, answer: CallResult) -> bool {
    match answer {
        CallResult::Succeeded => false,
        CallResult::NoReply => true,
        CallResult::Rejected(ErrorReason::StoreRecovering | ErrorReason::WaitTimeout) => {
            verb != CallKind::Acquire
        }
        CallResult::Rejected(ErrorReason::LeaseNotFound) => verb == CallKind::Acquire,
        CallResult::Rejected(_) => true,
    }
}
