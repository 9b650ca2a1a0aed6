//! A stream whose broker has not received the message that a lease has moved to another broker.

use std::time::Duration;

use leasehold_server::{
    broker::lease_stream::{StreamCommand, StreamEvent},
    lock::PresentedLease,
    store::{Store as _, memory::Memory},
    trace::Span,
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{LocalStream, references, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};

#[tokio::test]
async fn the_close_of_a_stream_that_a_lease_has_left_unnoticed_frees_nothing() {
    let memory = Memory::new(Duration::ZERO);
    let stores = [(); 2].map(|()| DelayedStore::connect(&memory));
    let brokers = stores.clone().map(|store| unlimited_broker(store));
    let [mut old, mut new] = [0, 1].map(|index| LocalStream::open(&brokers[index]));
    let lock = lock_key("default", "moved");
    let call = waiting_call(&lock, Duration::from_secs(30));
    let ttl = call.ttl;
    old.acquire(1, call);
    let lease = old.granted(1).await;

    stores[0].set_losing_events(true);
    new.send(StreamCommand::Attach {
        call_id: 1,
        lease: PresentedLease {
            lease_id: lease.lease_id,
            lease_token: lease.lease_token.clone(),
            ttl,
            locks: references(&lease),
        },
        number: 2,
        span: Span::default(),
    });
    match new.event().await {
        Some(StreamEvent::Attached { lease_id, .. }) => assert_eq!(lease_id, lease.lease_id),
        event => panic!("{event:?}"),
    }
    old.close().await;
    let state = stores[1].get(&lock).await.expect("it answers");
    let holders = state.expect("it is held").holders;
    assert_eq!(holders[0].fencing_token, lease.locks[0].grant.fencing_token);
}
