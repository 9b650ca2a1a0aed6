//! Calls and guards of the Rust client that are dropped at random moments, also outside of a
//! runtime. Nothing panics, no call receives the result of another call, and no lock stays held.

#![expect(clippy::disallowed_methods, reason = "callers are tasks of the test")]

use std::{sync::Arc, thread, time::Duration};

use futures::{executor::block_on, future::join_all};
use leasehold::{Client, Error, Guard, LostReason};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::Client as Observer,
    clock::boottime,
    load::{
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
        store_expiry::store_expiry,
    },
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    scale::{print_figures, scaled_count},
    sdk::{
        cancellation_load::{
            CONTENDED, CancellationLoad, HELD, LOCKS, OutcomeCounts, TTL, held_lock_name, work,
        },
        cancellation_point::{count_panics, panic_count},
        hold_log::lock_name,
        proxied_client::connect,
    },
};
use rand::Rng;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

const TASKS: usize = 24;
/// Time for an answer to arrive.
const TIME_LIMIT: Duration = Duration::from_millis(300);
/// Maximum duration of a shutdown: the bound of 2 s, with a margin.
const SHUT_DOWN_WITHIN: Duration = Duration::from_millis(2_500);
/// Time for which a request keeps its queue position after its stream broke.
const POSITION_KEPT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_leave_no_holder_and_no_waiter() {
    count_panics();
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let holder = connect("holder", &addrs).await;
    let held = (0..HELD).map(|lock| holder.lock(held_lock_name(lock)).ttl(TTL).acquire());
    let held = join_all(held).await;
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    let fixture = Arc::new(CancellationLoad::start(&addrs).await);
    let (target, started_at) = (scaled_count(10_000, 1_000), boottime());
    let connections = drop_calls(&fixture, target).await;
    let last_cancel = boottime();

    let observer = Observer::new("observer", &addrs, 0);
    let freed = acquire_again(&connect("next", &addrs).await, last_cancel).await;
    let left_the_line = wait_for_empty_queues(&observer, last_cancel).await;
    drop(held);
    no_trace(&observer).await;
    let verdict = fixture.hold_log.oracle.verdict();
    let counts = &fixture.outcomes;
    let [cut, ready, busy, unavailable, lost] = [
        &counts.cancelled,
        &counts.completed,
        &counts.contended,
        &counts.unavailable,
        &counts.lost,
    ]
    .map(OutcomeCounts::value_of);
    print_figures(&format!(
        "sdk_cancelled: cut={cut} ready={ready} busy={busy} unavailable={unavailable} lost={lost} \
         leases={} lost_while_used={} connections_cut={connections} seconds={} visits={} overlaps={} \
         regressions={} panics={} locks={LOCKS} freed_after={}ms E={}ms left_the_line_after={}ms",
        fixture.hold_log.lease_count(),
        fixture.hold_log.lost_count(),
        (last_cancel - started_at).as_secs(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions,
        panic_count(),
        freed.as_millis(),
        store_expiry(TTL).as_millis(),
        left_the_line.as_millis()
    ));
    assert!(cut >= target && connections > 0);
    assert_eq!(
        (lost, fixture.hold_log.lost_count()),
        (0, 0),
        "leases were lost"
    );
    assert!(verdict.uses * 10 >= cut, "hardly anything was taken");
    assert_eq!(
        (verdict.overlaps, verdict.regressions, panic_count()),
        (0, 0, 0)
    );
}

/// Makes calls until `target` futures were dropped before they completed. Returns the number of
/// connections that were cut meanwhile.
async fn drop_calls(fixture: &Arc<CancellationLoad>, target: usize) -> usize {
    let stop = CancellationToken::new();
    let cutter = tokio::spawn(Arc::clone(fixture).cut_connections(stop.clone()));
    let cutter = AbortOnDropHandle::new(cutter);
    let tasks = (0..TASKS).map(|_| {
        let fixture = Arc::clone(fixture);
        let work = async move {
            while OutcomeCounts::value_of(&fixture.outcomes.cancelled) < target {
                fixture.make_random_call().await;
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

/// Acquires every lock, and returns the time from `since` until the last lock was acquired.
async fn acquire_again(next: &Client, since: Duration) -> Duration {
    let until = since + store_expiry(TTL) + TIME_LIMIT;
    let takes = (0..LOCKS).map(async |lock| {
        let remaining = until.saturating_sub(boottime());
        let guard = next.lock(lock_name(lock)).wait(remaining).acquire().await;
        let guard = guard.expect("it is held no longer than the store's expiry");
        let at = boottime();
        guard.release().await.expect("it was held");
        at
    });
    let freed_at = join_all(takes).await.into_iter().max();
    freed_at.expect("many locks") - since
}

/// Waits until the queues of the held locks are empty, and returns the time since `since`.
async fn wait_for_empty_queues(observer: &Observer, since: Duration) -> Duration {
    for lock in 0..HELD {
        loop {
            let state = observer
                .get_lock(&held_lock_name(lock))
                .await
                .expect("GetLock works");
            let state = state.expect("it is held");
            if state.queue_length == 0 {
                break;
            }
            let waited = boottime() - since;
            assert!(
                waited < POSITION_KEPT + TIME_LIMIT,
                "they are gone: {state:?}"
            );
            sleep(TIME_LIMIT / 10).await;
        }
    }
    boottime() - since
}

/// Asserts that no lock has a holder or a waiter.
async fn no_trace(observer: &Observer) {
    let names = (0..LOCKS)
        .map(lock_name)
        .chain((0..HELD).map(held_lock_name));
    for name in names {
        let give_up = boottime() + TIME_LIMIT;
        while let Some(state) = observer.get_lock(&name).await.expect("GetLock works") {
            assert!(boottime() < give_up, "held or waited for: {state:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_visits_without_locks_overlap() {
    let oracle = Oracle::new(LOCKS);
    let visits = (0..TASKS).map(|_| async {
        for _ in 0..scaled_count(10_000, 1_000) / TASKS {
            let (lock, started_at) = (rand::thread_rng().gen_range(0..CONTENDED), boottime());
            work().await;
            oracle.record(LockUse {
                lock,
                share: Share::ALL,
                token: 0,
                started_at,
                ended_at: boottime(),
            });
        }
    });
    join_all(visits).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "sdk_cancelled: without locks visits={} overlaps={}",
        verdict.uses, verdict.overlaps
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
            // The holder releases as soon as the next call is queued.
            move |place| drop(first.take().inspect(|_| assert_eq!(place.position, 1)))
        });
        let next = block_on(waiting.acquire()).expect("its turn");
        assert!(next.fencing_token() > token);
        block_on(next.release()).expect("it was held");
        let none = block_on(
            client
                .lock("b")
                .ttl(TTL)
                .attempts(2, TIME_LIMIT / 10)
                .try_acquire(),
        );
        let guard = none.expect("an answer").expect("it is free");
        holds.send(()).expect("it is waited for");
        let reason = block_on(guard.lost());
        block_on(client.shutdown());
        done.send(reason).expect("it is waited for");
    });
    is_held.await.expect("no panic");
    deployment.brokers[0].kill().await;
    let reason = timeout(2 * TTL, is_done).await.expect("lost in time");
    assert_eq!(reason, Ok(LostReason::Expired));
    elsewhere.join().expect("no panic");
}

/// Acquires locks until the client is shut down, as a program in the shutdown test.
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
    let (rounds, mut ended, mut slowest) = (scaled_count(200, 40), 0, Duration::ZERO);
    for round in 0..rounds {
        let client = connect("one", &deployment.addrs()).await;
        let tasks = (0..4).map(|task| {
            let takes = take_until_closed(client.clone(), format!("{round}-{task}"));
            AbortOnDropHandle::new(tokio::spawn(takes))
        });
        let tasks: Vec<_> = tasks.collect();
        let pause = Duration::from_micros(rand::thread_rng().gen_range(0..5_000));
        sleep(pause).await;
        let started_at = boottime();
        client.shutdown().await;
        let guards = timeout(SHUT_DOWN_WITHIN, join_all(tasks)).await;
        let guards = guards.expect("every call ends").into_iter();
        for guard in guards.flat_map(|guards| guards.expect("no panic")) {
            let reason = timeout(TIME_LIMIT, guard.lost()).await;
            assert_eq!(reason, Ok(LostReason::Closed), "notified in time");
            slowest = slowest.max(boottime() - started_at);
            let locks = guard.locks();
            let (_, name) = locks[0].split_once('/').expect("a namespace and a name");
            let result = next.lock(name).wait(TIME_LIMIT).acquire().await;
            result
                .expect("it was released")
                .release()
                .await
                .expect("held");
            ended += 1;
        }
    }
    print_figures(&format!(
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
    let proxy = Http2Proxy::start(addrs[0]).await;
    let client = connect("one", &[proxy.addr()]).await;
    let next = connect("next", &addrs).await;
    let guard = client
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .expect("it is free");
    proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
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
    proxy.set_mode(ProxyMode::Forward);
    assert!(proxy.close_connections().await > 0, "it was connected");
    let free = next
        .lock("b")
        .wait(store_expiry(TTL) + TIME_LIMIT)
        .acquire()
        .await;
    let freed = boottime() - cut_at;
    free.expect("it is not held").release().await.expect("held");
    sleep((cut_at + 2 * store_expiry(TTL)).saturating_sub(boottime())).await;
    assert_eq!(guard.lost_reason(), None, "it was renewed");
    print_figures(&format!(
        "sdk_cancelled: under, cut unanswered: freed_after={}ms E={}ms",
        freed.as_millis(),
        store_expiry(TTL).as_millis()
    ));
    guard.release().await.expect("it was held");
}
