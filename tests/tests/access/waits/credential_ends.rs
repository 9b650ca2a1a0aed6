//! Leases end with the credential under which they were acquired, whether it expires or is removed.
//! The holder is notified, and the locks are free at the expiry `E`.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::{collections::BTreeSet, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, LeaseEndReason, LeaseEnded, hold_response::Message as Told,
};
use leasehold_tests::{
    access::{
        files_and_callers::{BearerTokenInterceptor, TOKEN_LEEWAY},
        mutual_tls_fixture::{MutualTlsFixture, WORKER},
    },
    client::{stream::StreamClient, unary::AcquireCall},
    clock::boottime,
    load::store_expiry::{format_spread, store_expiry},
    scale::{print_figures, scaled_count},
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
async fn a_stream_ends_when_its_token_is_removed() {
    let fixture = MutualTlsFixture::start(&[OLD, NEW]).await;
    let mut streams = Vec::new();
    for token in [OLD, NEW] {
        let channel = fixture.channel().await;
        let mut stream = StreamClient::open_with_interceptor(
            channel,
            BearerTokenInterceptor(Some(token.to_owned())),
        )
        .await;
        let call = AcquireCall::new(token, TTL, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        let lease = stream.expect_granted(call).await;
        stream.start_heartbeats(TTL / 4);
        streams.push((stream, lease.lease_id));
    }
    let (mut stays, _) = streams.pop().expect("two");
    let (mut ends, lease_id) = streams.pop().expect("two");
    let removed = boottime();
    fixture.access_files.set_tokens(&[(WORKER, NEW)]);
    let ended = wait_for_end(&mut ends).await;
    let after = boottime() - removed;
    assert_eq!(ended.lease_id, lease_id);
    assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
    assert!(ends.is_ended_by_broker().await, "and the stream with it");
    print_figures(&format!(
        "credential_ends: notified {} ms after its token was removed",
        after.as_millis()
    ));
    // A caller with the other token is not affected.
    let next = stays.wait_for(|responses| matches!(responses, Told::Ack(_)).then_some(()));
    next.await;
    let holders = async |lock: &str| {
        let state = fixture
            .observer
            .get_lock(lock)
            .await
            .expect("GetLock works");
        state.map_or(0, |state| state.holders.len())
    };
    until("the lock is free", async || {
        (holders(OLD).await == 0).then_some(())
    })
    .await;
    assert!(boottime() - removed <= after + store_expiry(TTL) + Duration::from_secs(1));
    assert_eq!(holders(NEW).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_credential_a_stream_ends_and_its_locks_are_free_at_e() {
    let fixture = MutualTlsFixture::start(&[OLD, NEW]).await;
    let locks = scaled_count(200, 20);
    let token = short_lived_token(&fixture);
    let opened = boottime();
    let mut stream = StreamClient::open_with_interceptor(
        fixture.channel().await,
        BearerTokenInterceptor(Some(token)),
    )
    .await;
    let ttl = TTL / 2;
    let mut leases = BTreeSet::new();
    let mut next = JoinSet::new();
    for lock in 0..locks {
        let name = format!("lock-{lock}");
        let call = AcquireCall::new(&name, ttl, Duration::ZERO);
        let call = stream.acquire(&call, 1).await;
        leases.insert(stream.expect_granted(call).await.lease_id);
        let wait = AcquireCall::new(&name, ttl, LIFE * 4);
        let observer = fixture.observer.clone();
        next.spawn(async move {
            let granted = observer.acquire_at(0, &wait).await;
            granted.map(|_| boottime())
        });
    }
    stream.start_heartbeats(ttl / 4);
    let mut renewed = boottime();
    let mut acknowledged = boottime();
    let mut responses = Vec::new();
    while !leases.is_empty() {
        match stream
            .next_lease_message()
            .await
            .expect("it reports the end first")
        {
            Told::Ack(ack) => {
                renewed = stream.heartbeat_sent_at(ack.sequence);
                acknowledged = boottime();
                assert!(acknowledged < opened + LIFE * 2, "renewed on and on");
            }
            Told::Ended(ended) => {
                assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
                assert!(leases.remove(&ended.lease_id), "notified once");
                responses.push(boottime() - opened);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        stream.is_ended_by_broker().await,
        "and the stream with them"
    );
    let mut freed = Vec::new();
    for granted in next.join_all().await {
        let granted = granted.expect("its turn");
        // The last renewal happened between `renewed` and `acknowledged`.
        assert!(
            granted + Duration::from_millis(2) >= renewed + store_expiry(ttl),
            "too soon"
        );
        freed.push(granted.saturating_sub(acknowledged));
    }
    let latest = *freed.iter().max().expect("some were held");
    print_figures(&format!(
        "credential_ends: expired leases={locks} E={}ms freed after the last acknowledgement {}, notified {} after the opening of {}ms",
        store_expiry(ttl).as_millis(),
        format_spread(freed),
        format_spread(responses.clone()),
        LIFE.as_millis()
    ));
    assert!(
        latest <= store_expiry(ttl) + Duration::from_secs(1),
        "{latest:?}"
    );
    let first = responses.first().expect("some were held");
    // Times in tokens have a resolution of one second.
    assert!(*first + Duration::from_secs(1) >= LIFE && *first <= LIFE + Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_only_with_the_next_token_of_its_caller() {
    let fixture = MutualTlsFixture::start(&[OLD]).await;
    let opened = boottime();
    let interceptor = BearerTokenInterceptor(Some(short_lived_token(&fixture)));
    let mut stream =
        StreamClient::open_with_interceptor(fixture.channel().await, interceptor).await;
    let call = AcquireCall::new("a", TTL / 2, Duration::ZERO);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.expect_granted(call).await;
    // The token is valid, but belongs to another caller.
    let call = stream.refresh_credential(OLD).await;
    let refused = stream.expect_refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::Unauthenticated);
    stream.start_heartbeats(TTL / 8);
    sleep((opened + LIFE / 2).saturating_sub(boottime())).await;
    let refreshed = boottime();
    let call = stream
        .refresh_credential(&short_lived_token(&fixture))
        .await;
    let done = stream.wait_for(|responses| match responses {
        Told::Done(done) => Some(done.call_id),
        Told::Ack(_) => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(done.await, call);
    let ended = wait_for_end(&mut stream).await;
    let lived = boottime() - refreshed;
    assert_eq!(ended.lease_id, lease.lease_id);
    assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
    // Times in tokens have a resolution of one second.
    let second = Duration::from_secs(1);
    assert!(
        lived + second >= LIFE && lived <= LIFE + second,
        "{lived:?}"
    );
}

/// Waits for the end of the only lease of a stream with heartbeats.
async fn wait_for_end(stream: &mut StreamClient) -> LeaseEnded {
    let ended = stream.wait_for(|responses| match responses {
        Told::Ended(ended) => Some(ended),
        Told::Ack(_) => None,
        other => panic!("{other:?}"),
    });
    let ended = timeout(LIFE * 2, ended).await;
    ended.expect("not renewed on and on")
}

/// Returns a signed token of the worker that expires after [`LIFE`].
fn short_lived_token(fixture: &MutualTlsFixture) -> String {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("short");
    let good_for = seconds(LIFE) - seconds(TOKEN_LEEWAY);
    fixture
        .access_files
        .issuer
        .token(WORKER, good_for, json!({}))
}
