//! Records with one damaged field. A script either completes or changes nothing.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_server::{
    lock::{
        AcquireCommand, Attachment, AttemptId, BrokerId, ExpectedAttachment, FencingToken,
        LeaseRef, LockKey, Mode, ReleaseScope, RequestId, StreamId,
    },
    store::{
        Acquired, Renewal, Store, StoreError,
        redis::{RedisStore, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis::{
        connection::RedisConnection,
        shared_server::{own_redis, redis_config},
    },
    scale::print_figures,
    store_fixture::{
        LONG_MS, TTL_MAX_MS, lease_of, lock_key, new_attempt, new_call, with_mode, with_ttl,
    },
};
use tokio::time::{Duration, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

type Record = BTreeMap<String, String>;

const KEEP_MS: &str = "300000";
const SHORT_MS: u64 = 1_000;
/// A number with too many digits.
const HUGE: &str = "99999999999999999999999999";

/// A fixture of two brokers and a lock with holders, a queue and ended leases.
struct Fixture {
    brokers: [Arc<dyn Store>; 2],
    raw: RedisConnection,
    lock: LockKey,
    key: String,
    holder: AcquireCommand,
    held: LeaseRef,
    waiter: AcquireCommand,
    stop: CancellationToken,
}

/// Results of commands on damaged records.
#[derive(Debug, Default)]
struct ResultCounts {
    done: usize,
    refused: usize,
    garbled: usize,
}

pub(super) async fn connect(prefix: &str, stop: &CancellationToken) -> Arc<dyn Store> {
    let config = redis_config(prefix, true);
    let tasks = TaskTracker::new();
    let scripts = Scripts::standard();
    let store = RedisStore::start(config, BrokerId::random(), scripts, &tasks, stop.clone());
    Arc::new(store.await.expect("a Redis that can keep locks"))
}

impl Fixture {
    async fn set() -> Self {
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let stop = CancellationToken::new();
        let brokers = [connect(&prefix, &stop).await, connect(&prefix, &stop).await];
        let lock = lock_key("default", "damaged");
        let shared = || with_ttl(with_mode(new_call(&lock), Mode::Shared), TTL_MAX_MS);
        let [here, there] = &brokers;
        let short = with_ttl(shared(), SHORT_MS);
        granted(here.acquire(&short).await);
        sleep(Duration::from_millis(2 * SHORT_MS)).await;
        let past = shared();
        let past = lease_of(&past, granted(here.acquire(&past).await));
        let released = here
            .release(&past, ReleaseScope::All, ExpectedAttachment::Any)
            .await;
        assert!(matches!(released, Ok(Ok(_))), "{released:?}");
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
            held: lease_of(&holder, token),
            brokers,
            lock,
            holder,
            waiter,
            stop,
        }
    }

    async fn record(&mut self) -> (Record, i64) {
        let record = self.raw.hash_fields(&self.key).await;
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

    /// Runs the verb with this number. Returns `None` if the number exceeds the number of verbs.
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
        let all = ExpectedAttachment::Any;
        Some(match verb {
            0 => ("acquire", here.acquire(&new_call(lock)).await.map(drop)),
            1 => ("join", here.acquire(&waits(lock)).await.map(drop)),
            2 => ("share", there.acquire(&shared).await.map(drop)),
            3 => (
                "repeat",
                there.acquire(&new_attempt(holder)).await.map(drop),
            ),
            4 => (
                "wait on",
                there.acquire(&new_attempt(waiter)).await.map(drop),
            ),
            5 => (
                "renew",
                here.renew(held, Renewal::undelivered(all)).await.map(drop),
            ),
            6 => ("attach", here.attach(held, to).await.map(drop)),
            7 => (
                "release",
                here.release(held, ReleaseScope::All, all).await.map(drop),
            ),
            8 => (
                "lapse",
                here.release(held, ReleaseScope::ExpireNow, all)
                    .await
                    .map(drop),
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

    /// Runs every verb on a damaged record and counts the results.
    async fn run_all(&mut self, damaged: &Record, what: &str, counts: &mut ResultCounts) {
        for verb in 0.. {
            self.write(damaged).await;
            let Some((name, answer)) = self.run(verb).await else {
                return;
            };
            let (after, pttl) = self.record().await;
            match answer {
                Ok(()) => counts.done += 1,
                Err(StoreError::InvalidReply(_)) => counts.garbled += 1,
                Err(StoreError::Corrupt(_)) => {
                    counts.refused += 1;
                    assert_eq!(after, *damaged, "{name} with {what}: half done");
                    assert!((1..=300_000).contains(&pttl), "{name} with {what}: {pttl}");
                }
                Err(
                    error @ (StoreError::Unavailable(_)
                    | StoreError::NotExecuted(_)
                    | StoreError::Full(_)
                    | StoreError::Overloaded
                    | StoreError::Recovering { .. }
                    | StoreError::Unsupported(_)),
                ) => panic!("{name} with {what}: {error}"),
            }
        }
    }
}

/// Returns a call that waits in the queue.
fn waits(lock: &LockKey) -> AcquireCommand {
    AcquireCommand {
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

/// Returns the damaged variants of a value. `None` stands for a removed field.
fn damaged_values(value: &str) -> Vec<Option<String>> {
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
    let mut fixture = Fixture::set().await;
    let (whole, _) = fixture.record().await;
    let mut counts = ResultCounts::default();
    for (field, value) in &whole {
        for damage in damaged_values(value) {
            let mut damaged = whole.clone();
            let what = format!("{field} = {damage:?}");
            match damage {
                Some(value) => damaged.insert(field.clone(), value),
                None => damaged.remove(field),
            };
            fixture.run_all(&damaged, &what, &mut counts).await;
        }
    }
    let fields = whole.len();
    print_figures(&format!(
        "redis_half_state: fields={fields} {counts:?} half_done=0"
    ));
    assert!(fields >= 15, "a record with all kinds of fields: {whole:?}");
    assert!(counts.refused > 10 * fields, "{counts:?}");
    assert!(counts.done > counts.garbled, "{counts:?}");
    fixture.stop.cancel();
}

#[tokio::test]
async fn a_record_of_another_version_or_type_is_left_alone() {
    let mut fixture = Fixture::set().await;
    let (whole, _) = fixture.record().await;
    let mut newer = whole.clone();
    newer.insert("v".to_owned(), "9".to_owned());
    let mut counts = ResultCounts::default();
    fixture.run_all(&newer, "v = 9", &mut counts).await;
    assert_eq!((counts.done, counts.garbled), (0, 0), "{counts:?}");
    for verb in 0.. {
        let key = fixture.key.clone();
        fixture.raw.must(&["SET", &key, "x", "PX", KEEP_MS]).await;
        let Some((name, answer)) = fixture.run(verb).await else {
            break;
        };
        assert!(
            matches!(answer, Err(StoreError::Corrupt(_))),
            "{name}: {answer:?}"
        );
        assert_eq!(fixture.raw.must(&["GET", &key]).await.text(), "x", "{name}");
    }
    fixture.stop.cancel();
}
