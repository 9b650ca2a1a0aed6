//! Scenarios of the queue of a lock: order, positions, and cancellation.

use std::time::Duration;

use leasehold_proto::v1::{
    CloseLockRequest, LockRef, OpenLockRequest, admin_service_client::AdminServiceClient,
    close_lock_request::End,
};
use rand::Rng;
use tokio::time::sleep;

use super::{
    language::Cast,
    messages::ProbeAcquire,
    probe::{PendingCommand, Probe},
    scenario::{DELAY_MAX, ScenarioFixture, TTL},
};
use crate::{
    client::unary::channel,
    clock::boottime,
    net::http2_proxy::{Http2Proxy, ProxyMode},
    scale::{print_figures, scaled_count},
};

const WAIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(20);
/// Delay of the broker's messages in the scenarios that delay them.
const MESSAGE_DELAY: Duration = Duration::from_millis(700);

/// Waiters are granted in the order of their calls, across programs and languages.
pub async fn a_line_keeps_its_order_across_programs(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 2).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    let held = fixture.expect_acquired("a").await;
    let ask = |name: &str| {
        ProbeAcquire::exclusive("a")
            .with_lease_name(name)
            .with_ttl(TTL * 5)
            .with_wait(WAIT)
    };
    let mut calls = Vec::new();
    for (place, probe) in [(1, &one), (2, &other)] {
        let call = probe.start_acquire(&ask("first"));
        probe.wait_for_position(&call, place).await;
        calls.push((probe, "first", call));
    }
    let rival = fixture.enqueue_rival("a").await;
    for (place, probe) in [(4, &other), (5, &one)] {
        let call = probe.start_acquire(&ask("second"));
        probe.wait_for_position(&call, place).await;
        calls.push((probe, "second", call));
    }
    let behind = calls.split_off(2);
    fixture.expect_released(&held).await;
    let mut last = held.token();
    for (probe, name, call) in calls {
        last = release_in_turn(&fixture, last, (probe, name, call)).await;
    }
    let (held, _) = rival.wait_for_grant().await;
    assert!(held.token() > last);
    fixture.expect_released(&held).await;
    last = held.token();
    for (probe, name, call) in behind {
        last = release_in_turn(&fixture, last, (probe, name, call)).await;
    }
    assert_eq!(fixture.holder("a").await, None);
}

/// Waits for the grant of a call, asserts that the probe is the only holder, releases the lock and
/// returns the token.
async fn release_in_turn(
    fixture: &ScenarioFixture,
    last: i64,
    (probe, name, call): (&Probe, &str, PendingCommand),
) -> i64 {
    let lease = call.lease().await.expect("its turn");
    assert!(lease.token() > last, "not its turn");
    assert_eq!(fixture.expect_holder("a").await.lease_id, lease.lease_id);
    probe.expect_released(name).await;
    lease.token()
}

/// A call may wait for three times its TTL, and is granted with its full TTL.
pub async fn a_wait_may_be_longer_than_the_validity(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let held = fixture.expect_acquired("a").await;
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(TTL).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    sleep(TTL * 3).await;
    assert!(call.is_pending());
    fixture.wait_for_queue_length("a", 1).await;
    let released = boottime();
    fixture.expect_released(&held).await;
    let lease = call.lease().await.expect("its turn");
    assert!(lease.valid && lease.at < released + DELAY_MAX, "{lease:?}");
    let now = fixture.expect_holder("a").await;
    fixture.wait_until_renewed("a", &now).await;
    assert!(one.state("a").await.valid);
}

/// A waiter is notified of its queue position, and of each change.
pub async fn a_waiter_is_told_its_place(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    let held = fixture.expect_acquired("a").await;
    let ahead = other.start_acquire(&ProbeAcquire::exclusive("a").with_wait(WAIT));
    other.wait_for_position(&ahead, 1).await;
    let rival = fixture.enqueue_rival("a").await;
    let call = one.start_acquire(&ProbeAcquire::exclusive("a").with_wait(WAIT));
    assert_eq!(one.wait_for_position(&call, 3).await, 3);
    other.cancel(&ahead).await;
    assert_eq!(one.wait_for_position(&call, 2).await, 2);
    fixture.expect_released(&held).await;
    let (held, _) = rival.wait_for_grant().await;
    assert_eq!(one.wait_for_position(&call, 1).await, 1);
    fixture.expect_released(&held).await;
    let id = call.id;
    call.lease().await.expect("its turn");
    assert_eq!(one.reported_positions(id), [3, 2, 1]);
}

/// A waiter of a closed lock is told by whom, why and for how long the lock is closed.
pub async fn a_waiter_of_a_closed_lock_is_told_why(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lock = Some(LockRef {
        name: "a".to_owned(),
        ..LockRef::default()
    });
    let mut admin = AdminServiceClient::new(channel(fixture.deployment.brokers[0].admin()));
    let close = CloseLockRequest {
        lock: lock.clone(),
        reason: "a freeze".to_owned(),
        end: Some(End::Duration(prost_types::Duration {
            seconds: 3_600,
            nanos: 0,
        })),
        operator: "dora".to_owned(),
    };
    admin.close_lock(close).await.expect("it is closed");
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("a").with_wait(WAIT));
    let closure = one.wait_for_closure(&call).await;
    assert_eq!(
        (&*closure.cause, &*closure.owner, &*closure.reason),
        ("operator", "dora", "a freeze")
    );
    let remaining_ms = closure.remaining_ms;
    assert!(
        (3_000_000.0..=3_600_000.0).contains(&remaining_ms),
        "{closure:?}"
    );
    assert!(call.is_pending());
    admin
        .open_lock(OpenLockRequest { lock })
        .await
        .expect("it opens");
    call.lease().await.expect("its turn");
}

/// A cancelled wait leaves the queue at once.
pub async fn a_cancelled_wait_leaves_the_queue(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let held = fixture.expect_acquired("a").await;
    let call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(LONG).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    let rival = fixture.enqueue_rival("a").await;
    let started_at = boottime();
    one.cancel(&call).await;
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Cancelled");
    fixture.wait_for_queue_length("a", 1).await;
    let took = boottime() - started_at;
    assert!(took < DELAY_MAX, "{took:?} in the queue");
    fixture.expect_released(&held).await;
    let (next, _) = rival.wait_for_grant().await;
    assert_eq!(fixture.expect_holder("a").await.token, next.token());
}

/// A wait that is cancelled while its grant is in transit releases the lock.
pub async fn a_grant_that_crosses_a_cancel_is_given_back(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    let held = fixture.expect_acquired("a").await;
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(LONG).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    proxy.set_mode(ProxyMode::Delay(MESSAGE_DELAY));
    fixture.expect_released(&held).await;
    assert!(
        fixture.expect_holder("a").await.token > held.token(),
        "granted"
    );
    assert!(call.is_pending(), "the probe does not know yet");
    let started_at = boottime();
    one.cancel(&call).await;
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Cancelled");
    proxy.set_mode(ProxyMode::Forward);
    let took = fixture.wait_until_free("a").await - started_at;
    assert!(took < MESSAGE_DELAY * 3 + DELAY_MAX, "kept for {took:?}");
}

/// Cancels at random times around the grant: either the caller has the lock, or the lock is free.
pub async fn a_cancel_leaves_no_lock_behind(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let (rounds, mut granted) = (scaled_count(200, 20), 0);
    for round in 0..rounds {
        let lock = format!("lock-{round}");
        let held = fixture.expect_acquired(&lock).await;
        let call = one.start_acquire(
            &ProbeAcquire::exclusive(&lock)
                .with_ttl(LONG)
                .with_wait(WAIT),
        );
        one.wait_for_position(&call, 1).await;
        // Most grants are in transit for less than a millisecond.
        let time = Duration::from_millis(rand::thread_rng().gen_range(0..3));
        let started_at = boottime();
        tokio::join!(fixture.expect_released(&held), async {
            if !time.is_zero() {
                sleep(time).await;
            }
            one.cancel(&call).await;
        });
        let (_, outcome) = call.outcome().await;
        if let Err(failure) = outcome {
            assert_eq!(failure.class, "Cancelled");
        } else {
            granted += 1;
            assert!(one.state(&lock).await.valid && fixture.is_rejected_as_held(&lock).await);
            one.expect_released(&lock).await;
        }
        let took = fixture.wait_until_free(&lock).await - started_at;
        assert!(took < DELAY_MAX * 2, "left behind for {took:?}");
    }
    print_figures(&format!(
        "suite {:?}: cancels={rounds} granted_before={granted} left_behind=0",
        cast.one
    ));
}
