//! Revocation of a lease in every state: the end of the holder's validity, and the time of the next
//! grant.

use std::time::Duration;

use leasehold::{Guard, LostReason};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        operator::{REASON, force_release, force_release_request, unsafe_force_release_request},
        unary::Client,
    },
    clock::boottime,
    load::store_expiry::store_expiry,
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    scale::print_figures,
    sdk::{proxied_client::connect, validity_log::ValidityLog},
    until::until,
};

const TTL: Duration = Duration::from_secs(4);
const WAIT: Duration = Duration::from_secs(30);
/// Time within which a connected holder receives the revocation.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(500);
const LOCK: &str = "a";

/// State of a lease when it is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    /// Other callers are queued for the lock.
    Queued,
    /// The broker of the lease was killed, and its holder has moved to another broker.
    Moved,
    /// The broker of the lease was killed, and its holder has no other endpoint.
    BrokerDead,
    /// No data passes between the holder and the brokers.
    Partitioned,
}

impl State {
    const ALL: [Self; 5] = [
        Self::Held,
        Self::Queued,
        Self::Moved,
        Self::BrokerDead,
        Self::Partitioned,
    ];

    /// Returns true if the holder receives the revocation.
    fn is_reached(self) -> bool {
        !matches!(self, Self::BrokerDead | Self::Partitioned)
    }
}

/// A lease in one of the states.
struct LeaseInState {
    deployment: Deployment,
    proxy: Http2Proxy,
    guard: Guard,
}

impl LeaseInState {
    async fn set(state: State) -> Self {
        let mut deployment = Deployment::start(3).await;
        let proxy = Http2Proxy::start(deployment.brokers[0].addr()).await;
        let mut known = vec![proxy.addr()];
        if state == State::Moved {
            known.push(deployment.brokers[1].addr());
        }
        let holder = connect("holder", &known).await;
        let guard = holder.lock(LOCK).ttl(TTL).acquire().await;
        let guard = guard.expect("it is free");
        match state {
            State::Held | State::Queued => {}
            State::Moved | State::BrokerDead => deployment.brokers[0].kill().await,
            State::Partitioned => proxy.set_mode(ProxyMode::DropFrames(Direction::Both)),
        }
        if state == State::Moved {
            let renewed_again = async || (guard.remaining() > TTL.mul_f64(0.8)).then_some(());
            until("it goes on with another broker", renewed_again).await;
        }
        Self {
            deployment,
            proxy,
            guard,
        }
    }

    /// Revokes the lease through the third broker. Returns the end of the holder's validity, the
    /// reason of the loss, and the time of the next grant. Both times count from the call.
    async fn revoke(self, state: State, unsafe_now: bool) -> (Duration, LostReason, Duration) {
        let Self {
            deployment,
            proxy: _proxy,
            guard,
        } = self;
        let lease_id = guard.lease_id().to_owned();
        let log = ValidityLog::record_until_lost(guard.held());
        let next = connect("next", &[deployment.brokers[2].addr()]).await;
        let waits = async || {
            let granted = next.lock(LOCK).ttl(TTL).wait(WAIT).acquire().await;
            (granted.expect("its turn"), boottime())
        };
        let client = Client::new("observer", &[deployment.brokers[2].addr()], 0);
        let taking = async || {
            if state == State::Queued {
                client.wait_for_queue_length_at(0, LOCK, 1).await;
            }
            let request = match unsafe_now {
                true => unsafe_force_release_request(LOCK, &lease_id),
                false => force_release_request(LOCK, &lease_id),
            };
            let called = boottime();
            let taken = force_release(deployment.brokers[2].admin(), request).await;
            let taken = taken.expect("it is held");
            assert_eq!(taken.holder.expect("a holder").lease_id, lease_id);
            assert_eq!(taken.queue_length, i32::from(state == State::Queued));
            called
        };
        let after = async || {
            if state == State::Queued {
                tokio::join!(waits(), taking())
            } else {
                let called = taking().await;
                (waits().await, called)
            }
        };
        let (log, ((granted, granted_at), called)) = tokio::join!(log, after());
        assert!(granted.is_valid());
        let since = |at: Duration| at.saturating_sub(called);
        (since(log.lost_at), log.lost_reason, since(granted_at))
    }
}

fn is_revoked(reason: &LostReason) -> bool {
    matches!(reason, LostReason::Revoked(message) if message.contains(REASON))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_revoked_in_every_state_without_an_overlap_with_the_next_holder() {
    for state in State::ALL {
        let fixture = LeaseInState::set(state).await;
        let (lost, reason, granted) = fixture.revoke(state, false).await;
        print_figures(&format!(
            "force_release {state:?}: holder stops after {} ms ({reason:?}), next has it after {} ms",
            lost.as_millis(),
            granted.as_millis()
        ));
        assert!(
            lost < granted,
            "{state:?}: trusted for {lost:?}, granted after {granted:?}"
        );
        assert!(
            granted < store_expiry(TTL) + Duration::from_secs(1),
            "{state:?}: {granted:?}"
        );
        if state.is_reached() {
            assert!(is_revoked(&reason), "{state:?}: {reason:?}");
            assert!(lost < NOTIFIED_WITHIN, "{state:?}: {lost:?}");
        } else {
            assert_eq!(reason, LostReason::Expired, "{state:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_release_overlaps_if_the_holder_is_unreachable() {
    for state in State::ALL {
        let fixture = LeaseInState::set(state).await;
        let (lost, reason, granted) = fixture.revoke(state, true).await;
        print_figures(&format!(
            "force_release {state:?}, unsafe_now: holder stops after {} ms ({reason:?}), next has it after {} ms",
            lost.as_millis(),
            granted.as_millis()
        ));
        assert!(granted < Duration::from_secs(1), "{state:?}: {granted:?}");
        if state.is_reached() {
            assert!(is_revoked(&reason), "{state:?}: {reason:?}");
            assert!(lost < NOTIFIED_WITHIN, "{state:?}: {lost:?}");
        } else {
            assert!(granted < lost, "{state:?}: this is what unsafe means");
        }
    }
}
