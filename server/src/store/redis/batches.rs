//! Runs scripts on a server. Calls that come while enough are under way are run together, several locks
//! in one run: that costs Redis, and both ends of the connection, less than one run each.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fred::{
    bytes_utils::Str,
    clients::Client,
    error::{Error, ErrorKind},
    types::Value,
};
use tokio::{runtime::Handle, sync::oneshot};

use super::{answers, script::evalsha, scripts::Command};

/// Runs under way at once: Redis has the next one when it is done with one. Beside them there are more
/// only where each is full, so that a server far away is not waited for.
const UNDER_WAY_MAX: usize = 2;
/// Locks of one run. Redis serves nobody else meanwhile.
const TOGETHER_MAX: usize = 16;

/// What is under way on one connection, and what waits for that.
#[derive(Default)]
pub(super) struct Batches(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Without those that are there because they are full.
    under_way: usize,
    /// By what may be run together. None is empty.
    kinds: VecDeque<Batch>,
}

struct Waiting {
    sha: Str,
    command: Command,
    reply: oneshot::Sender<Result<Value, Error>>,
}

/// What is run together, or more of it than that.
type Batch = VecDeque<Waiting>;

/// A run for one lock alone. With its end the next batch is run.
struct Alone<'a> {
    batches: &'a Arc<Batches>,
    client: &'a Client,
}

impl Batches {
    /// Runs the script of that digest for one lock; the error is the server's. Without an answer it may
    /// have been executed. A call that is dropped before its batch is made is not sent.
    pub(super) async fn run(
        self: &Arc<Self>,
        client: &Client,
        sha: Str,
        command: Command,
    ) -> Result<Value, Error> {
        if self.begins_alone() {
            let _alone = Alone {
                batches: self,
                client,
            };
            return evalsha(client, sha, command).await;
        }
        let (reply, answer) = oneshot::channel();
        self.wait(
            client,
            Waiting {
                sha,
                command,
                reply,
            },
        );
        let gone = |_| Error::new(ErrorKind::Canceled, "the broker stops");
        answer.await.map_err(gone).and_then(|answer| answer)
    }

    fn begins_alone(&self) -> bool {
        let mut queue = self.queue();
        let begins = queue.under_way < UNDER_WAY_MAX;
        queue.under_way += usize::from(begins);
        begins
    }

    /// Has a call wait. A run begins if that makes a full batch, or if all have ended meanwhile.
    fn wait(self: &Arc<Self>, client: &Client, waiting: Waiting) {
        let mut queue = self.queue();
        let is_full = queue.is_full_with(waiting);
        if queue.under_way < UNDER_WAY_MAX {
            queue.under_way += 1;
            self.go_on(&mut queue, client, 1);
        } else if is_full {
            self.go_on(&mut queue, client, TOGETHER_MAX);
        }
    }

    /// Has a run of batches with at least so many go on with the next one, if there is one.
    fn go_on(self: &Arc<Self>, queue: &mut Queue, client: &Client, least: usize) {
        if let Some(batch) = queue.next(least)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Arc::clone(self).run_all(client.clone(), batch, least));
        }
    }

    /// Runs a batch, and what waits by then, until that is nothing.
    async fn run_all(self: Arc<Self>, client: Client, mut batch: Batch, least: usize) {
        loop {
            run(&client, batch).await;
            match self.queue().next(least) {
                Some(next) => batch = next,
                None => return,
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    let Some(command) = Command::together(commands) else {
        return;
    };
    let answer = evalsha(client, sha, command).await;
    let answers = answers::of_each(answer, replies.len());
    for (reply, answer) in replies.into_iter().zip(answers) {
        // A caller that is gone needs no answer.
        let _ = reply.send(answer);
    }
}

impl Waiting {
    fn goes_with(&self, other: &Self) -> bool {
        self.sha == other.sha && self.command.goes_with(&other.command)
    }
}

impl Queue {
    /// Takes one more in, and says whether it makes a full batch.
    fn is_full_with(&mut self, waiting: Waiting) -> bool {
        let mut kinds = self.kinds.iter_mut();
        let kind = kinds.find(|kind| kind.front().is_some_and(|first| first.goes_with(&waiting)));
        if let Some(kind) = kind {
            kind.push_back(waiting);
            return kind.len() >= TOGETHER_MAX;
        }
        self.kinds.push_back(Batch::from([waiting]));
        false
    }

    /// What is run next, if it is at least so many; the kinds take turns. `None`: a run is over.
    ///
    /// Those that take whatever there is do so while others are full, or a kind of which there are few
    /// would wait until there are no more full ones.
    fn next(&mut self, least: usize) -> Option<Batch> {
        for kind in &mut self.kinds {
            kind.retain(|waiting| !waiting.reply.is_closed());
        }
        self.kinds.retain(|kind| !kind.is_empty());
        let at = self.kinds.iter().position(|kind| kind.len() >= least);
        let Some(mut batch) = at.and_then(|at| self.kinds.remove(at)) else {
            self.under_way -= usize::from(least == 1);
            return None;
        };
        let rest = batch.split_off(batch.len().min(TOGETHER_MAX));
        if !rest.is_empty() {
            self.kinds.push_back(rest);
        }
        Some(batch)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let mut queue = self.batches.queue();
        self.batches.go_on(&mut queue, self.client, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use super::*;

    #[test]
    fn a_run_is_for_so_many_locks() {
        let mut queue = Queue {
            under_way: 1,
            ..Queue::default()
        };
        let mut answers = Vec::new();
        for count in 1..=2 * TOGETHER_MAX + 1 {
            let (reply, answer) = oneshot::channel();
            let is_full = queue.is_full_with(Waiting {
                sha: Str::default(),
                command: Command {
                    keys: vec![count.to_string()],
                    args: vec![Value::Null; 20],
                },
                reply,
            });
            assert_eq!(is_full, count >= TOGETHER_MAX, "{count}");
            answers.push(answer);
        }
        let runs: Vec<_> = from_fn(|| queue.next(1).map(|batch| batch.len())).collect();
        assert_eq!(runs, [TOGETHER_MAX, TOGETHER_MAX, 1]);
    }
}
