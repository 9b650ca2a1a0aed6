//! Connections to Redis that are cut after it has executed what was sent, and before its replies
//! come: nothing is done twice, and nothing is left behind.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::{AcquireCall, Client, Held},
    clock::boottime,
    redis_connection::RedisConnection,
    redis_proxy::RedisProxy,
    redis_server::RedisServer,
    refusing::{UNAVAILABLE, told},
    scale::{count, figures},
};
use tonic::{Code, Status};

/// Two calls alone, and six full runs: fewer would wait at the broker for the answer that is lost.
const BATCH: usize = 2 + 6 * 16;
const READERS: usize = 3;
const TTL: Duration = Duration::from_secs(10);
/// E of the ttl.
const EXPIRY: Duration = Duration::from_millis(12_250);
/// A record without holders and waiters is kept for so long.
const KEEP_MS: i64 = 300_000;
const WAIT: Duration = Duration::from_secs(60);

/// One broker behind a proxy that loses replies, and one that is not.
struct Site {
    careful: Client,
    observer: Client,
    proxy: RedisProxy,
    raw: RedisConnection,
    lost: AtomicUsize,
    _brokers: Vec<BrokerProcess>,
    _redis: RedisServer,
}

/// What stands in a record, as far as it is in force.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    /// Lease and fencing token of each.
    holders: Vec<(String, i64)>,
    waiters: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_cut_after_they_reached_redis_are_done_once_or_undone() {
    let mut site = Site::start().await;
    let wanted = count(10_000, 500);
    let mut batch = 0;
    while site.lost.load(Ordering::Relaxed) < wanted {
        site.repeated(batch).await;
        site.shared(batch).await;
        site.in_line(batch).await;
        site.given_up(batch).await;
        batch += 1;
    }
    let lost = site.lost.load(Ordering::Relaxed);
    let undone_after = site.nothing_is_left().await;
    let keys = site.every_key_ends().await;
    figures(&format!(
        "redis_cut: cut_after_redis={lost} batches={batch} double_leases=0 holders_left=0 \
         waiters_left=0 undone_after={}ms keys={keys} endless_keys=0",
        undone_after.as_millis()
    ));
    assert!(undone_after < EXPIRY, "{undone_after:?}");
}

impl Site {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let proxy = RedisProxy::start(redis.addr()).await;
        let direct = BrokerOptions::on(redis.url());
        direct.init_store().await;
        let brokers = vec![
            BrokerProcess::start(&BrokerOptions::on(proxy.url())).await,
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

    /// Acquires, renews and releases whose replies are lost, each of which is repeated.
    async fn repeated(&mut self, batch: usize) {
        let calls = now(&format!("repeated-{batch}"));
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.lose("GRANTED", acquires).await;
        let mut first = Vec::new();
        for call in &calls {
            let record = self.record(&call.lock).await;
            assert_eq!((record.holders.len(), record.waiters), (1, 0), "{record:?}");
            first.extend(record.holders);
        }
        let held = self.all(calls.iter().map(|call| self.careful.acquire(call)));
        let mut held: Vec<Held> = held.await;
        let identities: Vec<_> = held.iter().map(identity).collect();
        assert_eq!(
            identities, first,
            "a repeat gets the lease of the first copy"
        );
        let renews = held.iter().map(|held| self.careful.renew_at(0, held));
        self.lose("EXTENDED", renews).await;
        self.all(held.iter_mut().map(|held| self.careful.renew(held)))
            .await;
        let releases = held.iter().map(|held| self.careful.release_at(0, held));
        self.lose("NOW", releases).await;
        let releases = self.all(held.iter().map(|held| self.careful.release(held)));
        for released in releases.await {
            assert!(released.already_released, "it was done once");
        }
        for call in &calls {
            assert_eq!(self.record(&call.lock).await, Record::default());
        }
    }

    /// Readers of the same lock: a call that counted twice would show as one more.
    async fn shared(&mut self, batch: usize) {
        let calls = now(&format!("shared-{batch}")).into_iter();
        let calls = calls.map(|call| {
            let (lock, index) = call.lock.rsplit_once('-').expect("a number");
            let index: usize = index.parse().expect("a number");
            let lock = format!("{lock}-{}", index / READERS);
            AcquireCall::new(&lock, TTL, Duration::ZERO).shared()
        });
        let calls: Vec<_> = calls.collect();
        for again in 0..2 {
            let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
            self.lose("GRANTED", acquires).await;
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

    /// Calls that wait: a repeat keeps the place, what is not repeated leaves the line.
    async fn in_line(&mut self, batch: usize) {
        let lock = format!("line-{batch}");
        let owner = AcquireCall::new(&lock, Duration::from_secs(60), Duration::ZERO);
        let owner = self.observer.acquire(&owner).await.expect("it is free");
        let calls: Vec<_> = (0..BATCH)
            .map(|_| AcquireCall::new(&lock, TTL, WAIT))
            .collect();
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.lose("QUEUED", acquires).await;
        assert_eq!(self.record(&lock).await.waiters, BATCH);
        let (stay, leave) = calls.split_at(BATCH / 2);
        let turns = join_all(stay.iter().map(|call| async {
            let held = self.careful.acquire(call).await.expect("its turn");
            self.careful.release(&held).await.expect("the holder");
            held.token()
        }));
        let release = async {
            self.observer.queued_at(0, &lock, BATCH - leave.len()).await;
            self.observer.release(&owner).await.expect("the holder");
        };
        let (mut tokens, ()) = tokio::join!(turns, release);
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), BATCH - leave.len(), "one turn each");
        assert_eq!(self.record(&lock).await, Record::default());
    }

    /// Calls whose callers do not come again.
    async fn given_up(&mut self, batch: usize) {
        let calls = now(&format!("given-up-{batch}"));
        let acquires = calls.iter().map(|call| self.careful.acquire_at(0, call));
        self.lose("GRANTED", acquires).await;
        let first = self.record(&calls[0].lock).await;
        assert_eq!(first.holders.len(), 1, "Redis has granted it");
    }

    /// Makes calls that reach Redis, which answers with this word, and loses every reply.
    async fn lose<T>(
        &self,
        word: &str,
        calls: impl ExactSizeIterator<Item = impl Future<Output = Result<T, Status>>>,
    ) {
        self.connected().await;
        let count = calls.len();
        let before = self.proxy.swallowed(word);
        self.proxy.swallow(true);
        let cut = async {
            self.proxy.wait_for_swallowed(word, before + count).await;
            self.proxy.cut().await;
            self.proxy.swallow(false);
        };
        let (answers, ()) = tokio::join!(join_all(calls), cut);
        for answer in answers {
            let status = answer.err().expect("the reply is lost");
            assert_eq!(told(&status), UNAVAILABLE, "{status}");
        }
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns once the first broker reaches Redis.
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
        for (field, value) in self.raw.hash(&key).await {
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

    /// Returns once no record has a holder or a waiter, with how long that took.
    async fn nothing_is_left(&mut self) -> Duration {
        let begun = boottime();
        loop {
            let keys = self.raw.keys_with_pttl(&format!("{KEY_PREFIX}{{")).await;
            let mut left = Vec::new();
            for (key, _) in keys {
                let lock = key.trim_start_matches(&format!("{KEY_PREFIX}{{default:"));
                let record = self.record(lock.trim_end_matches('}')).await;
                if record != Record::default() {
                    left.push((key, record));
                }
            }
            let took = boottime() - begun;
            if left.is_empty() {
                return took;
            }
            assert!(took < EXPIRY, "left behind: {left:?}");
        }
    }

    /// Redis drops every record by itself, in no longer than an idle one is kept.
    async fn every_key_ends(&mut self) -> usize {
        let keys = self.raw.keys_with_pttl(&format!("{KEY_PREFIX}{{")).await;
        let most = KEEP_MS + i64::try_from(WAIT.as_millis()).expect("few");
        for (key, pttl) in &keys {
            assert!((1..=most).contains(pttl), "{key} has PTTL {pttl}");
        }
        assert!(!keys.is_empty(), "locks have left records");
        keys.len()
    }
}

/// A batch of calls that do not wait.
fn now(what: &str) -> Vec<AcquireCall> {
    (0..BATCH)
        .map(|index| AcquireCall::new(&format!("{what}-{index}"), TTL, Duration::ZERO))
        .collect()
}

fn identity(held: &Held) -> (String, i64) {
    (held.lease.lease_id.clone(), held.token())
}
