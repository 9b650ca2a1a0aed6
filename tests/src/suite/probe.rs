//! A probe program: a process that uses the SDK of its language, executes commands and reports
//! their results.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout, Command},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    language::Language,
    messages::{
        Closure, Failure, Holder, Lease, ProbeAcquire, ProbeEvent, ProbeLine, ProbeReply,
        boottime_from_ms,
    },
};
use crate::process::{child::TestProcess, temp_dir::TempDir};

const START_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A running probe, which is killed when it is dropped.
#[derive(Debug)]
pub struct Probe {
    process: TestProcess,
    /// Channel to the stdin of the probe. `None` if the stdin is closed.
    commands: Option<mpsc::UnboundedSender<String>>,
    output: Arc<ProbeOutput>,
    last_id: AtomicU64,
    dir: TempDir,
}

#[derive(Debug, Default)]
struct ProbeOutput {
    pending: Mutex<HashMap<u64, oneshot::Sender<ProbeReply>>>,
    events: watch::Sender<Vec<ProbeEvent>>,
    lines: Mutex<String>,
}

/// A command whose answer is pending.
#[derive(Debug)]
pub struct PendingCommand {
    /// Id of the command.
    pub id: u64,
    reply: oneshot::Receiver<ProbeReply>,
}

/// A lost lease, as reported by its probe.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Time at which the SDK of the probe reported the loss.
    pub at: Duration,
    pub reason: String,
}

impl Probe {
    /// Starts a probe, and waits until it is connected.
    pub async fn start(language: Language, owner: &str, brokers: &[SocketAddr]) -> Self {
        let urls = brokers.iter().map(|addr| format!("http://{addr}"));
        let urls = urls.collect::<Vec<_>>().join(",");
        let env = [("LEASEHOLD_ENDPOINTS", &*urls), ("LEASEHOLD_OWNER", owner)];
        Self::start_with(language.command(), &env)
            .await
            .unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    /// Starts a probe with these environment variables. Returns the failure if the probe cannot
    /// connect.
    pub async fn start_with(mut command: Command, env: &[(&str, &str)]) -> Result<Self, Failure> {
        let dir = TempDir::new("probe");
        command.env("LEASEHOLD_LOG", "debug");
        command.envs(env.iter().copied());
        let log = dir.path().join("stderr.log");
        let (process, stdin, stdout) = TestProcess::start_with_pipes(command, &log);
        let (commands, sent) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, sent));
        let output = Arc::<ProbeOutput>::default();
        tokio::spawn(Arc::clone(&output).read(stdout));
        let probe = Self {
            process,
            commands: Some(commands),
            output,
            last_id: AtomicU64::new(0),
            dir,
        };
        let ready = probe.wait_for_event(START_LIMIT, |event| match event {
            ProbeEvent::Ready { .. } => Some(Ok(())),
            ProbeEvent::Failed { error, .. } => Some(Err(error.clone())),
            ProbeEvent::Lost { .. } | ProbeEvent::Queued { .. } => None,
        });
        ready.await.map(|()| probe)
    }

    /// Sends a command without waiting for its answer.
    pub fn start_command(&self, what: &str, mut fields: Map<String, Value>) -> PendingCommand {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        fields.insert("id".to_owned(), json!(id));
        fields.insert("do".to_owned(), json!(what));
        let (sender, answer) = oneshot::channel();
        locked(&self.output.pending).insert(id, sender);
        let commands = self.commands.as_ref().expect("its stdin is open");
        // A probe that has exited sends no answer.
        let _ = commands.send(Value::Object(fields).to_string());
        PendingCommand { id, reply: answer }
    }

    /// Sends an acquire without waiting for its answer.
    #[must_use]
    pub fn start_acquire(&self, ask: &ProbeAcquire) -> PendingCommand {
        self.start_command("acquire", ask.fields())
    }

    /// Acquires a lock and waits for the result.
    pub async fn acquire(&self, ask: &ProbeAcquire) -> Result<Lease, Failure> {
        self.start_acquire(ask).lease().await
    }

    /// Acquires a lock that is free or will soon be free.
    pub async fn expect_acquired(&self, ask: &ProbeAcquire) -> Lease {
        let result = self.acquire(ask).await;
        result.unwrap_or_else(|failure| panic!("{ask:?}: {failure:?}"))
    }

    /// Acquires a lock if it is free.
    pub async fn try_acquire(&self, ask: &ProbeAcquire) -> Result<Option<Lease>, Failure> {
        let call = self.start_command("try_acquire", ask.fields());
        let (at, outcome) = call.outcome().await;
        let value = outcome?;
        Ok((!value.is_null()).then(|| lease_from_reply(at, value)))
    }

    /// Cancels a pending acquire.
    pub async fn cancel(&self, call: &PendingCommand) {
        self.run_command("cancel", json!({"call": call.id})).await;
    }

    pub async fn release(&self, lease: &str) -> Result<(), Failure> {
        let call = self.start_command_with("release", json!({ "lease": lease }));
        call.outcome().await.1.map(drop)
    }

    /// Releases a lease, which must succeed.
    pub async fn expect_released(&self, lease: &str) {
        let released = self.release(lease).await;
        released.unwrap_or_else(|failure| panic!("{lease}: {failure:?}"));
    }

    /// Returns the state of a lease in the probe.
    pub async fn state(&self, lease: &str) -> Lease {
        let state = self.start_state(lease).lease().await;
        state.expect("a look cannot fail")
    }

    /// Sends a request for the state of a lease.
    #[must_use]
    pub fn start_state(&self, lease: &str) -> PendingCommand {
        self.start_command_with("state", json!({ "lease": lease }))
    }

    /// Returns the holder of a lock, as the probe reads it.
    pub async fn observe(&self, lock: &str) -> Option<Holder> {
        let seen = self.run_command("observe", json!({ "lock": lock })).await;
        serde_json::from_value(seen["holder"].clone()).expect("a holder or null")
    }

    /// Sets the limit of a semaphore, or removes it with 0, and returns the previous limit.
    pub async fn set_limit(&self, lock: &str, limit: u32) -> Option<u64> {
        let set = self.start_set_limit(lock, limit).outcome().await.1;
        let set = set.unwrap_or_else(|failure| panic!("{lock}: {failure:?}"));
        set["previous_limit"].as_u64()
    }

    /// Sends a command to set the limit of a semaphore.
    #[must_use]
    pub fn start_set_limit(&self, lock: &str, limit: u32) -> PendingCommand {
        self.start_command_with("set_limit", json!({ "lock": lock, "limit": limit }))
    }

    /// Waits until a queue position of an acquire reports a closure, and returns it.
    pub async fn wait_for_closure(&self, call: &PendingCommand) -> Closure {
        let closure = |event: &ProbeEvent| match event {
            ProbeEvent::Queued {
                call: of, closure, ..
            } if *of == call.id => closure.clone(),
            ProbeEvent::Ready { .. }
            | ProbeEvent::Failed { .. }
            | ProbeEvent::Lost { .. }
            | ProbeEvent::Queued { .. } => None,
        };
        self.wait_for_event(ANSWER_LIMIT, closure).await
    }

    /// Sends a command that cannot fail, and returns its result.
    pub async fn run_command(&self, what: &str, fields: Value) -> Value {
        let (_, outcome) = self.start_command_with(what, fields).outcome().await;
        outcome.unwrap_or_else(|failure| panic!("{what}: {failure:?}"))
    }

    /// Sends a command with these fields.
    #[must_use]
    pub fn start_command_with(&self, what: &str, fields: Value) -> PendingCommand {
        let Value::Object(fields) = fields else {
            panic!("{fields} are no fields")
        };
        self.start_command(what, fields)
    }

    /// Waits until the probe reports that a lease is lost.
    pub async fn wait_for_loss(&self, lease: &str) -> Loss {
        let loss = |event: &ProbeEvent| loss_of(event, lease);
        self.wait_for_event(ANSWER_LIMIT, loss).await
    }

    /// Returns the loss of a lease, if the probe has reported it.
    #[must_use]
    pub fn loss(&self, lease: &str) -> Option<Loss> {
        let events = self.output.events.borrow();
        events.iter().find_map(|event| loss_of(event, lease))
    }

    /// Waits until the probe reports this queue position of an acquire, and returns the queue
    /// length.
    pub async fn wait_for_position(&self, call: &PendingCommand, place: u32) -> u32 {
        let heard = self.wait_for_event(ANSWER_LIMIT, |event| {
            let (position, length) = position_of(event, call.id)?;
            (position == place).then_some(length)
        });
        heard.await
    }

    /// Returns the reported queue positions of an acquire in order.
    #[must_use]
    pub fn reported_positions(&self, call: u64) -> Vec<u32> {
        let events = self.output.events.borrow();
        let positions = events.iter().filter_map(|event| position_of(event, call));
        positions.map(|(position, _)| position).collect()
    }

    /// Returns the process, which tests pause and resume.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Sends SIGKILL. Returns once the process has ended.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Makes the probe exit without a release. Returns once the process has ended.
    pub async fn exit(&mut self) {
        // The command has no answer.
        drop(self.start_command("exit", Map::new()));
        assert_eq!(self.process.wait_for_exit().await, Some(0));
    }

    /// Ends the probe normally, by closing its stdin. Returns once the process has ended.
    pub async fn close_stdin(&mut self) {
        self.commands = None;
        assert_eq!(self.process.wait_for_exit().await, Some(0));
    }

    /// Returns everything that the probe has written to stdout and stderr.
    #[must_use]
    pub fn output(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("stderr.log"));
        locked(&self.output.lines).clone() + &log.expect("its log")
    }

    async fn wait_for_event<T>(
        &self,
        limit: Duration,
        wanted: impl Fn(&ProbeEvent) -> Option<T>,
    ) -> T {
        let mut events = self.output.events.subscribe();
        let heard = async {
            loop {
                let found = events.borrow_and_update().iter().find_map(&wanted);
                if let Some(found) = found {
                    return found;
                }
                events.changed().await.expect("the probe speaks");
            }
        };
        let heard = timeout(limit, heard).await;
        heard.unwrap_or_else(|_| panic!("not notified; said: {}", locked(&self.output.lines)))
    }
}

impl PendingCommand {
    /// Waits for the answer, and returns its time and its result.
    pub async fn outcome(self) -> (Duration, Result<Value, Failure>) {
        let answer = timeout(ANSWER_LIMIT, self.reply).await;
        let answer = answer.expect("answered in time");
        answer.expect("the probe lives").outcome()
    }

    /// Waits for the answer, and returns its lease.
    pub async fn lease(self) -> Result<Lease, Failure> {
        let (at, outcome) = self.outcome().await;
        outcome.map(|value| lease_from_reply(at, value))
    }

    /// Returns true if the command has no answer yet.
    pub fn is_pending(&mut self) -> bool {
        matches!(
            self.reply.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }
}

impl ProbeOutput {
    async fn read(self: Arc<Self>, stdout: ChildStdout) {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            locked(&self.lines).push_str(&format!("{line}\n"));
            match ProbeLine::parse(&line) {
                ProbeLine::Event(event) => self.events.send_modify(|events| events.push(event)),
                ProbeLine::Reply(answer) => {
                    let call = locked(&self.pending).remove(&answer.id);
                    // Some answers have no receiver any longer.
                    let _ = call.expect("an answer to a command").send(answer);
                }
            }
        }
        locked(&self.pending).clear();
    }
}

async fn write(mut stdin: ChildStdin, mut commands: mpsc::UnboundedReceiver<String>) {
    while let Some(command) = commands.recv().await {
        let line = format!("{command}\n");
        if stdin.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn loss_of(event: &ProbeEvent, wanted: &str) -> Option<Loss> {
    let ProbeEvent::Lost {
        at_ms,
        lease,
        reason,
    } = event
    else {
        return None;
    };
    (lease == wanted).then(|| Loss {
        at: boottime_from_ms(*at_ms),
        reason: reason.clone(),
    })
}

fn position_of(event: &ProbeEvent, wanted: u64) -> Option<(u32, u32)> {
    let ProbeEvent::Queued {
        call,
        position,
        queue_length,
        ..
    } = event
    else {
        return None;
    };
    (*call == wanted).then_some((*position, *queue_length))
}

fn lease_from_reply(at: Duration, value: Value) -> Lease {
    let lease = serde_json::from_value(value.clone());
    let lease: Lease = lease.unwrap_or_else(|error| panic!("{error}: {value}"));
    Lease { at, ..lease }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
