//! How long one command keeps Redis from everybody else, with as many holders and waiters as a lock can have.

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use futures::stream::{StreamExt as _, iter};
use leasehold_server::lock::{Acquire, Mode, WAITERS_MAX, expiry_ms};
use leasehold_tests::{
    redis_connection::RedisConnection,
    scale::figures,
    shared_redis::shared_redis,
    world::{Start, TTL_MS, World, with_mode},
};

/// As many as a lock can have.
const HOLDERS: u32 = 1_000;
const AT_ONCE: usize = 64;
/// The number of calls that the reference script [`CALLS`] makes. A command may block Redis for at most the time of that script.
const CALLS_MAX: &str = "10000";
/// A script of known cost, which is measured on the same Redis as the commands.
const CALLS: &str = "for call = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1], call) end";
/// What else runs on the machine may stop Redis in the middle of a script, but hardly each time.
const ROUNDS: usize = 3;
/// From how many microseconds on Redis logs a command, and how many it keeps: all of a behaviour.
const SLOW_LOG: [(&str, &str); 2] = [
    ("slowlog-log-slower-than", "100"),
    ("slowlog-max-len", "20000"),
];
/// How long that Redis may take to take a setting back.
const RESTORED_WITHIN: Duration = Duration::from_secs(5);

/// The slow commands of the shared Redis, which logs more of them until this is dropped.
struct SlowLog {
    /// Its settings as they were.
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

    /// Without a runtime, which may be about to end.
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

fn taking(call: Acquire, permits: u32, limit: u32) -> Acquire {
    with_mode(call, Mode::Semaphore { permits, limit })
}

async fn fill(world: &World) {
    let calls = (0..HOLDERS).map(|_| taking(world.call(), 1, HOLDERS));
    let granted = iter(calls).map(async |call| drop(world.granted(0, &call).await));
    granted.buffer_unordered(AT_ONCE).count().await;
}

/// The longest command since the log was reset.
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

/// Asserts that in at least one round the longest command of a behaviour takes less time than the reference script.
async fn measured(what: &str, behaviour: impl AsyncFn(&World)) {
    let least = Cell::new(f64::INFINITY);
    for _ in 0..ROUNDS {
        World::redis(Start::Trusted, async |world| {
            let mut raw = RedisConnection::open(shared_redis())
                .await
                .expect("it runs");
            let _log = SlowLog::begin(&mut raw).await;
            let allowed = longest_allowed(&mut raw).await;
            behaviour(world).await;
            let took = longest(&mut raw).await;
            figures(&format!(
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
    measured("touch of 1,000 holders", async |world| {
        fill(world).await;
        assert_eq!(world.touch(0).await.held.len(), 1_000);
    })
    .await;
}

/// Runs alone: it measures how long Redis is blocked when 1,000 leases of a lock end at the same time.
#[tokio::test]
async fn expiries_do_not_block_redis() {
    measured("1,000 expiries", async |world| {
        fill(world).await;
        world.advance_ms(expiry_ms(TTL_MS)).await;
        let mut touches = 0;
        while world.get().await.is_some_and(|lock| lock.holder_count > 0) {
            world.touch(0).await;
            touches += 1;
            assert!(touches < 100, "they end");
        }
    })
    .await;
}

/// Runs alone: it measures how long Redis is blocked by a limit that 10,000 waiters do not fit in, and by refusing them.
#[tokio::test]
async fn lowering_a_limit_does_not_block_redis() {
    measured("a limit below 10,000 waiters", async |world| {
        world.granted(0, &taking(world.call(), 10, 10)).await;
        let waiters = (0..WAITERS_MAX).map(|_| taking(world.waiting(), 5, 10));
        let queued = iter(waiters).map(async |call| {
            world.queued(1, &call).await;
        });
        queued.buffer_unordered(AT_ONCE).count().await;
        assert_eq!(world.set_limit(0, 3).await, 10);
        world.touch(1).await;
    })
    .await;
}
