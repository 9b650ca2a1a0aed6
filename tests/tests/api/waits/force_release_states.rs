//! A lease is taken away in every state that it can be in: until when its holder trusts it, and when the
//! next one has the lock.

use std::time::Duration;

use leasehold::{Guard, LostReason};
use leasehold_tests::{
    client::Client,
    clock::boottime,
    deployment::Deployment,
    operator::{WHY, force, request, unsafely},
    proxy::{Mode, Proxy, Way},
    scale::figures,
    sdk_site::connect,
    time_left::expiry,
    trust_log::TrustLog,
    until::until,
};

const TTL: Duration = Duration::from_secs(4);
const WAIT: Duration = Duration::from_secs(30);
/// How soon a holder that can be reached hears of it.
const HEARD_WITHIN: Duration = Duration::from_millis(500);
const LOCK: &str = "a";

/// What a lease is in when it is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    /// Others wait already.
    Queued,
    /// Its broker was killed, and its holder goes on with another one.
    Moved,
    /// Its broker was killed, and its holder knows no other.
    BrokerDead,
    /// Nothing passes between its holder and the brokers.
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

    /// The holder hears of it.
    fn is_reached(self) -> bool {
        !matches!(self, Self::BrokerDead | Self::Partitioned)
    }
}

/// A lease in some state, and who waits for its lock.
struct Scene {
    deployment: Deployment,
    proxy: Proxy,
    guard: Guard,
}

impl Scene {
    async fn set(state: State) -> Self {
        let mut deployment = Deployment::start(3).await;
        let proxy = Proxy::start(deployment.brokers[0].addr()).await;
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
            State::Partitioned => proxy.set_mode(Mode::Swallow(Way::Both)),
        }
        if state == State::Moved {
            let heard = async || (guard.remaining() > TTL.mul_f64(0.8)).then_some(());
            until("it goes on with another broker", heard).await;
        }
        Self {
            deployment,
            proxy,
            guard,
        }
    }

    /// Takes the lease away by the third broker, and says when its holder stopped to trust it, why, and
    /// when the next one had the lock, all since the call.
    async fn take(self, state: State, unsafe_now: bool) -> (Duration, LostReason, Duration) {
        let Self {
            deployment,
            proxy: _proxy,
            guard,
        } = self;
        let lease_id = guard.lease_id().to_owned();
        let log = TrustLog::follow(guard.held());
        let next = connect("next", &[deployment.brokers[2].addr()]).await;
        let waits = async || {
            let granted = next.lock(LOCK).ttl(TTL).wait(WAIT).acquire().await;
            (granted.expect("its turn"), boottime())
        };
        let client = Client::new("observer", &[deployment.brokers[2].addr()], 0);
        let taking = async || {
            if state == State::Queued {
                client.queued_at(0, LOCK, 1).await;
            }
            let request = match unsafe_now {
                true => unsafely(LOCK, &lease_id),
                false => request(LOCK, &lease_id),
            };
            let called = boottime();
            let taken = force(deployment.brokers[2].admin(), request).await;
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
        (since(log.lost), log.why, since(granted_at))
    }
}

fn is_revoked(why: &LostReason) -> bool {
    matches!(why, LostReason::Revoked(message) if message.contains(WHY))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_taken_away_in_every_state_and_nobody_trusts_it_beside_the_next() {
    for state in State::ALL {
        let scene = Scene::set(state).await;
        let (lost, why, granted) = scene.take(state, false).await;
        figures(&format!(
            "force_release {state:?}: holder stops after {} ms ({why:?}), next has it after {} ms",
            lost.as_millis(),
            granted.as_millis()
        ));
        assert!(
            lost < granted,
            "{state:?}: trusted for {lost:?}, granted after {granted:?}"
        );
        assert!(
            granted < expiry(TTL) + Duration::from_secs(1),
            "{state:?}: {granted:?}"
        );
        if state.is_reached() {
            assert!(is_revoked(&why), "{state:?}: {why:?}");
            assert!(lost < HEARD_WITHIN, "{state:?}: {lost:?}");
        } else {
            assert_eq!(why, LostReason::Expired, "{state:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_release_lets_two_trust_the_lock_where_the_holder_is_not_reached() {
    for state in State::ALL {
        let scene = Scene::set(state).await;
        let (lost, why, granted) = scene.take(state, true).await;
        figures(&format!(
            "force_release {state:?}, unsafe_now: holder stops after {} ms ({why:?}), next has it after {} ms",
            lost.as_millis(),
            granted.as_millis()
        ));
        assert!(granted < Duration::from_secs(1), "{state:?}: {granted:?}");
        if state.is_reached() {
            assert!(is_revoked(&why), "{state:?}: {why:?}");
            assert!(lost < HEARD_WITHIN, "{state:?}: {lost:?}");
        } else {
            assert!(granted < lost, "{state:?}: this is what unsafe means");
        }
    }
}
