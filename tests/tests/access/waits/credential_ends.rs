//! What is held with a credential ends with it, whether that runs out or is taken away: the holder is told,
//! and the locks are free at `E`.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::{collections::BTreeSet, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, LeaseEndReason, LeaseEnded, hold_response::Message as Told,
};
use leasehold_tests::{
    callers::{LEEWAY, Shows},
    client::AcquireCall,
    clock::boottime,
    locked_site::{LockedSite, WORKER},
    scale::{count, figures},
    stream_client::StreamClient,
    time_left::{expiry, spread},
    until::until,
};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

const TTL: Duration = Duration::from_secs(4);
const LIFE: Duration = Duration::from_secs(5);
const OLD: &str = "the old token, 7f0c";
const NEW: &str = "the new token, 91be";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_is_taken_away() {
    let site = LockedSite::start(&[OLD, NEW]).await;
    let mut streams = Vec::new();
    for token in [OLD, NEW] {
        let channel = site.channel().await;
        let mut stream = StreamClient::open_as(channel, Shows(Some(token.to_owned()))).await;
        let call = AcquireCall::new(token, TTL, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        let lease = stream.granted(call).await;
        stream.beat(TTL / 4);
        streams.push((stream, lease.lease_id));
    }
    let (mut stays, _) = streams.pop().expect("two");
    let (mut ends, lease_id) = streams.pop().expect("two");
    let removed = boottime();
    site.doors.set_tokens(&[(WORKER, NEW)]);
    let ended = end_of(&mut ends).await;
    let after = boottime() - removed;
    assert_eq!(ended.lease_id, lease_id);
    assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
    assert!(ends.ends_by_itself().await, "and the stream with it");
    figures(&format!(
        "credential_ends: told {} ms after its token was removed",
        after.as_millis()
    ));
    // Whoever shows the other token has nothing to do with it.
    let next = stays.heard(|told| matches!(told, Told::Ack(_)).then_some(()));
    next.await;
    let holders = async |lock: &str| {
        let state = site.judge.get_lock(lock).await.expect("GetLock works");
        state.map_or(0, |state| state.holders.len())
    };
    until("the lock is free", async || {
        (holders(OLD).await == 0).then_some(())
    })
    .await;
    assert!(boottime() - removed <= after + expiry(TTL) + Duration::from_secs(1));
    assert_eq!(holders(NEW).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_credential_a_stream_ends_and_its_locks_are_free_at_e() {
    let site = LockedSite::start(&[OLD, NEW]).await;
    let locks = count(200, 20);
    let token = living(&site);
    let opened = boottime();
    let mut stream = StreamClient::open_as(site.channel().await, Shows(Some(token))).await;
    let ttl = TTL / 2;
    let mut leases = BTreeSet::new();
    let mut next = JoinSet::new();
    for lock in 0..locks {
        let name = format!("lock-{lock}");
        let call = AcquireCall::new(&name, ttl, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        leases.insert(stream.granted(call).await.lease_id);
        let wait = AcquireCall::new(&name, ttl, LIFE * 4);
        let judge = site.judge.clone();
        next.spawn(async move {
            let granted = judge.acquire_at(0, &wait).await;
            granted.map(|_| boottime())
        });
    }
    stream.beat(ttl / 4);
    let mut renewed = boottime();
    let mut acknowledged = boottime();
    let mut told = Vec::new();
    while !leases.is_empty() {
        match stream.hear().await.expect("it tells before it ends") {
            Told::Ack(ack) => {
                renewed = stream.beat_sent(ack.sequence);
                acknowledged = boottime();
                assert!(acknowledged < opened + LIFE * 2, "renewed on and on");
            }
            Told::Ended(ended) => {
                assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
                assert!(leases.remove(&ended.lease_id), "told once");
                told.push(boottime() - opened);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(stream.ends_by_itself().await, "and the stream with them");
    let mut freed = Vec::new();
    for granted in next.join_all().await {
        let granted = granted.expect("its turn");
        // The last renewal was made between these.
        assert!(
            granted + Duration::from_millis(2) >= renewed + expiry(ttl),
            "too soon"
        );
        freed.push(granted.saturating_sub(acknowledged));
    }
    let latest = *freed.iter().max().expect("some were held");
    figures(&format!(
        "credential_ends: expired leases={locks} E={}ms freed after the last acknowledgement {}, told {} after the opening of {}ms",
        expiry(ttl).as_millis(),
        spread(freed),
        spread(told.clone()),
        LIFE.as_millis()
    ));
    assert!(latest <= expiry(ttl) + Duration::from_secs(1), "{latest:?}");
    let first = told.first().expect("some were held");
    // Times in tokens are whole seconds.
    assert!(*first + Duration::from_secs(1) >= LIFE && *first <= LIFE + Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_with_the_next_token_of_its_caller_only() {
    let site = LockedSite::start(&[OLD]).await;
    let opened = boottime();
    let shows = Shows(Some(living(&site)));
    let mut stream = StreamClient::open_as(site.channel().await, shows).await;
    let call = AcquireCall::new("a", TTL / 2, Duration::ZERO);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.granted(call).await;
    // Good, and another caller's.
    let call = stream.refresh(OLD).await;
    let refused = stream.refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::Unauthenticated);
    stream.beat(TTL / 8);
    sleep((opened + LIFE / 2).saturating_sub(boottime())).await;
    let refreshed = boottime();
    let call = stream.refresh(&living(&site)).await;
    let done = stream.heard(|told| match told {
        Told::Done(done) => Some(done.call_id),
        Told::Ack(_) => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(done.await, call);
    let ended = end_of(&mut stream).await;
    let lived = boottime() - refreshed;
    assert_eq!(ended.lease_id, lease.lease_id);
    assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
    // Times in tokens are whole seconds.
    let second = Duration::from_secs(1);
    assert!(
        lived + second >= LIFE && lived <= LIFE + second,
        "{lived:?}"
    );
}

/// The end of the one lease of a stream that beats.
async fn end_of(stream: &mut StreamClient) -> LeaseEnded {
    let ended = stream.heard(|told| match told {
        Told::Ended(ended) => Some(ended),
        Told::Ack(_) => None,
        other => panic!("{other:?}"),
    });
    let ended = timeout(LIFE * 2, ended).await;
    ended.expect("not renewed on and on")
}

/// A signed token of the worker's that is good for so long.
fn living(site: &LockedSite) -> String {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("short");
    let good_for = seconds(LIFE) - seconds(LEEWAY);
    site.doors.issuer.token(WORKER, good_for, json!({}))
}
