//! The time for which Redis keeps the record of a lock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_server::lock::{CloseCommand, Owner};
use leasehold_tests::{
    redis::{connection::RedisConnection, shared_server::own_redis},
    store_fixture::lock_key,
};
use tokio_util::sync::CancellationToken;

use crate::half_state::connect;

/// Longest closure by an operator.
const CLOSED: Duration = Duration::from_secs(31 * 24 * 3_600);
/// Allowance for the time of the test.
const SLACK: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_record_is_kept_until_the_end_of_its_closure() {
    let prefix = format!("{}:", uuid::Uuid::new_v4());
    let stop = CancellationToken::new();
    let store = connect(&prefix, &stop).await;
    let lock = lock_key("default", "frozen");
    let until = SystemTime::now() + CLOSED;
    let until = until.duration_since(UNIX_EPOCH).expect("after 1970");
    let close = CloseCommand {
        lock: lock.clone(),
        until_ms: u64::try_from(until.as_millis()).expect("in range"),
        operator: Owner::default(),
    };
    let closed = store.close(&close).await.expect("it answers");
    assert!(closed.is_some(), "the lock is closed");
    let mut raw = RedisConnection::open(own_redis()).await.expect("connect");
    let key = format!("{prefix}{}", lock.encoded());
    let pttl = raw.must(&["PTTL", &key]).await.integer();
    let pttl = Duration::from_millis(pttl.try_into().expect("the key expires"));
    assert!(pttl >= CLOSED - SLACK, "the record is kept for {pttl:?}");
    stop.cancel();
}
