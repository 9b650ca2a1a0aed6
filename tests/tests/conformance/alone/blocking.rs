//! Time for which one command blocks Redis, with as many holders and waiters as a lock can have.

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use futures::stream::{StreamExt as _, iter};
use leasehold_server::lock::{AcquireCommand, Mode, WAITERS_MAX, expiry_ms};
use leasehold_tests::{
    redis::{connection::RedisConnection, shared_server::shared_redis},
    scale::print_figures,
    store_fixture::{InitialState, StoreFixture, TTL_MS, with_mode},
};

/// Maximum number of holders of a lock.
const HOLDERS: u32 = 1_000;
const AT_ONCE: usize = 64;
/// Number of calls that the reference script [`CALLS`] makes. A command may block Redis for at most
/// the time of that script.
const CALLS_MAX: &str = "10000";
/// A script of known cost, which is measured on the same Redis as the commands.
const CALLS: &str = "for call = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1], call) end";
/// Number of rounds, one of which must pass. Other processes may interrupt Redis during a script,
/// but rarely in every round.
const ROUNDS: usize = 3;
/// Settings of the slow log: a threshold in microseconds, and a length that holds all commands of a
/// behaviour.
const SLOW_LOG: [(&str, &str); 2] = [
    ("slowlog-log-slower-than", "100"),
    ("slowlog-max-len", "20000"),
];
/// Time limit for restoring a setting of Redis.
const RESTORED_WITHIN: Duration = Duration::from_secs(5);

/// The slow log of the shared Redis, which records more commands until the `SlowLog` is dropped.
struct SlowLog {
    /// Previous values of the settings.
    before: Vec<(&'static str, String)>,
}

impl SlowLog {
    async fn begin(raw: &mut RedisConnection) -> Self {
        let mut log = Self { before: Vec::new() };
        for (name, value) in SLOW_LOG {
            let before = raw.must(&["CONFIG", "GET", name]).await;
            log.before.push((name, before.array()[1].text().to_owned()));
            raw.must(&["CONFIG", "SET", name, value]).await;
        }
        raw.must(&["SLOWLOG", "RESET"]).await;
        log
    }

    /// Restores the settings without the async runtime, which may be shutting down.
    fn restore(&self) -> std::io::Result<()> {
        const DONE: &[u8] = b"+OK\r\n";
        let mut raw = TcpStream::connect(shared_redis())?;
        raw.set_read_timeout(Some(RESTORED_WITHIN))?;
        for (name, value) in &self.before {
            raw.write_all(format!("CONFIG SET {name} {value}\r\n").as_bytes())?;
            raw.read_exact(&mut [0; DONE.len()])?;
        }
        Ok(())
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        // A second panic would hide the first one.
        let _ = self.restore();
    }
}

fn taking(call: AcquireCommand, permits: u32, limit: u32) -> AcquireCommand {
    with_mode(call, Mode::Semaphore { permits, limit })
}

async fn fill(store_fixture: &StoreFixture) {
    let calls = (0..HOLDERS).map(|_| taking(store_fixture.call(), 1, HOLDERS));
    let granted = iter(calls).map(async |call| drop(store_fixture.expect_granted(0, &call).await));
    granted.buffer_unordered(AT_ONCE).count().await;
}

/// Returns the duration of the longest command since the slow log was reset.
async fn longest(raw: &mut RedisConnection) -> Duration {
    let log = raw.must(&["SLOWLOG", "GET", "-1"]).await;
    let took = log.array().iter().map(|entry| {
        let micros = u64::try_from(entry.array()[2].integer()).expect("a time");
        Duration::from_micros(micros)
    });
    took.max().unwrap_or_default()
}

/// Runs the reference script [`CALLS`] and returns how long it blocked Redis.
async fn longest_allowed(raw: &mut RedisConnection) -> Duration {
    let (key, calls) = ("blocking:calls", CALLS_MAX);
    raw.must(&["EVAL", CALLS, "1", key, calls]).await;
    raw.must(&["DEL", key]).await;
    let took = longest(raw).await;
    raw.must(&["SLOWLOG", "RESET"]).await;
    took
}

/// Asserts that in at least one round the longest command of a behaviour takes less time than the
/// reference script.
async fn assert_short_commands(what: &str, behaviour: impl AsyncFn(&StoreFixture)) {
    let least = Cell::new(f64::INFINITY);
    for _ in 0..ROUNDS {
        StoreFixture::redis(InitialState::Trusted, async |store_fixture| {
            let mut raw = RedisConnection::open(shared_redis())
                .await
                .expect("it runs");
            let _log = SlowLog::begin(&mut raw).await;
            let allowed = longest_allowed(&mut raw).await;
            behaviour(store_fixture).await;
            let took = longest(&mut raw).await;
            print_figures(&format!(
                "blocking: {what} longest={took:?} allowed={allowed:?}"
            ));
            least.set(least.get().min(took.as_secs_f64() / allowed.as_secs_f64()));
        })
        .await;
    }
    let least = least.get();
    assert!(
        least < 1.0,
        "{what}: {least:.2} times as long as {CALLS_MAX} calls"
    );
}

/// Runs alone: it measures how long Redis is blocked by a touch of a lock with 1,000 holders.
#[tokio::test]
async fn a_touch_does_not_block_redis() {
    assert_short_commands("touch of 1,000 holders", async |store_fixture| {
        fill(store_fixture).await;
        assert_eq!(store_fixture.touch(0).await.held.len(), 1_000);
    })
    .await;
}

/// Runs alone: it measures how long Redis is blocked when 1,000 leases of a lock end at the same
/// time.
#[tokio::test]
async fn expiries_do_not_block_redis() {
    assert_short_commands("1,000 expiries", async |store_fixture| {
        fill(store_fixture).await;
        store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
        let mut touches = 0;
        while store_fixture
            .get()
            .await
            .is_some_and(|lock| lock.holder_count > 0)
        {
            store_fixture.touch(0).await;
            touches += 1;
            assert!(touches < 100, "they end");
        }
    })
    .await;
}

/// Runs alone: it measures how long Redis is blocked by a limit that 10,000 waiters do not fit in,
/// and by refusing them.
#[tokio::test]
async fn lowering_a_limit_does_not_block_redis() {
    assert_short_commands("a limit below 10,000 waiters", async |store_fixture| {
        store_fixture
            .expect_granted(0, &taking(store_fixture.call(), 10, 10))
            .await;
        let waiters = (0..WAITERS_MAX).map(|_| taking(store_fixture.waiting_call(), 5, 10));
        let queued = iter(waiters).map(async |call| {
            store_fixture.expect_queued(1, &call).await;
        });
        queued.buffer_unordered(AT_ONCE).count().await;
        assert_eq!(store_fixture.set_limit(0, 3).await, Some(10));
        store_fixture.touch(1).await;
    })
    .await;
}
