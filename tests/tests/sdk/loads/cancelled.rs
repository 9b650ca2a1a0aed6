//! Calls and guards of the Rust client that are dropped at random moments, also beside any runtime:
//! nothing panics, nobody gets what another one asked for, and no lock stays taken.

#![expect(clippy::disallowed_methods, reason = "callers are tasks of the test")]

use std::{sync::Arc, thread, time::Duration};

use futures::{executor::block_on, future::join_all};
use leasehold::{Client, Error, Guard, LostReason};
use leasehold_tests::{
    client::Client as Observer,
    clock::boottime,
    deployment::Deployment,
    proxy::{Mode, Proxy, Way},
    scale::{count, figures},
    sdk_cut::{count_panics, panics},
    sdk_dropper::{CONTENDED, HELD, LOCKS, Scene, TTL, Tally, held_name, work},
    sdk_site::connect,
    sdk_stay::lock_name,
    time_left::expiry,
    witness::{Share, Visit, Witness},
};
use rand::Rng;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

const TASKS: usize = 24;
/// For the way of an answer.
const SOON: Duration = Duration::from_millis(300);
/// A shutdown takes at most 2 s.
const SHUT_DOWN_WITHIN: Duration = Duration::from_millis(2_500);
/// How long the wait of a broken stream keeps its place.
const PLACE_KEPT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_calls_that_are_dropped_anywhere() {
    count_panics();
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let holder = connect("holder", &addrs).await;
    let held = (0..HELD).map(|lock| holder.lock(held_name(lock)).ttl(TTL).acquire());
    let held = join_all(held).await;
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    let scene = Arc::new(Scene::start(&addrs).await);
    let (target, begun) = (count(10_000, 1_000), boottime());
    let connections = drop_calls(&scene, target).await;
    let last_cancel = boottime();

    let observer = Observer::new("observer", &addrs, 0);
    let freed = taken_again(&connect("next", &addrs).await, last_cancel).await;
    let left_the_line = nobody_waits(&observer, last_cancel).await;
    drop(held);
    no_trace(&observer).await;
    let verdict = scene.register.witness.verdict();
    let tally = &scene.tally;
    let [cut, ready, busy, unavailable, lost] = [
        &tally.cut,
        &tally.ready,
        &tally.busy,
        &tally.unavailable,
        &tally.lost,
    ]
    .map(Tally::get);
    figures(&format!(
        "sdk_cancelled: cut={cut} ready={ready} busy={busy} unavailable={unavailable} lost={lost} \
         leases={} lost_while_used={} connections_cut={connections} seconds={} visits={} overlaps={} \
         regressions={} panics={} locks={LOCKS} freed_after={}ms E={}ms left_the_line_after={}ms",
        scene.register.leases(),
        scene.register.lost(),
        (last_cancel - begun).as_secs(),
        verdict.visits,
        verdict.overlaps,
        verdict.regressions,
        panics(),
        freed.as_millis(),
        expiry(TTL).as_millis(),
        left_the_line.as_millis()
    ));
    assert!(cut >= target && connections > 0);
    assert_eq!((lost, scene.register.lost()), (0, 0), "leases were lost");
    assert!(verdict.visits * 10 >= cut, "hardly anything was taken");
    assert_eq!((verdict.overlaps, verdict.regressions, panics()), (0, 0, 0));
}

/// Calls that are dropped, until they are so many; how many connections were cut meanwhile.
async fn drop_calls(scene: &Arc<Scene>, target: usize) -> usize {
    let stop = CancellationToken::new();
    let cutter = tokio::spawn(Arc::clone(scene).cut_connections(stop.clone()));
    let cutter = AbortOnDropHandle::new(cutter);
    let tasks = (0..TASKS).map(|_| {
        let scene = Arc::clone(scene);
        let work = async move {
            while Tally::get(&scene.tally.cut) < target {
                scene.step().await;
            }
        };
        AbortOnDropHandle::new(tokio::spawn(work))
    });
    let tasks: Vec<_> = tasks.collect();
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    stop.cancel();
    cutter.await.expect("no panic")
}

/// Takes every lock; how long after that moment the last one was free.
async fn taken_again(next: &Client, since: Duration) -> Duration {
    let until = since + expiry(TTL) + SOON;
    let takes = (0..LOCKS).map(async |lock| {
        let left = until.saturating_sub(boottime());
        let guard = next.lock(lock_name(lock)).wait(left).acquire().await;
        let guard = guard.expect("nobody holds it for longer than the store's expiry");
        let at = boottime();
        guard.release().await.expect("it was held");
        at
    });
    let freed_at = join_all(takes).await.into_iter().max();
    freed_at.expect("many locks") - since
}

/// Waits until nobody waits for the locks that are held; how long after that moment.
async fn nobody_waits(observer: &Observer, since: Duration) -> Duration {
    for lock in 0..HELD {
        loop {
            let state = observer
                .get_lock(&held_name(lock))
                .await
                .expect("GetLock works");
            let state = state.expect("it is held");
            if state.queue_length == 0 {
                break;
            }
            let waited = boottime() - since;
            assert!(waited < PLACE_KEPT + SOON, "they are gone: {state:?}");
            sleep(SOON / 10).await;
        }
    }
    boottime() - since
}

/// Nobody holds a lock or waits for one.
async fn no_trace(observer: &Observer) {
    let names = (0..LOCKS).map(lock_name).chain((0..HELD).map(held_name));
    for name in names {
        let give_up = boottime() + SOON;
        while let Some(state) = observer.get_lock(&name).await.expect("GetLock works") {
            assert!(boottime() < give_up, "held or waited for: {state:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_visits_without_locks_overlap() {
    let witness = Witness::new(LOCKS);
    let visits = (0..TASKS).map(|_| async {
        for _ in 0..count(10_000, 1_000) / TASKS {
            let (lock, entered) = (rand::thread_rng().gen_range(0..CONTENDED), boottime());
            work().await;
            witness.record(Visit {
                lock,
                share: Share::ALL,
                token: 0,
                entered,
                ended: boottime(),
            });
        }
    });
    join_all(visits).await;
    let verdict = witness.verdict();
    figures(&format!(
        "sdk_cancelled: without locks visits={} overlaps={}",
        verdict.visits, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee would not notice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_works_on_another_executor() {
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let (holds, is_held) = oneshot::channel();
    let (done, is_done) = oneshot::channel();
    let elsewhere = thread::spawn(move || {
        assert!(Handle::try_current().is_err(), "a runtime is there");
        let client = block_on(Client::connect(&format!("http://{addr}"))).expect("a broker");
        let first = block_on(client.lock("a").ttl(TTL).acquire()).expect("it is free");
        let token = first.fencing_token();
        let waiting = client.lock("a").ttl(TTL).on_queue({
            let mut first = Some(first);
            // The holder leaves as soon as somebody is in line.
            move |place| drop(first.take().inspect(|_| assert_eq!(place.position, 1)))
        });
        let next = block_on(waiting.acquire()).expect("its turn");
        assert!(next.fencing_token() > token);
        block_on(next.release()).expect("it was held");
        let none = block_on(
            client
                .lock("b")
                .ttl(TTL)
                .attempts(2, SOON / 10)
                .try_acquire(),
        );
        let guard = none.expect("an answer").expect("it is free");
        holds.send(()).expect("it is waited for");
        let why = block_on(guard.lost());
        block_on(client.shutdown());
        done.send(why).expect("it is waited for");
    });
    is_held.await.expect("no panic");
    deployment.brokers[0].kill().await;
    let why = timeout(2 * TTL, is_done).await.expect("lost in time");
    assert_eq!(why, Ok(LostReason::Expired));
    elsewhere.join().expect("no panic");
}

/// One program in the shutdown test: takes locks until the client is shut down.
async fn take_until_closed(client: Client, name: String) -> Vec<Guard> {
    let mut guards = Vec::new();
    for lock in 0.. {
        let name = format!("{name}-{lock}");
        match client.lock(name).ttl(TTL).acquire().await {
            Ok(guard) => guards.push(guard),
            Err(error) => {
                assert!(matches!(error, Error::Closed), "{error:?}");
                break;
            }
        }
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_every_call_and_guard() {
    let deployment = Deployment::start(1).await;
    let next = connect("next", &deployment.addrs()).await;
    let (rounds, mut ended, mut slowest) = (count(200, 40), 0, Duration::ZERO);
    for round in 0..rounds {
        let client = connect("one", &deployment.addrs()).await;
        let tasks = (0..4).map(|task| {
            let takes = take_until_closed(client.clone(), format!("{round}-{task}"));
            AbortOnDropHandle::new(tokio::spawn(takes))
        });
        let tasks: Vec<_> = tasks.collect();
        let pause = Duration::from_micros(rand::thread_rng().gen_range(0..5_000));
        sleep(pause).await;
        let begun = boottime();
        client.shutdown().await;
        let guards = timeout(SHUT_DOWN_WITHIN, join_all(tasks)).await;
        let guards = guards.expect("every call ends").into_iter();
        for guard in guards.flat_map(|guards| guards.expect("no panic")) {
            let why = timeout(SOON, guard.lost()).await;
            assert_eq!(why, Ok(LostReason::Closed), "told in time");
            slowest = slowest.max(boottime() - begun);
            let locks = guard.locks();
            let (_, name) = locks[0].split_once('/').expect("a namespace and a name");
            let taken = next.lock(name).wait(SOON).acquire().await;
            taken
                .expect("it was given back")
                .release()
                .await
                .expect("held");
            ended += 1;
        }
    }
    figures(&format!(
        "sdk_cancelled: shutdowns={rounds} guards_ended={ended} told_and_free_within={}ms",
        slowest.as_millis()
    ));
    assert!(ended > rounds, "there were guards to end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_a_lease_that_was_cut_unanswered_costs_the_lease_nothing() {
    const TTL: Duration = Duration::from_secs(2);
    let deployment = Deployment::start(1).await;
    let addrs = deployment.addrs();
    let proxy = Proxy::start(addrs[0]).await;
    let client = connect("one", &[proxy.addr()]).await;
    let next = connect("next", &addrs).await;
    let guard = client
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .expect("it is free");
    proxy.set_mode(Mode::Swallow(Way::ToClient));
    let observer = Observer::new("observer", &addrs, 0);
    let is_added = async {
        while observer
            .get_lock("b")
            .await
            .expect("GetLock works")
            .is_none()
        {}
    };
    tokio::select! {
        added = client.lock("b").under(&guard).acquire() => panic!("unheard: {added:?}"),
        () = is_added => {}
    }
    let cut_at = boottime();
    proxy.set_mode(Mode::Forward);
    assert!(proxy.cut().await > 0, "it was connected");
    let free = next.lock("b").wait(expiry(TTL) + SOON).acquire().await;
    let freed = boottime() - cut_at;
    free.expect("nobody has it").release().await.expect("held");
    sleep((cut_at + 2 * expiry(TTL)).saturating_sub(boottime())).await;
    assert_eq!(guard.lost_reason(), None, "it was renewed");
    figures(&format!(
        "sdk_cancelled: under, cut unanswered: freed_after={}ms E={}ms",
        freed.as_millis(),
        expiry(TTL).as_millis()
    ));
    guard.release().await.expect("it was held");
}
