//! What callers may have at once, and how often they may call: each quota is refused with its reason,
//! and comes free again.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, CancelAcquire, Close, ErrorReason, Heartbeat, HoldAcquire, HoldRequest,
    HoldResponse, Refused, hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    callers::Caller,
    clock::boottime,
    guarded::{EVERYTHING, Guarded, SOON, acquire, given_back, next, renewed, send, stream, taken},
    in_process::InProcess,
    scale::figures,
    scrape::scrape_at,
    status::reason,
    until::until,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// A broker with quotas, whose callers' tokens are their names.
async fn start(quotas: &[(&str, &str)]) -> Guarded {
    let quotas: Vec<_> = quotas
        .iter()
        .map(|(key, value)| (format!("QUOTAS__{key}"), *value))
        .collect();
    let quotas: Vec<_> = quotas.iter().map(|(key, value)| (&**key, *value)).collect();
    Guarded::start_with(EVERYTHING, &[("alice", "alice"), ("bob", "bob")], &quotas).await
}

/// That a quota of this name is used up, in all the ways in which callers are told.
fn exceeded(status: &Status, quota: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(status), Some(ErrorReason::QuotaExceeded));
    assert!(status.message().contains(quota), "{}", status.message());
    let details = status.get_error_details();
    let failure = details.quota_failure().expect("a QuotaFailure");
    assert!(failure.violations[0].description.contains(quota));
}

#[tokio::test]
async fn locks_count_while_they_are_held_or_waited_for() {
    let quotas = [
        ("LOCKS_PER_CALLER", "3"),
        ("LOCKS_PER_NAMESPACE", "4"),
        ("LOCKS", "5"),
    ];
    let site = start(&quotas).await;
    let (alice, bob) = (site.caller("alice"), site.caller("bob"));
    let first = taken(&alice, acquire("one:a", LONG)).await;
    let first = first.expect("the first");
    let short = taken(&alice, acquire("one:b", TTL)).await;
    short.expect("the second");
    let (asks, mut told) = stream(&alice).await;
    let on_stream = |name: &str| {
        Ask::Acquire(HoldAcquire {
            call_id: 1,
            request: Some(acquire(&format!("one:{name}"), LONG)),
            attach_number: 1,
            ..HoldAcquire::default()
        })
    };
    send(&asks, on_stream("c")).await;
    assert!(matches!(next(&mut told).await, Told::Granted(_)));

    let fourth = taken(&alice, acquire("two:d", LONG)).await;
    exceeded(&fourth.expect_err("a fourth"), "quotas.locks_per_caller");
    send(&asks, on_stream("d")).await;
    let Told::Refused(refused) = next(&mut told).await else {
        panic!("a fourth");
    };
    assert_eq!(refused.reason(), ErrorReason::QuotaExceeded);
    assert_eq!(refused.code, i32::from(Code::ResourceExhausted));

    // Another caller has places of its own, in the namespace one more, in all two more.
    let waiting = AcquireRequest {
        wait_timeout: LONG.try_into().ok(),
        ..acquire("one:a", LONG)
    };
    let mut waits = JoinSet::new();
    let waiter = bob.clone();
    waits.spawn(async move { taken(&waiter, waiting).await });
    let refused = until("bob waits", async || {
        match taken(&bob, acquire("one:e", LONG)).await {
            Ok(lease) => given_back(&bob, &lease).await.err(),
            refused => refused.err(),
        }
    });
    exceeded(&refused.await, "quotas.locks_per_namespace");
    taken(&bob, acquire("two:a", LONG)).await.expect("a fifth");
    let sixth = taken(&bob, acquire("two:b", LONG)).await;
    exceeded(&sixth.expect_err("a sixth"), "quotas.locks)");

    // All of that comes free.
    given_back(&alice, &first).await.expect("it was held");
    let handed_on = waits.join_next().await.expect("a wait").expect("it ends");
    given_back(&bob, &handed_on.expect("bob's turn"))
        .await
        .expect("it was held");
    send(&asks, Ask::Close(Close {})).await;
    assert!(timeout(SOON, told.message()).await.is_ok());
    until("all is free", async || {
        let mut leases = Vec::new();
        for name in ["x", "y", "z"] {
            leases.push(taken(&alice, acquire(&format!("one:{name}"), LONG)).await);
        }
        let all = leases.iter().all(Result::is_ok);
        for lease in leases.into_iter().flatten() {
            given_back(&alice, &lease).await.expect("it was held");
        }
        all.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_counts_as_long_as_it_is_renewed() {
    let site = start(&[("LOCKS_PER_CALLER", "1")]).await;
    let alice = site.caller("alice");
    let short = taken(&alice, acquire("b", TTL)).await;
    let short = short.expect("the first");
    let began = boottime();
    while boottime() - began < 3 * TTL {
        renewed(&alice, &short).await.expect("nothing sheds that");
        let refused = taken(&alice, acquire("a", TTL)).await;
        exceeded(&refused.expect_err("a second"), "quotas.locks_per_caller");
        sleep(TTL / 4).await;
    }
    let left = boottime();
    let other = until("the lease has run out", async || {
        taken(&alice, acquire("a", TTL)).await.ok()
    });
    let other = other.await;
    assert!(boottime() - left >= TTL / 2, "before its end");
    given_back(&alice, &other).await.expect("it was held");
    let again = taken(&alice, acquire("a", TTL)).await;
    again.expect("the place is free again");
}

#[tokio::test]
async fn who_acquires_too_often_waits_and_everything_else_goes_on() {
    const RATE: usize = 10;
    let site = start(&[("ACQUIRES_PER_SECOND", "10")]).await;
    let (alice, bob) = (site.caller("alice"), site.caller("bob"));
    let held = taken(&alice, acquire("held", LONG)).await;
    let held = held.expect("the first");
    let began = boottime();
    let (mut granted, mut refusals) = (0, Vec::new());
    while boottime() - began < Duration::from_secs(3) {
        match taken(&alice, acquire("a", LONG)).await {
            Ok(lease) => {
                granted += 1;
                given_back(&alice, &lease)
                    .await
                    .expect("nothing sheds that");
            }
            Err(status) => {
                exceeded(&status, "quotas.acquires_per_second");
                renewed(&alice, &held).await.expect("nothing sheds that");
                refusals.push(status);
            }
        }
    }
    let took = boottime() - began;
    figures(&format!(
        "quotas: rate=10/s granted={granted} in {}ms refused={}",
        took.as_millis(),
        refusals.len()
    ));
    let most = 2 * RATE + usize::try_from(took.as_millis()).expect("short") * RATE / 1_000 + 1;
    assert!((4 * RATE..=most).contains(&granted), "{granted}");
    let lease = taken(&bob, acquire("b", LONG)).await;
    lease.expect("another caller");
    let details = refusals.pop().expect("some").get_error_details();
    let retry = details.retry_info().and_then(|retry| retry.retry_delay);
    let retry = retry.expect("when to come again");
    assert!(retry <= Duration::from_millis(110), "{retry:?}");
}

#[tokio::test]
async fn who_guesses_is_slowed_down_and_who_knows_is_not() {
    let site = start(&[]).await;
    let (alice, thief) = (site.caller("alice"), site.caller("guess"));
    let (mut unknown, mut slowed) = (0, 0);
    for _ in 0..100 {
        let status = taken(&thief, acquire("a", LONG)).await;
        let status = status.expect_err("a wrong token");
        match reason(&status) {
            Some(ErrorReason::Unauthenticated) => unknown += 1,
            Some(ErrorReason::QuotaExceeded) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                let details = status.get_error_details();
                assert!(details.retry_info().is_some());
                slowed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(unknown >= 10 && slowed >= 50, "{unknown} {slowed}");
    let lease = taken(&alice, acquire("a", LONG)).await;
    lease.expect("a good token from the same address");
}

#[tokio::test]
async fn a_flood_of_heartbeats_ends_its_stream_only() {
    let site = start(&[]).await;
    let alice = site.caller("alice");
    let (asks, mut told) = stream(&alice).await;
    for sequence in 1..=150 {
        send(&asks, Ask::Heartbeat(Heartbeat { sequence })).await;
    }
    // A steady beat below the limit goes on.
    for sequence in 151..=170 {
        sleep(Duration::from_millis(60)).await;
        send(&asks, Ask::Heartbeat(Heartbeat { sequence })).await;
    }
    let call = HoldAcquire {
        call_id: 1,
        request: Some(acquire("a", TTL)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send(&asks, Ask::Acquire(call)).await;
    assert!(matches!(next(&mut told).await, Told::Granted(_)));

    let (others, mut heard) = stream(&alice).await;
    let mut sent = 170;
    let ended = loop {
        sent += 1;
        let beat = Some(Ask::Heartbeat(Heartbeat { sequence: sent }));
        if asks.send(HoldRequest { message: beat }).await.is_err() || sent > 1_000 {
            break end(&mut told).await;
        }
    };
    assert_eq!(ended.code(), Code::ResourceExhausted, "{ended:?}");
    assert_eq!(reason(&ended), Some(ErrorReason::QuotaExceeded));
    assert!(ended.message().contains("heartbeat_interval"));
    let call = HoldAcquire {
        call_id: 1,
        request: Some(acquire("b", LONG)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send(&others, Ask::Acquire(call)).await;
    assert!(matches!(next(&mut heard).await, Told::Granted(_)));
    // Its lease runs out as after any break.
    until("it is free", async || {
        taken(&alice, acquire("a", LONG)).await.ok()
    })
    .await;
}

#[tokio::test]
async fn overload_sheds_acquires_and_nothing_else() {
    const AT_ONCE: usize = 4;
    let site = start(&[("ACQUIRES_AT_ONCE", "4")]).await;
    let redis = site.redis.process();
    let alice = site.caller("alice");
    let lease = taken(&alice, acquire("renewed", LONG)).await;
    let to_renew = lease.expect("it is free");
    let lease = taken(&alice, acquire("released", LONG)).await;
    let to_release = lease.expect("it is free");

    redis.pause().await;
    let mut acquires = JoinSet::new();
    for index in 0..AT_ONCE {
        let caller = alice.clone();
        let request = acquire(&format!("lock-{index}"), LONG);
        acquires.spawn(async move { taken(&caller, request).await });
    }
    let shed = until("a call is shed", async || {
        let caller = alice.clone();
        let mut calls = JoinSet::new();
        calls.spawn(async move { taken(&caller, acquire("other", LONG)).await });
        let soon = timeout(Duration::from_millis(100), calls.join_next()).await;
        soon.ok()??.expect("it ends").err()
    });
    let shed = shed.await;
    assert_eq!(shed.code(), Code::Unavailable, "{shed:?}");
    assert_eq!(reason(&shed), Some(ErrorReason::Overloaded));
    let details = shed.get_error_details();
    assert!(details.retry_info().is_some());
    let (one, other) = (alice.clone(), alice.clone());
    let mut calls = JoinSet::new();
    calls.spawn(async move { renewed(&one, &to_renew).await });
    calls.spawn(async move { given_back(&other, &to_release).await });
    redis.resume();
    let ends: Vec<_> = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let acquired = acquires.join_all().await;
    assert!(acquired.iter().any(Result::is_ok), "{acquired:?}");
    let after = taken(&alice, acquire("after", LONG)).await;
    after.expect("the store answers");
}

/// The status by which a stream ends, whatever it tells before.
async fn end(told: &mut Streaming<HoldResponse>) -> Status {
    loop {
        match timeout(SOON, told.message()).await.expect("an end") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends without a reason"),
            Err(status) => return status,
        }
    }
}

/// A lease stream whose calls wait for locks.
struct Queueing {
    /// Above that of the stream which the same calls were on before.
    attach_number: i32,
    asks: mpsc::Sender<HoldRequest>,
    told: Streaming<HoldResponse>,
    last_call_id: i64,
}

impl Queueing {
    async fn of(caller: &Caller, attach_number: i32) -> Self {
        let (asks, told) = stream(caller).await;
        Self {
            attach_number,
            asks,
            told,
            last_call_id: 0,
        }
    }

    /// Enqueues a call, which must not be granted.
    async fn enqueue(&mut self, request: AcquireRequest) -> Result<i64, Refused> {
        self.last_call_id += 1;
        let call_id = self.last_call_id;
        let acquire = HoldAcquire {
            call_id,
            request: Some(request),
            attach_number: self.attach_number,
            ..HoldAcquire::default()
        };
        send(&self.asks, Ask::Acquire(acquire)).await;
        loop {
            let told = next(&mut self.told).await;
            if let Told::Refused(refused) = told {
                assert_eq!(refused.call_id, call_id);
                return Err(refused);
            }
            let Told::Queued(queued) = told else {
                panic!("{told:?} instead of a position in the queue");
            };
            if queued.call_id == call_id {
                return Ok(call_id);
            }
        }
    }

    async fn cancel(&mut self, call_id: i64) {
        send(&self.asks, Ask::Cancel(CancelAcquire { call_id })).await;
        loop {
            let told = next(&mut self.told).await;
            if let Told::Refused(refused) = told {
                assert_eq!(refused.call_id, call_id);
                return;
            }
            assert!(matches!(told, Told::Queued(_)), "{told:?}");
        }
    }
}

fn waiting(name: &str) -> AcquireRequest {
    AcquireRequest {
        wait_timeout: LONG.try_into().ok(),
        ..acquire(name, LONG)
    }
}

#[tokio::test]
async fn one_caller_leaves_most_of_a_queue_to_others() {
    const WAITS_PER_CALLER: usize = 1_000;
    let site = start(&[("ACQUIRES_PER_SECOND", "100000")]).await;
    let (alice, bob) = (site.caller("alice"), site.caller("bob"));
    for name in ["shared", "other"] {
        let held = taken(&bob, acquire(name, LONG)).await;
        held.expect("it is free");
    }
    let mut first = Queueing::of(&alice, 1).await;
    let mut last = None;
    for _ in 0..WAITS_PER_CALLER {
        let request = waiting("shared");
        last = Some(request.clone());
        first.enqueue(request).await.expect("a position");
    }
    let mut second = Queueing::of(&alice, 2).await;
    let refused = second.enqueue(waiting("shared")).await;
    let refused = refused.expect_err("one too many");
    assert_eq!(refused.code, i32::from(Code::ResourceExhausted));
    assert_eq!(refused.reason(), ErrorReason::QuotaExceeded);
    let says = "1000 calls of the caller wait for the lock at this broker, the maximum";
    assert!(refused.message.contains(says), "{}", refused.message);
    let metrics = scrape_at(site.broker.admin(), Some("bob")).await;
    let label = [("quota", "waits_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);

    // Calls that do not wait, other locks, other callers, and repeats are not concerned.
    let now = taken(&alice, acquire("shared", LONG)).await;
    assert_eq!(reason(&now.expect_err("held")), Some(ErrorReason::LockHeld));
    let other = second.enqueue(waiting("other")).await;
    other.expect("a position in another queue");
    let others = Queueing::of(&bob, 1).await.enqueue(waiting("shared")).await;
    others.expect("a position of another caller");
    let repeated = second.enqueue(last.expect("a call")).await;
    repeated.expect("the position that the call has");

    first.cancel(1).await;
    until("a position is free", async || {
        second.enqueue(waiting("shared")).await.ok()
    })
    .await;
}

#[tokio::test]
async fn callers_without_names_share_the_whole_queue() {
    let broker = InProcess::start().await;
    let caller = Caller::new(broker.api, broker.admin, None);
    let held = taken(&caller, acquire("shared", LONG)).await;
    held.expect("it is free");
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = Queueing::of(&caller, 1).await;
        for _ in 0..600 {
            let queued = stream.enqueue(waiting("shared")).await;
            queued.expect("a position");
        }
        streams.push(stream);
    }
    broker.stop().await;
}
