//! Records that were damaged in any one field: a script either does its work or changes nothing.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_server::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, FencingToken, LeaseRef, LockKey, Mode, Release,
        RequestId, StreamId, Via,
    },
    store::{
        Acquired, Store, StoreError,
        redis::{RedisStore, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis_connection::RedisConnection,
    scale::figures,
    shared_redis::{own_redis, redis_config},
    world::{LONG_MS, TTL_MAX_MS, again, lease, lock_named, new_call, with_mode, with_ttl},
};
use tokio::time::{Duration, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

type Record = BTreeMap<String, String>;

const KEEP_MS: &str = "300000";
const SHORT_MS: u64 = 1_000;
/// Longer than a number may be.
const HUGE: &str = "99999999999999999999999999";

/// Two brokers, and a lock with holders, a line, and a past.
struct Site {
    brokers: [Arc<dyn Store>; 2],
    raw: RedisConnection,
    lock: LockKey,
    key: String,
    holder: Acquire,
    held: LeaseRef,
    waiter: Acquire,
    stop: CancellationToken,
}

/// What damaged records led to.
#[derive(Debug, Default)]
struct Tally {
    done: usize,
    refused: usize,
    garbled: usize,
}

async fn connect(prefix: &str, stop: &CancellationToken) -> Arc<dyn Store> {
    let config = redis_config(prefix, true);
    let tasks = TaskTracker::new();
    let scripts = Scripts::standard();
    let store = RedisStore::start(config, BrokerId::random(), scripts, &tasks, stop.clone());
    Arc::new(store.await.expect("a Redis that can keep locks"))
}

impl Site {
    async fn set() -> Self {
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let stop = CancellationToken::new();
        let brokers = [connect(&prefix, &stop).await, connect(&prefix, &stop).await];
        let lock = lock_named("default", "damaged");
        let shared = || with_ttl(with_mode(new_call(&lock), Mode::Shared), TTL_MAX_MS);
        let [here, there] = &brokers;
        let short = with_ttl(shared(), SHORT_MS);
        granted(here.acquire(&short).await);
        sleep(Duration::from_millis(2 * SHORT_MS)).await;
        let past = shared();
        let past = lease(&past, granted(here.acquire(&past).await));
        let released = here.release(&past, Release::All, Via::Anywhere).await;
        released.expect("its holder");
        let request = RequestId::random().hash();
        let cancelled = there.cancel(&lock, request, AttemptId::random()).await;
        cancelled.expect("a tombstone");
        let first = shared();
        granted(there.acquire(&first).await);
        let holder = shared();
        let token = granted(here.acquire(&holder).await);
        let waiter = waits(&lock);
        for (store, call) in [(here, &waiter), (there, &waits(&lock))] {
            let queued = store.acquire(call).await.expect("it answers");
            assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");
        }
        let raw = RedisConnection::open(own_redis()).await;
        Self {
            raw: raw.expect("connect to Redis"),
            key: format!("{prefix}{}", lock.encoded()),
            held: lease(&holder, token),
            brokers,
            lock,
            holder,
            waiter,
            stop,
        }
    }

    async fn record(&mut self) -> (Record, i64) {
        let record = self.raw.hash(&self.key).await;
        let pttl = self.raw.must(&["PTTL", &self.key]).await.integer();
        (record, pttl)
    }

    async fn write(&mut self, record: &Record) {
        let fields = record.iter().flat_map(|(name, value)| [name, value]);
        let words: Vec<_> = ["HSET", &self.key]
            .into_iter()
            .chain(fields.map(String::as_str))
            .collect();
        let key = self.key.clone();
        self.raw.must(&["DEL", &key]).await;
        self.raw.must(&words).await;
        self.raw.must(&["PEXPIRE", &key, KEEP_MS]).await;
    }

    /// Runs one of the verbs.
    async fn run(&self, verb: usize) -> Option<(&'static str, Result<(), StoreError>)> {
        let Self {
            lock, held, holder, ..
        } = self;
        let [here, there] = &self.brokers;
        let stream = StreamId {
            broker: here.broker(),
            epoch: 7,
        };
        let to = Attachment { stream, number: 1 };
        let shared = with_mode(new_call(lock), Mode::Shared);
        let token = FencingToken::new(1).expect("a token");
        let (request, unknown) = (RequestId::random().hash(), AttemptId::random());
        let waiter = &self.waiter;
        let all = Via::Anywhere;
        Some(match verb {
            0 => ("acquire", here.acquire(&new_call(lock)).await.map(drop)),
            1 => ("join", here.acquire(&waits(lock)).await.map(drop)),
            2 => ("share", there.acquire(&shared).await.map(drop)),
            3 => ("repeat", there.acquire(&again(holder)).await.map(drop)),
            4 => ("wait on", there.acquire(&again(waiter)).await.map(drop)),
            5 => ("renew", here.renew(held, None, all).await.map(drop)),
            6 => ("attach", here.attach(held, to).await.map(drop)),
            7 => (
                "release",
                here.release(held, Release::All, all).await.map(drop),
            ),
            8 => (
                "lapse",
                here.release(held, Release::Lapse, all).await.map(drop),
            ),
            9 => {
                let cancelled = here.cancel(lock, waiter.request, waiter.attempt).await;
                ("cancel", cancelled.map(drop))
            }
            10 => {
                let cancelled = here.cancel(lock, request, unknown).await;
                ("bury", cancelled.map(drop))
            }
            11 => ("touch", here.touch(lock).await.map(drop)),
            12 => ("limit", there.set_limit(lock, Some(3)).await.map(drop)),
            13 => ("get", here.get(lock).await.map(drop)),
            14 => ("check", here.check(lock, token).await.map(drop)),
            _ => return None,
        })
    }

    /// Runs every verb on a damaged record.
    async fn run_all(&mut self, damaged: &Record, what: &str, tally: &mut Tally) {
        for verb in 0.. {
            self.write(damaged).await;
            let Some((name, answer)) = self.run(verb).await else {
                return;
            };
            let (after, pttl) = self.record().await;
            match answer {
                Ok(()) => tally.done += 1,
                Err(StoreError::Garbled(_)) => tally.garbled += 1,
                Err(StoreError::Corrupt(_)) => {
                    tally.refused += 1;
                    assert_eq!(after, *damaged, "{name} with {what}: half done");
                    assert!((1..=300_000).contains(&pttl), "{name} with {what}: {pttl}");
                }
                Err(
                    error @ (StoreError::Unavailable(_)
                    | StoreError::NotNow(_)
                    | StoreError::Full(_)
                    | StoreError::Recovering { .. }
                    | StoreError::Unsupported(_)),
                ) => panic!("{name} with {what}: {error}"),
            }
        }
    }
}

/// A call that waits in line.
fn waits(lock: &LockKey) -> Acquire {
    Acquire {
        wait_ms: LONG_MS,
        ..new_call(lock)
    }
}

fn granted(answer: Result<Acquired, StoreError>) -> FencingToken {
    let Ok(Acquired::Granted(grant)) = answer else {
        panic!("{answer:?} instead of a grant")
    };
    grant.fencing_token
}

/// Every way in which a value is damaged; `None`: it is gone.
fn damages(value: &str) -> Vec<Option<String>> {
    let mut damages = vec![
        None,
        Some(String::new()),
        Some("?".to_owned()),
        Some(HUGE.to_owned()),
        Some(value[..value.len() / 2].to_owned()),
        Some(format!("{value}|")),
    ];
    let mut end = 0;
    while let Some(begin) = value[end..].find(|c: char| c.is_ascii_alphanumeric()) {
        let begin = end + begin;
        let length = value[begin..].find(|c: char| !c.is_ascii_alphanumeric());
        end = length.map_or(value.len(), |length| begin + length);
        if value[begin..end].bytes().all(|byte| byte.is_ascii_digit()) {
            for number in [HUGE, "x", ""] {
                damages.push(Some(format!(
                    "{}{number}{}",
                    &value[..begin],
                    &value[end..]
                )));
            }
        }
    }
    damages
}

#[tokio::test]
async fn a_script_does_its_work_or_changes_nothing() {
    let mut site = Site::set().await;
    let (whole, _) = site.record().await;
    let mut tally = Tally::default();
    for (field, value) in &whole {
        for damage in damages(value) {
            let mut damaged = whole.clone();
            let what = format!("{field} = {damage:?}");
            match damage {
                Some(value) => damaged.insert(field.clone(), value),
                None => damaged.remove(field),
            };
            site.run_all(&damaged, &what, &mut tally).await;
        }
    }
    let fields = whole.len();
    figures(&format!(
        "redis_half_state: fields={fields} {tally:?} half_done=0"
    ));
    assert!(fields >= 15, "a record with all kinds of fields: {whole:?}");
    assert!(tally.refused > 10 * fields, "{tally:?}");
    assert!(tally.done > tally.garbled, "{tally:?}");
    site.stop.cancel();
}

#[tokio::test]
async fn a_record_of_another_version_or_type_is_left_alone() {
    let mut site = Site::set().await;
    let (whole, _) = site.record().await;
    let mut newer = whole.clone();
    newer.insert("v".to_owned(), "2".to_owned());
    let mut tally = Tally::default();
    site.run_all(&newer, "v = 2", &mut tally).await;
    assert_eq!((tally.done, tally.garbled), (0, 0), "{tally:?}");
    for verb in 0.. {
        let key = site.key.clone();
        site.raw.must(&["SET", &key, "x", "PX", KEEP_MS]).await;
        let Some((name, answer)) = site.run(verb).await else {
            break;
        };
        assert!(
            matches!(answer, Err(StoreError::Corrupt(_))),
            "{name}: {answer:?}"
        );
        assert_eq!(site.raw.must(&["GET", &key]).await.text(), "x", "{name}");
    }
    site.stop.cancel();
}
