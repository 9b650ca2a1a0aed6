//! Connections to Redis that are cut after Redis has executed the requests and before its replies
//! arrive. No request is executed twice, and no holder or waiter is left behind.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    redis::{
        connection::RedisConnection,
        rejecting_fixture::{UNAVAILABLE, error_summary},
        reply_dropping_proxy::RedisProxy,
        server::RedisServer,
    },
    scale::{print_figures, scaled_count},
};
use tonic::{Code, Status};

/// Number of calls: two that are sent alone, and six full batches of 16. A partial batch would wait
/// at the broker for the reply that is lost.
const BATCH: usize = 2 + 6 * 16;
const READERS: usize = 3;
const TTL: Duration = Duration::from_secs(10);
/// Expiry in the store for this TTL.
const EXPIRY: Duration = Duration::from_millis(12_250);
/// Time for which a record without holders and waiters is kept.
const KEEP_MS: i64 = 300_000;
const WAIT: Duration = Duration::from_secs(60);

/// A fixture of one broker behind a proxy that drops replies, and one broker with a direct
/// connection.
struct Fixture {
    careful: Client,
    observer: Client,
    proxy: RedisProxy,
    raw: RedisConnection,
    lost: AtomicUsize,
    _brokers: Vec<BrokerProcess>,
    _redis: RedisServer,
}

/// Current holders and waiters of a record.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    /// Lease and fencing token of each holder.
    holders: Vec<(String, i64)>,
    waiters: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_cut_after_they_reached_redis_are_executed_once_or_rolled_back() {
    let mut fixture = Fixture::start().await;
    let wanted = scaled_count(10_000, 500);
    let mut batch = 0;
    while fixture.lost.load(Ordering::Relaxed) < wanted {
        fixture.repeated(batch).await;
        fixture.shared(batch).await;
        fixture.queue_calls(batch).await;
        fixture.acquire_without_repeat(batch).await;
        batch += 1;
    }
    let lost = fixture.lost.load(Ordering::Relaxed);
    let undone_after = fixture.wait_until_free().await;
    let keys = fixture.every_key_ends().await;
    print_figures(&format!(
        "redis_cut: cut_after_redis={lost} batches={batch} double_leases=0 holders_left=0 \
         waiters_left=0 undone_after={}ms keys={keys} endless_keys=0",
        undone_after.as_millis()
    ));
    assert!(undone_after < EXPIRY, "{undone_after:?}");
}

impl Fixture {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let proxy = RedisProxy::start(redis.addr()).await;
        let direct = BrokerOptions::for_store(redis.url());
        direct.init_store().await;
        let brokers = vec![
            BrokerProcess::start(&BrokerOptions::for_store(proxy.url())).await,
            BrokerProcess::start(&direct).await,
        ];
        Self {
            careful: Client::new("careful", &[brokers[0].addr()], 0),
            observer: Client::new("observer", &[brokers[1].addr()], 0),
            proxy,
            raw: redis.connect().await,
            lost: AtomicUsize::new(0),
            _brokers: brokers,
            _redis: redis,
        }
    }

    /// Acquires, renews and releases locks, loses each reply, and repeats each call.
    async fn repeated(&mut self, batch: usize) {
        let calls = immediate_calls(&format!("repeated-{batch}"));
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.drop_replies("GRANTED", acquires).await;
        let mut first = Vec::new();
        for call in &calls {
            let record = self.record(&call.lock).await;
            assert_eq!((record.holders.len(), record.waiters), (1, 0), "{record:?}");
            first.extend(record.holders);
        }
        let held = self.all(calls.iter().map(|call| self.careful.acquire(call)));
        let mut held: Vec<HeldLease> = held.await;
        let identities: Vec<_> = held.iter().map(identity).collect();
        assert_eq!(
            identities, first,
            "a repeat gets the lease of the first copy"
        );
        let renews = held.iter().map(|held| self.careful.renew_at(0, held));
        self.drop_replies("EXTENDED", renews).await;
        self.all(held.iter_mut().map(|held| self.careful.renew(held)))
            .await;
        let releases = held.iter().map(|held| self.careful.release_at(0, held));
        self.drop_replies("NOW", releases).await;
        let releases = self.all(held.iter().map(|held| self.careful.release(held)));
        for released in releases.await {
            assert!(released.already_released, "it was done once");
        }
        for call in &calls {
            assert_eq!(self.record(&call.lock).await, Record::default());
        }
    }

    /// Acquires shared locks. A call that was executed twice would appear as an additional holder.
    async fn shared(&mut self, batch: usize) {
        let calls = immediate_calls(&format!("shared-{batch}")).into_iter();
        let calls = calls.map(|call| {
            let (lock, index) = call.lock.rsplit_once('-').expect("a number");
            let index: usize = index.parse().expect("a number");
            let lock = format!("{lock}-{}", index / READERS);
            AcquireCall::new(&lock, TTL, Duration::ZERO).shared()
        });
        let calls: Vec<_> = calls.collect();
        for again in 0..2 {
            let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
            self.drop_replies("GRANTED", acquires).await;
            for readers in calls.chunks(READERS) {
                let record = self.record(&readers[0].lock).await;
                let found = record.holders.len();
                assert_eq!(found, readers.len(), "after {again} repeats: {record:?}");
            }
        }
        let held = self.all(calls.iter().map(|call| self.careful.acquire(call)));
        let held = held.await;
        self.all(held.iter().map(|held| self.careful.release(held)))
            .await;
    }

    /// Queues calls. A repeated call keeps its queue position, and a call without a repeat leaves
    /// the queue.
    async fn queue_calls(&mut self, batch: usize) {
        let lock = format!("line-{batch}");
        let owner = AcquireCall::new(&lock, Duration::from_secs(60), Duration::ZERO);
        let owner = self.observer.acquire(&owner).await.expect("it is free");
        let calls: Vec<_> = (0..BATCH)
            .map(|_| AcquireCall::new(&lock, TTL, WAIT))
            .collect();
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.drop_replies("QUEUED", acquires).await;
        assert_eq!(self.record(&lock).await.waiters, BATCH);
        let (kept_calls, left_calls) = calls.split_at(BATCH / 2);
        let turns = join_all(kept_calls.iter().map(|call| async {
            let held = self.careful.acquire(call).await.expect("its turn");
            self.careful.release(&held).await.expect("the holder");
            held.token()
        }));
        let release = async {
            self.observer
                .wait_for_queue_length_at(0, &lock, BATCH - left_calls.len())
                .await;
            self.observer.release(&owner).await.expect("the holder");
        };
        let (mut tokens, ()) = tokio::join!(turns, release);
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), BATCH - left_calls.len(), "one turn each");
        assert_eq!(self.record(&lock).await, Record::default());
    }

    /// Acquires locks for callers that do not repeat their calls.
    async fn acquire_without_repeat(&mut self, batch: usize) {
        let calls = immediate_calls(&format!("given-up-{batch}"));
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.drop_replies("GRANTED", acquires).await;
        let first = self.record(&calls[0].lock).await;
        assert_eq!(first.holders.len(), 1, "Redis has granted it");
    }

    /// Sends calls to which Redis replies with this word, and drops every reply.
    async fn drop_replies<T>(
        &self,
        word: &str,
        calls: impl ExactSizeIterator<Item = impl Future<Output = Result<T, Status>>>,
    ) {
        self.connected().await;
        let count = calls.len();
        let before = self.proxy.dropped_replies(word);
        self.proxy.set_dropping(true);
        let cut = async {
            self.proxy
                .wait_for_dropped_replies(word, before + count)
                .await;
            self.proxy.close_connections().await;
            self.proxy.set_dropping(false);
        };
        let (answers, ()) = tokio::join!(join_all(calls), cut);
        for answer in answers {
            let status = answer.err().expect("the reply is lost");
            assert_eq!(error_summary(&status), UNAVAILABLE, "{status}");
        }
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits until the first broker is connected to Redis.
    async fn connected(&self) {
        let probe = || self.careful.get_lock_at(0, "nobody-s");
        while probe()
            .await
            .is_err_and(|status| status.code() != Code::NotFound)
        {}
    }

    async fn all<T>(
        &self,
        calls: impl Iterator<Item = impl Future<Output = Result<T, Status>>>,
    ) -> Vec<T> {
        let answers = join_all(calls).await.into_iter();
        answers
            .map(|answer| answer.expect("a repeat is answered"))
            .collect()
    }

    async fn record(&mut self, lock: &str) -> Record {
        let key = format!("{KEY_PREFIX}{{default:{lock}}}");
        let mut record = Record::default();
        for (field, value) in self.raw.hash_fields(&key).await {
            match field.split_once(':') {
                Some(("h", _)) if !value.is_empty() => {
                    let mut parts = value.split('|');
                    let lease = parts.next().expect("a lease").to_owned();
                    let token = parts.nth(2).expect("a token").parse();
                    record.holders.push((lease, token.expect("a number")));
                }
                Some(("w", _)) => record.waiters += 1,
                Some(_) | None => {}
            }
        }
        record
    }

    /// Waits until no record has a holder or a waiter. Returns the duration.
    async fn wait_until_free(&mut self) -> Duration {
        let started_at = boottime();
        loop {
            let keys = self.raw.keys_with_pttl(&format!("{KEY_PREFIX}{{")).await;
            let mut remaining_keys = Vec::new();
            for (key, _) in keys {
                let lock = key.trim_start_matches(&format!("{KEY_PREFIX}{{default:"));
                let record = self.record(lock.trim_end_matches('}')).await;
                if record != Record::default() {
                    remaining_keys.push((key, record));
                }
            }
            let took = boottime() - started_at;
            if remaining_keys.is_empty() {
                return took;
            }
            assert!(took < EXPIRY, "left behind: {remaining_keys:?}");
        }
    }

    /// Asserts that Redis expires every record within `KEEP_MS` and `WAIT` together. Returns the
    /// number of records.
    async fn every_key_ends(&mut self) -> usize {
        let keys = self.raw.keys_with_pttl(&format!("{KEY_PREFIX}{{")).await;
        let longest_ms = KEEP_MS + i64::try_from(WAIT.as_millis()).expect("few");
        for (key, pttl) in &keys {
            assert!((1..=longest_ms).contains(pttl), "{key} has PTTL {pttl}");
        }
        assert!(!keys.is_empty(), "locks have left records");
        keys.len()
    }
}

/// Returns a batch of calls that do not wait.
fn immediate_calls(what: &str) -> Vec<AcquireCall> {
    (0..BATCH)
        .map(|index| AcquireCall::new(&format!("{what}-{index}"), TTL, Duration::ZERO))
        .collect()
}

fn identity(held: &HeldLease) -> (String, i64) {
    (held.lease.lease_id.clone(), held.token())
}
