//! The eras of a cluster, one a slot: who may grant when, and what brokers agree on.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::era::Era;
use leasehold_tests::{
    broker_process::{BrokerProcess, KEY_PREFIX},
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions, SLOTS, slot_of},
    cluster_probe::FailOver,
    cluster_site::{ClusterSite, QUARANTINE, SHARDS, TTL, locks_in, quick, shard, slot_of_lock},
    cluster_work::{Answer, Lock, Verb, Work},
    proxy::Proxy,
    raw_http2::frames::SETTINGS,
    scale::{count, figures},
    status::reason,
    until::until,
};
use tokio::time::sleep;
use tonic::Status;
use tonic_types::StatusExt as _;

const SAMPLE: usize = 300;
/// Those that are asked for again and again.
const POLLED: usize = 15;
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(2);
const CALLERS: usize = 4;
const HOT: usize = 3;
/// All slots of a cluster begin to wait within this time of each other.
const AT_ONCE: Duration = Duration::from_secs(2);
const LARGER_TTL_MS: u64 = 8_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_cluster_grants_at_once_in_every_slot() {
    let site = ClusterSite::start(ClusterOptions::default(), 1).await;
    let client = Client::new("first", &site.addrs(), 0);
    let (names, began) = (sample("first"), boottime());
    let answers = join_all(names.iter().map(|name| ask(&client, 0, name))).await;
    let took = boottime() - began;
    let refused: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    assert!(refused.is_empty(), "{refused:?}");

    let eras = eras(&site.cluster).await;
    let quarantined = eras.values().filter(|era| era.no_grants_before_ms > 0);
    figures(&format!(
        "cluster_eras prepared: {SAMPLE} locks all granted in {} ms, eras={} quarantined={}",
        took.as_millis(),
        eras.len(),
        quarantined.clone().count()
    ));
    assert_eq!(eras.len(), usize::from(SLOTS), "an era for each slot");
    assert_eq!(quarantined.count(), 0);
    for master in site.cluster.masters().await {
        let mut raw = site.cluster.connect(master).await;
        let key = format!("{KEY_PREFIX}key");
        let kept = raw.command(&["EXISTS", &key]).await.expect("an answer");
        assert_ne!(format!("{kept:?}"), "Integer(1)", "no store keeps the key");
    }
    let (done, again) = site.options.run("init-store", &[]).await;
    assert!(!done && again.contains("already"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_nobody_prepared_waits_once_for_all_slots() {
    let mut site = ClusterSite::unprepared(ClusterOptions::default()).await;
    let began = boottime();
    site.add_brokers(1).await;
    let client = Client::new("first", &site.addrs(), 0);
    let early = sample("early");
    for answer in join_all(early.iter().map(|name| ask(&client, 0, name))).await {
        assert_recovering(&answer.expect_err("nothing is granted at first"));
    }
    let polled = early.iter().step_by(SAMPLE / POLLED);
    let granted = join_all(polled.map(|name| granted_at(&client, name))).await;
    let [soonest, latest] =
        [granted.iter().min(), granted.iter().max()].map(|at| *at.expect("a sample") - began);
    let eras = until("an era for each slot", async || {
        let eras = eras(&site.cluster).await;
        (eras.len() == usize::from(SLOTS)).then_some(eras)
    })
    .await;
    let ends = eras.values().map(|era| era.no_grants_before_ms);
    let [first_ms, last_ms] = [ends.clone().min(), ends.max()].map(Option::unwrap_or_default);
    figures(&format!(
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
    // Slots that are used for the first time now do not wait anew.
    for answer in join_all(sample("late").iter().map(|name| ask(&client, 0, name))).await {
        answer.expect("it has waited long ago");
    }
    site.add_brokers(1).await;
    let second = Client::new("second", &site.addrs()[1..], 0);
    let served = boottime();
    let names = sample("second").into_iter().step_by(SAMPLE / POLLED);
    let names: Vec<_> = names.collect();
    let granted = join_all(names.iter().map(|name| granted_at(&second, name))).await;
    let last = granted.into_iter().max().expect("a sample") - served;
    assert!(
        last <= RESUMED_WITHIN,
        "a second broker begins no other era: {last:?}"
    );
    assert!(ids(&self::eras(&site.cluster).await) == ids(&eras));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_master_grants_nothing_for_a_while_and_the_others_go_on() {
    let site = ClusterSite::start(ClusterOptions::default(), 2).await;
    let locks = (0..SHARDS).flat_map(|group| {
        let names = locks_in(&shard(group), "load", HOT + 1).into_iter();
        names.map(move |name| Lock { name, group })
    });
    let work = Work::new(locks.collect(), &site.addrs());
    let each: Vec<Vec<usize>> = (0..SHARDS)
        .map(|group| (group * (HOT + 1)..(group + 1) * (HOT + 1)).collect())
        .collect();
    let callers = each.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.call(&locks[..HOT], index))
    });
    let keepers = each
        .iter()
        .map(|locks| work.keep(locks[HOT], locks[HOT], &work.stop));
    let fresh = locks_in(&shard(0), "fresh", POLLED);
    let client = Client::new("fresh", &site.addrs(), 0);
    let flush = async {
        sleep(CALM).await;
        let mut raw = site.cluster.connect(0).await;
        let from = boottime();
        raw.must(&["FLUSHALL"]).await;
        let flushed = boottime();
        let granted = join_all(fresh.iter().map(|name| granted_at(&client, name))).await;
        sleep(CALM).await;
        work.stop.cancel();
        (from, flushed, granted)
    };
    let (_, stays, (from, flushed, granted)) =
        tokio::join!(join_all(callers), join_all(keepers), flush);
    // The new eras may be older than the answer to FLUSHALL, but not older than the command.
    let [soonest, latest] =
        [granted.iter().min(), granted.iter().max()].map(|at| *at.expect("a sample") - from);
    let hit = work.tally(|attempt| attempt.group == 0 && attempt.ended > from);
    let too_soon = work.tally(|attempt| {
        let in_quarantine = |granted| granted > flushed && granted < from + QUARANTINE;
        attempt.group == 0 && attempt.granted.is_some_and(in_quarantine)
    });
    let others = work.tally(|attempt| attempt.group != 0);
    let verdict = work.witness.verdict();
    figures(&format!(
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
    assert_eq!(hit.count(is_odd), 0, "{hit}");
    for stay in stays {
        assert_eq!(stay.lost.is_some(), stay.group == 0, "{stay:?}");
    }
}

/// The quarantine covers what a former master grants soon after the promotion, not what it would grant after
/// `Q`. By then no broker may ask it: not those that ran throughout, and not those that start while it stands
/// still or at the moment when it wakes, although their configuration names it and it takes itself for a master.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_wakes_after_the_quarantine_grants_nothing() {
    let mut site = ClusterSite::start(quick(), 2).await;
    let master = site.cluster.master_of(*shard(0).start()).await;
    assert!(master < SHARDS, "brokers are configured with it");
    site.cluster.server(master).process().pause().await;
    let hit = boottime();
    let next = site.cluster.promoted(*shard(0).start(), master).await;
    site.brokers[0].restart().await;
    let fail_over = FailOver::of(&site.cluster, master, next);
    let addrs = site.addrs();
    let client = Client::new("probe", &addrs, 0);
    let asleep = locks_in(&shard(0), "asleep", 2);
    for (broker, name) in asleep.iter().enumerate() {
        let probe = fail_over.probe(&client, broker, name).await;
        // A server that is stopped grants nothing.
        probe.judge(hit, hit);
    }

    let names = locks_in(&shard(0), "load", 2 * HOT).into_iter();
    let work = Work::new(names.map(|name| Lock { name, group: 0 }).collect(), &addrs);
    let hot: Vec<_> = (0..HOT).collect();
    let callers = (0..CALLERS).map(|index| work.call(&hot, index));
    // Two hold each of these locks in turn, to the last moment.
    let sitters = (0..2 * HOT).map(|index| work.sit(HOT + index % HOT, index));
    let wakes = async {
        sleep(CALM).await;
        let names = locks_in(&shard(0), "woken", count(100, 20));
        let woken = boottime();
        site.cluster.server(master).process().resume();
        let probes = names.iter().enumerate();
        let probes = probes.map(|(broker, name)| fail_over.probe(&client, broker, name));
        let at_new_broker = async {
            let broker = BrokerProcess::start(&site.options).await;
            let client = Client::new("late", &[broker.addr()], 0);
            let name = locks_in(&shard(0), "late", 1).remove(0);
            fail_over.probe(&client, 0, &name).await
        };
        let demoted = site.cluster.demoted(master);
        let (probes, late, demoted) = tokio::join!(join_all(probes), at_new_broker, demoted);
        site.cluster.ready().await;
        sleep(CALM).await;
        work.stop.cancel();
        (woken, demoted, probes, late)
    };
    let (_, _, (woken, demoted, probes, late)) =
        tokio::join!(join_all(callers), join_all(sitters), wakes);
    let verdict = work.witness.verdict();
    let since = work.tally(|attempt| attempt.granted > Some(woken));
    figures(&format!(
        "cluster_eras woken after {} ms (Q={} ms): demoted after {} ms, fresh locks granted={} visits={} overlaps={} \
         regressions={}; since: {since}",
        (woken - hit).as_millis(),
        QUARANTINE.as_millis(),
        (demoted - woken).as_millis(),
        probes.len() + 1,
        verdict.visits,
        verdict.overlaps,
        verdict.regressions
    ));
    for probe in probes.iter().chain([&late]) {
        assert_eq!(probe.grants.len(), 1, "the woken master granted: {probe:?}");
    }
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(since.grants() > 0, "locks change hands after that");
}

/// A broker that was stopped, too, knows nothing of the promotion when it wakes, and has connections to the former
/// master.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_master_that_resumes_together_with_a_broker_grants_nothing() {
    let site = ClusterSite::start(quick(), 2).await;
    let (stopped, awake) = (&site.brokers[0], 1);
    let proxy = Proxy::start(stopped.addr()).await;
    let client = Client::new("both", &[proxy.addr(), site.brokers[awake].addr()], 0);
    let master = site.cluster.master_of(*shard(0).start()).await;
    stopped.process().pause().await;
    site.cluster.server(master).process().pause().await;
    let next = site.cluster.promoted(*shard(0).start(), master).await;
    let fail_over = FailOver::of(&site.cluster, master, next);
    let names = locks_in(&shard(0), "held", count(40, 20));
    let held = names
        .iter()
        .map(|name| fail_over.probe(&client, awake, name));
    let held = join_all(held).await;
    assert!(held.iter().all(|probe| probe.grants.len() == 1), "{held:?}");
    let calls: Vec<_> = names
        .iter()
        .map(|name| client.open_at(0, &AcquireCall::new(name, TTL, Duration::ZERO)))
        .collect();
    // They are in the socket of the broker before it wakes, and it is awake before the former master is.
    proxy.wait_for_requests(names.len()).await;
    stopped.process().resume();
    until("the broker reads what was sent", async || {
        (proxy.from_broker(SETTINGS) > 0).then_some(())
    })
    .await;
    site.cluster.server(master).process().resume();
    let answers = join_all(calls).await;
    let answers = answers.into_iter().map(|answer| answer.expect("no panic"));
    let (granted, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    assert!(
        granted.is_empty(),
        "granted by the former master: {granted:?}"
    );
    let answered = |answer: &Result<Held, Status>| answer.as_ref().err().and_then(reason).is_some();
    assert!(
        refused.iter().any(answered),
        "the broker answered nobody: {refused:?}"
    );
    // It was connected to the former master, which it would have asked.
    let silent = format!("{} is lost: no answer for", site.cluster.addr(master));
    until(
        "the broker finds that the former master was silent",
        async || stopped.log().contains(&silent).then_some(()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_a_larger_ttl_raises_all_eras() {
    let mut site = ClusterSite::start(ClusterOptions::default(), 1).await;
    let before = eras(&site.cluster).await;
    let mut larger = site.options.clone();
    let ttl_max = "LEASEHOLD__LIMITS__TTL_MAX";
    let setting = larger.env.iter_mut().find(|(key, _)| key == ttl_max);
    setting.expect("it is set").1 = format!("{LARGER_TTL_MS}ms");
    site.brokers.push(BrokerProcess::start(&larger).await);
    let client = Client::new("both", &site.addrs(), 0);
    let raised = until("every era has the larger bound", async || {
        let eras = eras(&site.cluster).await;
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
    figures(&format!(
        "cluster_eras raised: {} eras from {} to {LARGER_TTL_MS} ms, grants went on",
        raised.len(),
        TTL.as_millis()
    ));
}

/// Locks in all parts of the cluster.
fn sample(what: &str) -> Vec<String> {
    let each = (0..SHARDS).flat_map(|index| locks_in(&shard(index), what, SAMPLE / SHARDS));
    each.collect()
}

async fn ask(client: &Client, at: usize, name: &str) -> Result<i64, Status> {
    let call = AcquireCall::new(name, TTL, Duration::ZERO);
    Ok(client.acquire_at(at, &call).await?.token())
}

/// When a lock was granted that is asked for again and again. Until then the store recovers.
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
        reason(status),
        Some(ErrorReason::StoreRecovering),
        "{status}"
    );
    let details = status.get_error_details();
    let again = details.retry_info().and_then(|info| info.retry_delay);
    let again = again.expect("it says when to come again");
    assert!(again <= QUARANTINE, "{again:?}");
}

/// The eras of all slots, as the masters hold them.
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

/// Nothing but the loss explains it.
fn is_odd(verb: Verb, answer: Answer) -> bool {
    match answer {
        Answer::Done => false,
        Answer::Broken => true,
        Answer::Refused(ErrorReason::StoreRecovering | ErrorReason::WaitTimeout) => {
            verb != Verb::Acquire
        }
        Answer::Refused(ErrorReason::LeaseNotFound) => verb == Verb::Acquire,
        Answer::Refused(_) => true,
    }
}
