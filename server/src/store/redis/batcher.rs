//! Batching of script runs. Calls that arrive while enough runs are in flight are combined, several
//! locks in one run. That costs less in Redis, and at both ends of the connection, than one run for
//! each.
//!
//! The number of runs in flight is limited, so that the calls of an overloaded server wait here,
//! where renewals are sent first, and not in its connection.

use std::{collections::VecDeque, sync::Arc};

use fred::{
    bytes_utils::Str,
    clients::Client,
    error::{Error, ErrorKind},
    types::Value,
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    reply,
    script::{RunPriority, Script, evalsha},
    scripts::Command,
};

/// Number of runs in flight. Two are enough for Redis to have the next run when it completes one.
/// More are in flight only if each of the additional runs is a full batch, so that the latency of a
/// distant server does not limit the throughput.
const RUNS_IN_FLIGHT_MAX: usize = 2;
/// Number of additional runs. Their locks keep Redis busy for about 20 ms.
const FULL_RUNS_IN_FLIGHT_MAX: usize = 64;
/// Number of locks in one run. Redis serves no other client during the run.
const BATCH_MAX: usize = 16;

/// The runs in flight on one connection, and the calls that wait for a run.
#[derive(Default)]
pub(super) struct ScriptBatcher(Mutex<BatchQueue>);

#[derive(Default)]
struct BatchQueue {
    /// Number of runs in flight, without the additional runs of full batches.
    in_flight: usize,
    /// Number of additional runs of full batches in flight.
    full_in_flight: usize,
    /// Waiting calls, grouped by script and era, in the order in which the groups run. No group is
    /// empty.
    by_script: VecDeque<Batch>,
}

struct PendingRun {
    sha: Str,
    command: Command,
    priority: RunPriority,
    reply: oneshot::Sender<Result<Value, Error>>,
}

/// Calls that can run together. A waiting group may be larger than one run.
type Batch = VecDeque<PendingRun>;

/// A run for a single lock. When it is dropped, the next batch runs.
struct SoloRun<'a> {
    batches: &'a Arc<ScriptBatcher>,
    client: &'a Client,
}

impl ScriptBatcher {
    /// Runs the script for one lock, combined with other calls if many are in flight and the script
    /// accepts batches. The error is the server's. Without a reply the script may have been
    /// executed. A call that is dropped before its batch is formed is not sent.
    pub(super) async fn run(
        self: &Arc<Self>,
        client: &Client,
        script: &Script,
        command: Command,
    ) -> Result<Value, Error> {
        let sha = script.digest(client).await?;
        if !script.accepts_batches {
            return evalsha(client, sha, command).await;
        }
        let starts_solo = {
            let mut queue = self.0.lock();
            let starts_solo = queue.in_flight < RUNS_IN_FLIGHT_MAX;
            queue.in_flight += usize::from(starts_solo);
            starts_solo
        };
        if starts_solo {
            let _solo_run = SoloRun {
                batches: self,
                client,
            };
            return evalsha(client, sha, command).await;
        }
        let (reply, receiver) = oneshot::channel();
        let waiting = PendingRun {
            sha,
            command,
            priority: script.priority,
            reply,
        };
        self.enqueue(client, waiting);
        let stopped = |_| Error::new(ErrorKind::Canceled, "the broker stops");
        receiver.await.map_err(stopped).and_then(|result| result)
    }

    /// Adds a call to its group. Starts a run if the group is now a full batch, or if fewer runs
    /// than [`RUNS_IN_FLIGHT_MAX`] are in flight by now.
    fn enqueue(self: &Arc<Self>, client: &Client, waiting: PendingRun) {
        let mut queue = self.0.lock();
        let is_full = queue.push_and_check_full(waiting);
        if queue.in_flight < RUNS_IN_FLIGHT_MAX {
            queue.in_flight += 1;
            self.start_next(&mut queue, client, 1);
        } else if is_full && queue.full_in_flight < FULL_RUNS_IN_FLIGHT_MAX {
            queue.full_in_flight += 1;
            self.start_next(&mut queue, client, BATCH_MAX);
        }
    }

    /// Spawns a task that runs batches of at least `calls_min` calls until no such batch is left.
    fn start_next(self: &Arc<Self>, queue: &mut BatchQueue, client: &Client, calls_min: usize) {
        if let Some(batch) = queue.next(calls_min)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Arc::clone(self).run_batches(client.clone(), batch, calls_min));
        }
    }

    /// Runs a batch, and then further batches of at least `calls_min` calls until none is left.
    async fn run_batches(self: Arc<Self>, client: Client, mut batch: Batch, calls_min: usize) {
        loop {
            run(&client, batch).await;
            match self.0.lock().next(calls_min) {
                Some(next) => batch = next,
                None => return,
            }
        }
    }
}

async fn run(client: &Client, batch: Batch) {
    let mut sha = Str::default();
    let mut replies = Vec::new();
    let commands = batch.into_iter().map(|waiting| {
        sha = waiting.sha;
        replies.push(waiting.reply);
        waiting.command
    });
    let Some(command) = Command::merge(commands) else {
        return;
    };
    let result = evalsha(client, sha, command).await;
    let results = reply::split_batch(result, replies.len());
    for (reply, result) in replies.into_iter().zip(results) {
        // The caller may have been dropped.
        let _ = reply.send(result);
    }
}

impl PendingRun {
    fn can_batch_with(&self, other: &Self) -> bool {
        self.sha == other.sha && self.command.can_batch_with(&other.command)
    }
}

impl BatchQueue {
    /// Adds a call to its group. Returns true if the group is now a full batch.
    fn push_and_check_full(&mut self, waiting: PendingRun) -> bool {
        let mut kinds = self.by_script.iter_mut();
        let kind = kinds.find(|kind| {
            kind.front()
                .is_some_and(|first| first.can_batch_with(&waiting))
        });
        if let Some(kind) = kind {
            kind.push_back(waiting);
            return kind.len() >= BATCH_MAX;
        }
        self.insert(Batch::from([waiting]));
        false
    }

    /// Returns the next batch of at least `least` calls, round-robin over the groups, or `None` if
    /// the run ends.
    ///
    /// Runs that accept batches of any size continue while other groups are full. Otherwise a
    /// rarely used script would wait until there are no more full batches.
    fn next(&mut self, calls_min: usize) -> Option<Batch> {
        for kind in &mut self.by_script {
            kind.retain(|waiting| !waiting.reply.is_closed());
        }
        self.by_script.retain(|kind| !kind.is_empty());
        let at = self
            .by_script
            .iter()
            .position(|kind| kind.len() >= calls_min);
        let Some(mut batch) = at.and_then(|at| self.by_script.remove(at)) else {
            match calls_min {
                1 => self.in_flight -= 1,
                _ => self.full_in_flight -= 1,
            }
            return None;
        };
        let remaining = batch.split_off(batch.len().min(BATCH_MAX));
        if !remaining.is_empty() {
            self.insert(remaining);
        }
        Some(batch)
    }

    /// Inserts a group behind those of its priority.
    fn insert(&mut self, group: Batch) {
        let is_first = |group: &Batch| {
            let first_call = group.front();
            first_call.is_some_and(|call| call.priority == RunPriority::First)
        };
        let at = match is_first(&group) {
            true => self.by_script.partition_point(is_first),
            false => self.by_script.len(),
        };
        self.by_script.insert(at, group);
    }
}

impl Drop for SoloRun<'_> {
    fn drop(&mut self) {
        let mut queue = self.batches.0.lock();
        self.batches.start_next(&mut queue, self.client, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use super::*;

    const ACQUIRE: &str = "acquire";
    const RENEW: &str = "renew";

    /// Adds a call. Returns true if its group is now a full batch, and the receiver of its reply.
    fn push(
        queue: &mut BatchQueue,
        sha: &'static str,
    ) -> (bool, oneshot::Receiver<Result<Value, Error>>) {
        let (reply, receiver) = oneshot::channel();
        let is_full = queue.push_and_check_full(PendingRun {
            sha: Str::from_static(sha),
            command: Command {
                keys: vec![String::new()],
                args: vec![Value::Null; 20],
            },
            priority: match sha {
                RENEW => RunPriority::First,
                _ => RunPriority::Normal,
            },
            reply,
        });
        (is_full, receiver)
    }

    fn next(queue: &mut BatchQueue, calls_min: usize) -> Option<(String, usize)> {
        let batch = queue.next(calls_min)?;
        Some((batch.front()?.sha.to_string(), batch.len()))
    }

    #[test]
    fn locks_of_a_batch_are_bounded() {
        let mut queue = BatchQueue {
            in_flight: 1,
            ..BatchQueue::default()
        };
        let mut receivers = Vec::new();
        for count in 1..=2 * BATCH_MAX + 1 {
            let (is_full, receiver) = push(&mut queue, ACQUIRE);
            receivers.push(receiver);
            assert_eq!(is_full, count >= BATCH_MAX, "{count}");
        }
        let runs: Vec<_> = from_fn(|| queue.next(1).map(|batch| batch.len())).collect();
        assert_eq!(runs, [BATCH_MAX, BATCH_MAX, 1]);
        assert_eq!(queue.in_flight, 0);
    }

    #[test]
    fn renewals_run_before_other_calls() {
        let mut queue = BatchQueue {
            in_flight: 1,
            ..BatchQueue::default()
        };
        let calls = [[ACQUIRE; 40], ["release"; 40], [RENEW; 40]].concat();
        let receivers: Vec<_> = calls.into_iter().map(|sha| push(&mut queue, sha)).collect();
        let runs: Vec<_> = from_fn(|| next(&mut queue, 1)).collect();
        let order: Vec<_> = runs.iter().map(|(sha, _)| sha.as_str()).collect();
        let others = [ACQUIRE, "release"].repeat(3);
        assert_eq!(
            order,
            [[RENEW; 3].to_vec(), others].concat(),
            "the others in turn"
        );
        let calls: usize = runs.iter().map(|(_, calls)| calls).sum();
        assert_eq!(calls, receivers.len());
    }
}
