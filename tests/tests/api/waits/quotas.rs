//! Quotas and rate limits per caller. Each rejection states its quota, and released quota is
//! available again.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, CancelAcquire, Close, ErrorReason, Heartbeat, HoldAcquire, HoldRequest,
    HoldResponse, Refused, hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, REPLY_TIMEOUT, acquire_request, next_message,
            open_stream, send_acquire, send_message, send_release, send_renew,
        },
    },
    broker::in_process::InProcessBroker,
    clock::boottime,
    scale::print_figures,
    status::error_reason,
    telemetry::scrape::scrape_at,
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

/// Starts a broker with quotas. The token of each caller is the caller's name.
async fn start(quotas: &[(&str, &str)]) -> AccessControlFixture {
    let quotas: Vec<_> = quotas
        .iter()
        .map(|(key, value)| (format!("QUOTAS__{key}"), *value))
        .collect();
    let quotas: Vec<_> = quotas.iter().map(|(key, value)| (&**key, *value)).collect();
    AccessControlFixture::start_with(
        ALLOW_ALL_POLICY,
        &[("alice", "alice"), ("bob", "bob")],
        &quotas,
    )
    .await
}

/// Asserts that a status reports this quota as exceeded, in all of its parts.
fn assert_exceeded(status: &Status, quota: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(error_reason(status), Some(ErrorReason::QuotaExceeded));
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
    let fixture = start(&quotas).await;
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    let first = send_acquire(&alice, acquire_request("one:a", LONG)).await;
    let first = first.expect("the first");
    let short = send_acquire(&alice, acquire_request("one:b", TTL)).await;
    short.expect("the second");
    let (requests, mut responses) = open_stream(&alice).await;
    let on_stream = |name: &str| {
        Ask::Acquire(HoldAcquire {
            call_id: 1,
            request: Some(acquire_request(&format!("one:{name}"), LONG)),
            attach_number: 1,
            ..HoldAcquire::default()
        })
    };
    send_message(&requests, on_stream("c")).await;
    assert!(matches!(
        next_message(&mut responses).await,
        Told::Granted(_)
    ));

    let fourth = send_acquire(&alice, acquire_request("two:d", LONG)).await;
    assert_exceeded(&fourth.expect_err("a fourth"), "quotas.locks_per_caller");
    send_message(&requests, on_stream("d")).await;
    let Told::Refused(refused) = next_message(&mut responses).await else {
        panic!("a fourth");
    };
    assert_eq!(refused.reason(), ErrorReason::QuotaExceeded);
    assert_eq!(refused.code, i32::from(Code::ResourceExhausted));

    // Another caller has its own quota: one more lock in the namespace, and two more in total.
    let waiting = AcquireRequest {
        wait_timeout: LONG.try_into().ok(),
        ..acquire_request("one:a", LONG)
    };
    let mut waits = JoinSet::new();
    let waiter = bob.clone();
    waits.spawn(async move { send_acquire(&waiter, waiting).await });
    let refused = until("bob waits", async || {
        match send_acquire(&bob, acquire_request("one:e", LONG)).await {
            Ok(lease) => send_release(&bob, &lease).await.err(),
            refused => refused.err(),
        }
    });
    assert_exceeded(&refused.await, "quotas.locks_per_namespace");
    send_acquire(&bob, acquire_request("two:a", LONG))
        .await
        .expect("a fifth");
    let sixth = send_acquire(&bob, acquire_request("two:b", LONG)).await;
    assert_exceeded(&sixth.expect_err("a sixth"), "quotas.locks)");

    // Releases make all of the quotas available again.
    send_release(&alice, &first).await.expect("it was held");
    let handed_on = waits.join_next().await.expect("a wait").expect("it ends");
    send_release(&bob, &handed_on.expect("bob's turn"))
        .await
        .expect("it was held");
    send_message(&requests, Ask::Close(Close {})).await;
    assert!(timeout(REPLY_TIMEOUT, responses.message()).await.is_ok());
    until("all is free", async || {
        let mut leases = Vec::new();
        for name in ["x", "y", "z"] {
            leases.push(send_acquire(&alice, acquire_request(&format!("one:{name}"), LONG)).await);
        }
        let all = leases.iter().all(Result::is_ok);
        for lease in leases.into_iter().flatten() {
            send_release(&alice, &lease).await.expect("it was held");
        }
        all.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_counts_as_long_as_it_is_renewed() {
    let fixture = start(&[("LOCKS_PER_CALLER", "1")]).await;
    let alice = fixture.caller("alice");
    let short = send_acquire(&alice, acquire_request("b", TTL)).await;
    let short = short.expect("the first");
    let started_at = boottime();
    while boottime() - started_at < 3 * TTL {
        send_renew(&alice, &short)
            .await
            .expect("nothing sheds that");
        let refused = send_acquire(&alice, acquire_request("a", TTL)).await;
        assert_exceeded(&refused.expect_err("a second"), "quotas.locks_per_caller");
        sleep(TTL / 4).await;
    }
    let left = boottime();
    let other = until("the lease has run out", async || {
        send_acquire(&alice, acquire_request("a", TTL)).await.ok()
    });
    let other = other.await;
    assert!(boottime() - left >= TTL / 2, "before its end");
    send_release(&alice, &other).await.expect("it was held");
    let again = send_acquire(&alice, acquire_request("a", TTL)).await;
    again.expect("the place is free again");
}

#[tokio::test]
async fn a_caller_above_its_acquire_rate_is_rejected_and_other_calls_work() {
    const RATE: usize = 10;
    let fixture = start(&[("ACQUIRES_PER_SECOND", "10")]).await;
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    let held = send_acquire(&alice, acquire_request("held", LONG)).await;
    let held = held.expect("the first");
    let started_at = boottime();
    let (mut granted, mut refusals) = (0, Vec::new());
    while boottime() - started_at < Duration::from_secs(3) {
        match send_acquire(&alice, acquire_request("a", LONG)).await {
            Ok(lease) => {
                granted += 1;
                send_release(&alice, &lease)
                    .await
                    .expect("nothing sheds that");
            }
            Err(status) => {
                assert_exceeded(&status, "quotas.acquires_per_second");
                send_renew(&alice, &held).await.expect("nothing sheds that");
                refusals.push(status);
            }
        }
    }
    let took = boottime() - started_at;
    print_figures(&format!(
        "quotas: rate=10/s granted={granted} in {}ms refused={}",
        took.as_millis(),
        refusals.len()
    ));
    let maximum = 2 * RATE + usize::try_from(took.as_millis()).expect("short") * RATE / 1_000 + 1;
    assert!((4 * RATE..=maximum).contains(&granted), "{granted}");
    let lease = send_acquire(&bob, acquire_request("b", LONG)).await;
    lease.expect("another caller");
    let details = refusals.pop().expect("some").get_error_details();
    let retry = details.retry_info().and_then(|retry| retry.retry_delay);
    let retry = retry.expect("when to come again");
    assert!(retry <= Duration::from_millis(110), "{retry:?}");
}

#[tokio::test]
async fn wrong_credentials_are_rate_limited_and_valid_ones_are_not() {
    let fixture = start(&[]).await;
    let (alice, thief) = (fixture.caller("alice"), fixture.caller("guess"));
    let (mut unknown, mut slowed) = (0, 0);
    for _ in 0..100 {
        let status = send_acquire(&thief, acquire_request("a", LONG)).await;
        let status = status.expect_err("a wrong token");
        match error_reason(&status) {
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
    let lease = send_acquire(&alice, acquire_request("a", LONG)).await;
    lease.expect("a good token from the same address");
}

#[tokio::test]
async fn a_flood_of_heartbeats_ends_its_stream_only() {
    let fixture = start(&[]).await;
    let alice = fixture.caller("alice");
    let (requests, mut responses) = open_stream(&alice).await;
    for sequence in 1..=150 {
        send_message(&requests, Ask::Heartbeat(Heartbeat { sequence })).await;
    }
    // A steady rate of heartbeats below the limit is accepted.
    for sequence in 151..=170 {
        sleep(Duration::from_millis(60)).await;
        send_message(&requests, Ask::Heartbeat(Heartbeat { sequence })).await;
    }
    let call = HoldAcquire {
        call_id: 1,
        request: Some(acquire_request("a", TTL)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send_message(&requests, Ask::Acquire(call)).await;
    assert!(matches!(
        next_message(&mut responses).await,
        Told::Granted(_)
    ));

    let (others, mut other_stream) = open_stream(&alice).await;
    let mut sent = 170;
    let ended = loop {
        sent += 1;
        let beat = Some(Ask::Heartbeat(Heartbeat { sequence: sent }));
        if requests.send(HoldRequest { message: beat }).await.is_err() || sent > 1_000 {
            break end(&mut responses).await;
        }
    };
    assert_eq!(ended.code(), Code::ResourceExhausted, "{ended:?}");
    assert_eq!(error_reason(&ended), Some(ErrorReason::QuotaExceeded));
    assert!(ended.message().contains("heartbeat_interval"));
    let call = HoldAcquire {
        call_id: 1,
        request: Some(acquire_request("b", LONG)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send_message(&others, Ask::Acquire(call)).await;
    assert!(matches!(
        next_message(&mut other_stream).await,
        Told::Granted(_)
    ));
    // The lease of the closed stream expires as after a broken connection.
    until("it is free", async || {
        send_acquire(&alice, acquire_request("a", LONG)).await.ok()
    })
    .await;
}

#[tokio::test]
async fn overload_sheds_acquires_and_nothing_else() {
    const AT_ONCE: usize = 4;
    let fixture = start(&[("ACQUIRES_AT_ONCE", "4")]).await;
    let redis = fixture.redis.process();
    let alice = fixture.caller("alice");
    let lease = send_acquire(&alice, acquire_request("renewed", LONG)).await;
    let to_renew = lease.expect("it is free");
    let lease = send_acquire(&alice, acquire_request("released", LONG)).await;
    let to_release = lease.expect("it is free");

    redis.pause().await;
    let mut acquires = JoinSet::new();
    for index in 0..AT_ONCE {
        let caller = alice.clone();
        let request = acquire_request(&format!("lock-{index}"), LONG);
        acquires.spawn(async move { send_acquire(&caller, request).await });
    }
    let shed = until("a call is shed", async || {
        let caller = alice.clone();
        let mut calls = JoinSet::new();
        calls.spawn(async move { send_acquire(&caller, acquire_request("other", LONG)).await });
        let soon = timeout(Duration::from_millis(100), calls.join_next()).await;
        soon.ok()??.expect("it ends").err()
    });
    let shed = shed.await;
    assert_eq!(shed.code(), Code::Unavailable, "{shed:?}");
    assert_eq!(error_reason(&shed), Some(ErrorReason::Overloaded));
    let details = shed.get_error_details();
    assert!(details.retry_info().is_some());
    let (one, other) = (alice.clone(), alice.clone());
    let mut calls = JoinSet::new();
    calls.spawn(async move { send_renew(&one, &to_renew).await });
    calls.spawn(async move { send_release(&other, &to_release).await });
    redis.resume();
    let ends: Vec<_> = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let acquired = acquires.join_all().await;
    assert!(acquired.iter().any(Result::is_ok), "{acquired:?}");
    let after = send_acquire(&alice, acquire_request("after", LONG)).await;
    after.expect("the store answers");
}

/// Receives messages until the stream ends, and returns its status.
async fn end(responses: &mut Streaming<HoldResponse>) -> Status {
    loop {
        match timeout(REPLY_TIMEOUT, responses.message())
            .await
            .expect("an end")
        {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends without a reason"),
            Err(status) => return status,
        }
    }
}

/// A lease stream with calls that wait for locks.
struct WaitingStream {
    /// Attach number, which exceeds that of an earlier stream with the same calls.
    attach_number: i32,
    requests: mpsc::Sender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    last_call_id: i64,
}

impl WaitingStream {
    async fn of(caller: &Caller, attach_number: i32) -> Self {
        let (requests, responses) = open_stream(caller).await;
        Self {
            attach_number,
            requests,
            responses,
            last_call_id: 0,
        }
    }

    /// Enqueues a call and asserts that it is not granted.
    async fn enqueue(&mut self, request: AcquireRequest) -> Result<i64, Refused> {
        self.last_call_id += 1;
        let call_id = self.last_call_id;
        let acquire = HoldAcquire {
            call_id,
            request: Some(request),
            attach_number: self.attach_number,
            ..HoldAcquire::default()
        };
        send_message(&self.requests, Ask::Acquire(acquire)).await;
        loop {
            let responses = next_message(&mut self.responses).await;
            if let Told::Refused(refused) = responses {
                assert_eq!(refused.call_id, call_id);
                return Err(refused);
            }
            let Told::Queued(queued) = responses else {
                panic!("{responses:?} instead of a position in the queue");
            };
            if queued.call_id == call_id {
                return Ok(call_id);
            }
        }
    }

    async fn cancel(&mut self, call_id: i64) {
        send_message(&self.requests, Ask::Cancel(CancelAcquire { call_id })).await;
        loop {
            let responses = next_message(&mut self.responses).await;
            if let Told::Refused(refused) = responses {
                assert_eq!(refused.call_id, call_id);
                return;
            }
            assert!(matches!(responses, Told::Queued(_)), "{responses:?}");
        }
    }
}

fn waiting(name: &str) -> AcquireRequest {
    AcquireRequest {
        wait_timeout: LONG.try_into().ok(),
        ..acquire_request(name, LONG)
    }
}

#[tokio::test]
async fn one_caller_leaves_most_of_a_queue_to_others() {
    const WAITS_PER_CALLER: usize = 1_000;
    let fixture = start(&[("ACQUIRES_PER_SECOND", "100000")]).await;
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    for name in ["shared", "other"] {
        let held = send_acquire(&bob, acquire_request(name, LONG)).await;
        held.expect("it is free");
    }
    let mut first = WaitingStream::of(&alice, 1).await;
    let mut last = None;
    for _ in 0..WAITS_PER_CALLER {
        let request = waiting("shared");
        last = Some(request.clone());
        first.enqueue(request).await.expect("a position");
    }
    let mut second = WaitingStream::of(&alice, 2).await;
    let refused = second.enqueue(waiting("shared")).await;
    let refused = refused.expect_err("one too many");
    assert_eq!(refused.code, i32::from(Code::ResourceExhausted));
    assert_eq!(refused.reason(), ErrorReason::QuotaExceeded);
    let says = "1000 calls of the caller wait for the lock at this broker, the maximum";
    assert!(refused.message.contains(says), "{}", refused.message);
    let metrics = scrape_at(fixture.broker.admin(), Some("bob")).await;
    let label = [("quota", "waits_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);

    // The limit does not apply to calls that do not wait, other locks, other callers, and repeats.
    let now = send_acquire(&alice, acquire_request("shared", LONG)).await;
    assert_eq!(
        error_reason(&now.expect_err("held")),
        Some(ErrorReason::LockHeld)
    );
    let other = second.enqueue(waiting("other")).await;
    other.expect("a position in another queue");
    let others = WaitingStream::of(&bob, 1)
        .await
        .enqueue(waiting("shared"))
        .await;
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
    let broker = InProcessBroker::start().await;
    let caller = Caller::new(broker.api, broker.admin, None);
    let held = send_acquire(&caller, acquire_request("shared", LONG)).await;
    held.expect("it is free");
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = WaitingStream::of(&caller, 1).await;
        for _ in 0..600 {
            let queued = stream.enqueue(waiting("shared")).await;
            queued.expect("a position");
        }
        streams.push(stream);
    }
    broker.stop().await;
}
