//! Scenarios of holders that exit or stall: their locks are granted at the expiry, and the holders
//! report the loss.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    messages::{CLOCK_STEP, ProbeAcquire},
    probe::Probe,
    scenario::{DELAY_MAX, LOSS_DELAY_MAX, ScenarioFixture, TTL, safety_margin},
};
use crate::{
    client::operator::{force_release, force_release_request},
    clock::boottime,
    load::store_expiry::store_expiry,
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    process::boottime_shim::BoottimeShim,
    scale::print_figures,
};

const WAIT: Duration = Duration::from_secs(60);
/// A time longer than any of these scenarios.
const LONG: Duration = Duration::from_secs(20);
const SUSPEND_TIME: Duration = Duration::from_secs(300);
/// Maximum time until the lock is free after its holder has stopped its work.
const FREED_WITHIN: Duration = Duration::from_millis(500);
/// Maximum time that an orderly exit of a program may take.
const EXIT_TIME_MAX: Duration = Duration::from_secs(2);

/// A killed holder is replaced by the next waiter when its lease expires in the store.
pub async fn a_killed_holder_is_replaced_at_the_end_of_its_time(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (mut other, one) = (
        fixture.start_other_probe().await,
        fixture.start_tested_probe().await,
    );
    let dead = other
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(TTL).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    other.kill().await;
    let (lease, ends) = fixture.watch_during("a", call.lease()).await;
    let lease = lease.expect("its turn");
    let end = ends.iter().rfind(|seen| seen.lease_id == dead.lease_id);
    let end = end.expect("it was looked at");
    assert!(
        lease.at + CLOCK_STEP >= end.earliest,
        "too soon: {lease:?} {end:?}"
    );
    assert!(
        lease.at <= end.latest + DELAY_MAX,
        "late: {lease:?} {end:?}"
    );
    assert!(lease.token() > dead.token());
}

/// A killed program of this language is replaced in the same way.
pub async fn a_lock_of_a_killed_program_is_handed_on(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let mut one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    one.kill().await;
    fixture
        .wait_for_hand_over(rival)
        .await
        .assert_granted_at_expiry();
}

/// A program that exits without a release keeps its lock until its expiry.
pub async fn an_exit_without_release_keeps_the_lock_to_its_end(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let mut one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    one.exit().await;
    fixture
        .wait_for_hand_over(rival)
        .await
        .assert_granted_at_expiry();
}

/// A program that ends normally releases all leases at once.
pub async fn a_program_that_ends_gives_its_locks_back(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let mut one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(LONG))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let started_at = boottime();
    one.close_stdin().await;
    let (_, granted) = rival.wait_for_grant().await;
    let took = granted - started_at;
    assert!(took < EXIT_TIME_MAX + DELAY_MAX, "{took:?}");
}

/// A shutdown releases all leases, ends all waits and invalidates all locks.
pub async fn a_shutdown_releases_all_leases(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let held = fixture.expect_acquired("c").await;
    for name in ["a", "b"] {
        one.expect_acquired(&ProbeAcquire::exclusive(name).with_ttl(LONG))
            .await;
    }
    let rivals = [
        fixture.enqueue_rival("a").await,
        fixture.enqueue_rival("b").await,
    ];
    let call = one.start_acquire(&ProbeAcquire::exclusive("c").with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    let started_at = boottime();
    one.run_command("shutdown", json!({})).await;
    for rival in rivals {
        let took = rival.wait_for_grant().await.1 - started_at;
        assert!(took < DELAY_MAX, "{took:?}");
    }
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Closed");
    fixture.wait_for_queue_length("c", 0).await;
    assert_eq!(one.wait_for_loss("a").await.reason, "Closed");
    assert!(!one.state("b").await.valid);
    let call = one.acquire(&ProbeAcquire::exclusive("d")).await;
    assert_eq!(call.expect_err("it is shut down").class, "Closed");
    fixture.expect_released(&held).await;
}

/// With a grace of 0 a lock is free as soon as the stream of its holder breaks.
pub async fn a_disconnect_grace_frees_sooner(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let mut one = fixture.start_tested_probe().await;
    let ask = ProbeAcquire::exclusive("a")
        .with_ttl(LONG)
        .with_duration("disconnect_grace_ms", Duration::ZERO);
    one.expect_acquired(&ask).await;
    let rival = fixture.enqueue_rival("a").await;
    let held = fixture.expect_holder("a").await;
    let started_at = boottime();
    one.kill().await;
    let (_, granted) = rival.wait_for_grant().await;
    assert!(
        granted < started_at + DELAY_MAX,
        "late: {:?}",
        granted - started_at
    );
    assert!(granted + LONG / 2 < held.earliest, "in its time");
}

/// After an expiry the lock stays closed for the delay that its holder requested.
pub async fn a_lock_delay_keeps_a_lock_closed(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let mut one = fixture.start_tested_probe().await;
    let delay = Duration::from_millis(1_500);
    one.expect_acquired(
        &ProbeAcquire::exclusive("a")
            .with_ttl(TTL)
            .with_duration("lock_delay_ms", delay),
    )
    .await;
    let rival = fixture.enqueue_rival("a").await;
    one.kill().await;
    let hand_over = fixture.wait_for_hand_over(rival).await;
    assert!(
        hand_over.granted_at >= hand_over.previous_expiry.earliest + delay,
        "too soon: {hand_over:?}"
    );
    assert!(
        hand_over.granted_at <= hand_over.previous_expiry.latest + delay + DELAY_MAX,
        "late: {hand_over:?}"
    );
}

/// After a release the lock stays closed until the end of the period that its holder requested.
pub async fn a_lock_with_at_least_stays_closed_after_its_release(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let period = TTL + Duration::from_millis(1_500);
    let asked_at = boottime();
    let ask = ProbeAcquire::exclusive("a")
        .with_ttl(TTL)
        .with_duration("at_least_ms", period);
    one.expect_acquired(&ask).await;
    let acquired_at = boottime();
    let rival = fixture.enqueue_rival("a").await;
    one.expect_released("a").await;
    let (_, granted_at) = rival.wait_for_grant().await;
    assert!(
        granted_at + CLOCK_STEP >= asked_at + period,
        "too soon: {:?}",
        granted_at - asked_at
    );
    assert!(
        granted_at <= acquired_at + period + DELAY_MAX,
        "late: {:?}",
        granted_at - acquired_at
    );
}

/// A lock is lost at the end of its max hold, and its holder is notified before the next grant.
pub async fn a_lock_is_held_no_longer_than_max_hold(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let most = TTL * 2;
    let lease = one
        .expect_acquired(
            &ProbeAcquire::exclusive("a")
                .with_ttl(TTL)
                .with_duration("max_hold_ms", most),
        )
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let hand_over = fixture.wait_for_hand_over(rival).await;
    let loss = one.loss("a").expect("notified before");
    assert!(["MaxHold", "Expired"].contains(&&*loss.reason), "{loss:?}");
    let held = loss.at - lease.at;
    assert!(held > TTL && held <= most + LOSS_DELAY_MAX, "{held:?}");
    assert!(loss.at < hand_over.granted_at, "{loss:?} {hand_over:?}");
    hand_over.assert_granted_at_expiry();
}

/// An operator revokes a lease. The lock is free as soon as its holder has stopped, and the holder
/// is notified of the loss.
pub async fn a_revoked_lock_is_released_when_its_holder_stops(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(LONG))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let admin = fixture.deployment.brokers[0].admin();
    let forced = force_release(admin, force_release_request("a", &lease.lease_id)).await;
    forced.expect("an operator may");
    assert_eq!(one.wait_for_loss("a").await.reason, "Revoked");
    assert!(!rival.is_granted(), "its holder has not stopped yet");
    let stopped = boottime();
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Revoked"))
    );
    let took = rival.wait_for_grant().await.1 - stopped;
    print_figures(&format!(
        "suite {:?}: taken away free_after={}ms",
        cast.one,
        took.as_millis()
    ));
    assert!(took < FREED_WITHIN, "{took:?}");
}

/// A process that was stopped for longer than its validity reports the loss before any other reply.
pub async fn a_stopped_process_reports_its_loss_before_any_reply(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    one.process().pause().await;
    // No message of the broker must wait in the sockets of the probe.
    proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
    let hand_over = fixture.wait_for_hand_over(rival).await;
    hand_over.assert_granted_at_expiry();
    assert_eq!(one.process().state(), 'T', "it is stopped all the time");
    // The command is in the input of the probe when the process resumes.
    let state = one.start_state("a");
    let resumed = boottime();
    one.process().resume();
    let state = state.lease().await.expect("a look");
    let was_silent = state.at + CLOCK_STEP > resumed;
    assert!(was_silent, "it has said something while it was stopped");
    assert!(!state.valid && state.remaining_ms == 0.0, "{state:?}");
    assert_eq!(state.lost_reason.as_deref(), Some("Expired"));
    let notified_after = one.wait_for_loss("a").await.at.saturating_sub(resumed);
    assert!(
        notified_after < DELAY_MAX,
        "notified after {notified_after:?}"
    );
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Expired"))
    );
    assert_eq!(
        fixture.expect_holder("a").await.token,
        hand_over.held.token()
    );
}

/// A lost lock stays lost, although the store would still renew its lease. The lease expires, and a
/// release fails with the loss.
pub async fn a_loss_is_final(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    one.process().pause().await;
    // After the end of the validity, but before the expiry in the store.
    sleep(TTL - safety_margin(TTL) + Duration::from_millis(50)).await;
    let held = fixture.expect_holder("a").await;
    assert_eq!(held.lease_id, lease.lease_id, "not over in the store");
    let state = one.start_state("a");
    let resumed = boottime();
    one.process().resume();
    assert!(!state.lease().await.expect("a look").valid);
    let (next, granted) = rival.wait_for_grant().await;
    let kept = granted - resumed;
    assert!(kept <= store_expiry(TTL) + DELAY_MAX, "kept for {kept:?}");
    let state = one.state("a").await;
    assert!(!state.valid, "taken again silently: {state:?}");
    assert_eq!(state.lost_reason.as_deref(), Some("Expired"));
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(fixture.expect_holder("a").await.token, next.token());
}

/// After a suspend of the machine longer than the validity, the lock is lost as soon as the machine
/// resumes.
pub async fn a_suspend_ends_the_validity_at_once(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let shim = BoottimeShim::build().await;
    let mut command = cast.one.command();
    shim.apply(&mut command);
    let endpoint = format!("http://{}", fixture.deployment.addrs()[0]);
    let one = Probe::start_with(command, &[("LEASEHOLD_ENDPOINTS", &endpoint)]).await;
    let one = one.expect("a broker that runs");
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(LONG))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    assert!(one.state("a").await.valid);
    let slept = boottime();
    shim.set_offset(SUSPEND_TIME);
    let loss = one.wait_for_loss("a").await;
    let notified_after = boottime() - slept;
    print_figures(&format!(
        "suite {:?}: suspend told_after={}ms",
        cast.one,
        notified_after.as_millis()
    ));
    assert!(
        notified_after <= DELAY_MAX,
        "notified after {notified_after:?}"
    );
    assert!(
        loss.at.abs_diff(slept + SUSPEND_TIME) < DELAY_MAX * 2,
        "another clock: {loss:?}"
    );
    assert!(!one.state("a").await.valid);
    assert_eq!(fixture.expect_holder("a").await.lease_id, lease.lease_id);
    assert!(!rival.is_granted());
}
