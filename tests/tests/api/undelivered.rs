//! A unary answer that its caller never reads: what it tells of is given back when the caller is gone.

use std::time::Duration;

use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    raw_http2::{
        Opening,
        frames::{END_STREAM, INITIAL_WINDOW_SIZE, call, message, reset},
    },
    scale::figures,
    until::until,
};

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const LOCK: &str = "a-lock";
const STREAM: u32 = 1;
/// A lease that is not given back lasts for longer than this test.
const TTL: Duration = Duration::from_secs(60);
/// What nobody repeats is undone a second later.
const UNDONE_WITHIN: Duration = Duration::from_secs(5);
const ANSWERED: Duration = Duration::from_secs(20);

/// The connection stays open, so that nothing but the end of the stream tells the broker.
#[tokio::test]
async fn a_call_cancelled_between_grant_and_answer_releases_the_lock() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let [caller, other] = ["caller", "other"].map(|name| Client::new(name, &[addr], 0));
    // The broker may send the head of an answer, and not one byte of its message.
    let shut = Opening {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..Opening::to(addr)
    };
    let raw = shut.open().await.expect("a place");
    let request = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let request = caller.acquire_request(&request);
    let asks = [
        call(STREAM, ACQUIRE, 0),
        message(STREAM, &request, END_STREAM),
    ]
    .concat();
    assert!(raw.send(&asks).await, "cut early: {:?}", raw.seen());
    until("the grant", async || {
        let lock = other.get_lock(LOCK).await.expect("GetLock works")?;
        (lock.holders.len() == 1).then_some(())
    })
    .await;
    let begun = raw.until(ANSWERED, |seen| seen.heads > 0).await;
    let begun = begun.unwrap_or_else(|| panic!("no answer begins: {:?}", raw.seen()));
    assert_eq!((begun.heads, begun.data), (1, 0), "it was delivered");

    assert!(raw.send(&reset(STREAM)).await, "{:?}", raw.seen());
    let cancelled = boottime();
    until("the lock is free", async || {
        let lock = other.get_lock(LOCK).await.expect("GetLock works");
        lock.is_none().then_some(())
    })
    .await;
    let took = boottime() - cancelled;
    figures(&format!(
        "undelivered: a lease whose caller was gone was given back after {} ms",
        took.as_millis()
    ));
    assert!(took < UNDONE_WITHIN, "{took:?}");
    assert!(raw.lives(ANSWERED).await, "{:?}", raw.seen());
    let now = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    other.acquire_at(0, &now).await.expect("it is free");
}
