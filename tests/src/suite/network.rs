//! Scenarios of networks that drop, delay and cut the traffic between a probe and its broker.

use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    messages::{CLOCK_STEP, ProbeAcquire},
    scenario::{DELAY_MAX, LOSS_DELAY_MAX, ScenarioFixture, TTL, safety_margin},
};
use crate::{
    clock::boottime,
    net::http2_proxy::{DATA, Direction, Http2Proxy, ProxyMode},
    scale::print_figures,
    until::until,
};

const DIRECTIONS: [Direction; 3] = [Direction::Both, Direction::ToBroker, Direction::ToClient];
/// Time after which messages that were in transit when the network failed have arrived.
const IN_TRANSIT_TIME: Duration = Duration::from_millis(300);
/// Delay of acknowledgements. It is longer than the difference between the expiry in the store and
/// the validity of the client. It is shorter than the validity left from the previous
/// acknowledgement, and than the 2 s after which gRPC closes a connection without a ping response.
const DELAY: Duration = Duration::from_millis(1_800);
/// Time after which a heartbeat that was due has been sent.
const HEARTBEAT_SENT_WITHIN: Duration = Duration::from_millis(100);
const LONG_TTL: Duration = Duration::from_millis(4_200);

/// A holder that is cut off in any direction reports its loss before the next grant. The lock stays
/// lost when the network is back.
pub async fn a_partition_is_noticed_before_the_next_grant(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    join_all(DIRECTIONS.map(|way| check_partition(&fixture, way))).await;
}

async fn check_partition(fixture: &ScenarioFixture, way: Direction) {
    let lock = format!("{way:?}");
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    one.expect_acquired(&ProbeAcquire::exclusive(&lock).with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival(&lock).await;
    sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..0.5))).await;
    assert!(one.state(&lock).await.valid);
    proxy.set_mode(ProxyMode::DropFrames(way));
    let swallowed = boottime();
    let hand_over = fixture.wait_for_hand_over(rival).await;
    let loss = one.loss(&lock).expect("notified before the next has it");
    assert_eq!(loss.reason, "Expired");
    assert!(
        loss.at < hand_over.previous_expiry.earliest,
        "too late: {loss:?} {hand_over:?}"
    );
    let trusted = loss.at.saturating_sub(swallowed);
    let limit = IN_TRANSIT_TIME + TTL - safety_margin(TTL) + LOSS_DELAY_MAX;
    assert!(trusted <= limit, "trusted for {trusted:?}");
    hand_over.assert_granted_at_expiry();
    assert!(proxy.dropped_frames() > 0, "nothing was swallowed");
    print_figures(&format!(
        "suite {:?}: partition {way:?} trusted_on={}ms before_the_next_grant={}ms",
        fixture.languages.one,
        trusted.as_millis(),
        (hand_over.granted_at - loss.at).as_millis()
    ));

    proxy.set_mode(ProxyMode::Forward);
    proxy.close_connections().await;
    one.expect_acquired(&ProbeAcquire::exclusive(&format!("{lock}-another")))
        .await;
    assert!(!one.state(&lock).await.valid, "taken again silently");
    let released = one.release(&lock).await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(
        fixture.expect_holder(&lock).await.token,
        hand_over.held.token()
    );
}

/// Validity counts from the sending of a heartbeat, however late its acknowledgement arrives.
pub async fn validity_counts_from_the_sending(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(LONG_TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let messages = proxy.frames_from_broker(DATA);
    proxy.set_mode(ProxyMode::Delay(DELAY));
    // The next acknowledgement is the last one that arrives.
    let acknowledged_at = until("an acknowledgement", async || {
        (proxy.frames_from_broker(DATA) > messages).then(boottime)
    });
    let acknowledged_at = acknowledged_at.await;
    proxy.set_mode(ProxyMode::DropFrames(Direction::Both));
    let hand_over = fixture.wait_for_hand_over(rival).await;
    let loss = one.loss("a").expect("notified before the next has it");
    print_figures(&format!(
        "suite {:?}: acknowledged {}ms late, trusted_on={}ms before_the_next_grant={}ms",
        cast.one,
        DELAY.as_millis(),
        loss.at.saturating_sub(acknowledged_at).as_millis(),
        hand_over.granted_at.saturating_sub(loss.at).as_millis()
    ));
    assert!(
        loss.at < hand_over.previous_expiry.earliest,
        "too late: {loss:?} {hand_over:?}"
    );
    let end = acknowledged_at + LONG_TTL - safety_margin(LONG_TTL);
    assert!(loss.at <= end + LOSS_DELAY_MAX, "{loss:?}");
    assert!(
        loss.at + DELAY_MAX > end,
        "the late one did not count: {loss:?}"
    );
    // Counted from its receipt, the lease would be valid for too long.
    assert!(
        acknowledged_at + DELAY + LONG_TTL - safety_margin(LONG_TTL)
            > hand_over.previous_expiry.latest
    );
    hand_over.assert_granted_at_expiry();
}

/// The validity of a late grant to a waiter counts from a heartbeat before the grant.
pub async fn a_late_grant_is_valid_for_less(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    let held = fixture.expect_acquired("a").await;
    let ttl = TTL * 5;
    let call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(ttl));
    one.wait_for_position(&call, 1).await;
    proxy.set_mode(ProxyMode::Delay(DELAY));
    let started_at = boottime();
    fixture.expect_released(&held).await;
    let released_at = boottime();
    let lease = call.lease().await.expect("its turn");
    assert!(
        lease.at + CLOCK_STEP >= started_at + DELAY,
        "it was not late: {lease:?}"
    );
    let until = lease.at + Duration::from_secs_f64(lease.remaining_ms / 1e3);
    let most = released_at + ttl - safety_margin(ttl);
    assert!(
        until <= most + LOSS_DELAY_MAX,
        "{:?} too long",
        until - most
    );
    assert!(lease.valid && until > lease.at + ttl / 4, "{lease:?}");
}

/// A grant that arrives just after a heartbeat, when half of its validity has passed, is renewed
/// before the end of the validity.
pub async fn a_late_grant_is_renewed_in_time(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let broker = &fixture.deployment.brokers[0];
    let proxy = Http2Proxy::start(broker.addr()).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    one.expect_acquired(&ProbeAcquire::exclusive("kept").with_ttl(TTL * 4))
        .await;
    let messages = proxy.frames_from_broker(DATA);
    until("an acknowledgement", async || {
        (proxy.frames_from_broker(DATA) > messages).then_some(())
    })
    .await;
    let interval = TTL / 3;
    // The heartbeats that the call needs follow one and two intervals after the heartbeat of the
    // acknowledgement.
    sleep(interval * 7 / 10).await;
    broker.process().pause().await;
    let call = one.start_acquire(&ProbeAcquire::exclusive("late").with_ttl(TTL));
    sleep(interval * 13 / 10 + HEARTBEAT_SENT_WITHIN).await;
    broker.process().resume();
    let lease = call.lease().await.expect("it is free");
    sleep(TTL).await;
    let state = one.state("late").await;
    assert!(
        state.valid && one.loss("late").is_none(),
        "{lease:?} {state:?}"
    );
    let held = fixture.expect_holder("late").await;
    assert_eq!(held.token, lease.token());
    fixture.wait_until_renewed("late", &held).await;
}

/// The repeat of a call whose grant was lost returns the same lease with the same token.
pub async fn a_lost_grant_is_asked_for_again(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("a").with_ttl(TTL * 5));
    let granted = until("granted", async || fixture.holder("a").await).await;
    assert!(call.is_pending(), "the probe cannot know");
    proxy.set_mode(ProxyMode::Forward);
    proxy.close_connections().await;
    let lease = call.lease().await.expect("it was free");
    assert_eq!(
        (lease.lease_id.clone(), lease.token()),
        (granted.lease_id, granted.token)
    );
    let state = fixture.state("a").await.expect("it is held");
    assert_eq!(
        (state.last_fencing_token, state.queue_length),
        (lease.token(), 0)
    );
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None);
}

/// A release whose reply was lost is repeated. It succeeds, and the next holder keeps the lock.
pub async fn a_lost_release_is_repeated_without_harm(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[proxy.addr()]).await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 5))
        .await;
    proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
    let started_at = boottime();
    let mut call = one.start_command_with("release", json!({"lease": "a"}));
    fixture.wait_until_free("a").await;
    assert!(call.is_pending(), "the probe cannot know");
    let next = fixture.expect_acquired("a").await;
    proxy.set_mode(ProxyMode::Forward);
    proxy.close_connections().await;
    let (at, released) = call.outcome().await;
    released.expect("it was released");
    assert!(at < started_at + DELAY_MAX * 2, "{:?}", at - started_at);
    assert_eq!(fixture.expect_holder("a").await.token, next.token());
    fixture.expect_released(&next).await;
}
