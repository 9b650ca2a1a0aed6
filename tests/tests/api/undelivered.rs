//! A unary response that its caller never reads. The granted lease is released when the caller
//! cancels the call.

use std::time::Duration;

use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    net::raw_http2::{
        RawHttp2Options,
        frames::{END_STREAM, INITIAL_WINDOW_SIZE, call_headers, message, reset},
    },
    scale::print_figures,
    until::until,
};

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const LOCK: &str = "a-lock";
const STREAM: u32 = 1;
/// TTL that exceeds the duration of the test, so that the lock becomes free only by a release.
const TTL: Duration = Duration::from_secs(60);
/// Upper bound of the time until the rollback, which starts 1 s after a call that is not repeated.
const ROLLED_BACK_WITHIN: Duration = Duration::from_secs(5);
const ANSWERED: Duration = Duration::from_secs(20);

/// The connection stays open, so the broker detects the cancellation only by the end of the stream.
#[tokio::test]
async fn a_call_cancelled_between_grant_and_answer_releases_the_lock() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let [caller, other] = ["caller", "other"].map(|name| Client::new(name, &[addr], 0));
    // With a window of 0 the broker can send the headers of a response, but no byte of its message.
    let shut = RawHttp2Options {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..RawHttp2Options::new(addr)
    };
    let raw = shut.open().await.expect("a place");
    let request = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let request = caller.acquire_request(&request);
    let asks = [
        call_headers(STREAM, ACQUIRE, 0),
        message(STREAM, &request, END_STREAM),
    ]
    .concat();
    assert!(raw.send(&asks).await, "cut early: {:?}", raw.received());
    until("the grant", async || {
        let lock = other.get_lock(LOCK).await.expect("GetLock works")?;
        (lock.holders.len() == 1).then_some(())
    })
    .await;
    let answered = raw.wait_until(ANSWERED, |seen| seen.headers > 0).await;
    let answered = answered.unwrap_or_else(|| panic!("no answer begins: {:?}", raw.received()));
    assert_eq!(
        (answered.headers, answered.data_bytes),
        (1, 0),
        "it was delivered"
    );

    assert!(raw.send(&reset(STREAM)).await, "{:?}", raw.received());
    let cancelled = boottime();
    until("the lock is free", async || {
        let lock = other.get_lock(LOCK).await.expect("GetLock works");
        lock.is_none().then_some(())
    })
    .await;
    let took = boottime() - cancelled;
    print_figures(&format!(
        "undelivered: a lease whose caller was gone was released after {} ms",
        took.as_millis()
    ));
    assert!(took < ROLLED_BACK_WITHIN, "{took:?}");
    assert!(raw.is_responding(ANSWERED).await, "{:?}", raw.received());
    let now = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    other.acquire_at(0, &now).await.expect("it is free");
}
