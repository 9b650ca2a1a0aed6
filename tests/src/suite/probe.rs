//! A probe program: a real process that uses the SDK of its language, does what it is told and says
//! what becomes of it.

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
    wire::{Answer, Ask, Event, Failure, Holder, Lease, Line, time},
};
use crate::{process::TestProcess, temp_dir::TempDir};

const START_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Killed when dropped.
#[derive(Debug)]
pub struct Probe {
    process: TestProcess,
    /// `None`: its stdin is closed.
    commands: Option<mpsc::UnboundedSender<String>>,
    said: Arc<Said>,
    last_id: AtomicU64,
    dir: TempDir,
}

#[derive(Debug, Default)]
struct Said {
    open: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    events: watch::Sender<Vec<Event>>,
    lines: Mutex<String>,
}

/// A command without an answer so far.
#[derive(Debug)]
pub struct Call {
    /// The command's.
    pub id: u64,
    answer: oneshot::Receiver<Answer>,
}

/// A loss, as its probe told it.
#[derive(Debug, Clone)]
pub struct Loss {
    /// When the probe had heard of it.
    pub at: Duration,
    /// Why.
    pub reason: String,
}

impl Probe {
    /// Starts one, and waits until it is connected.
    pub async fn start(language: Language, owner: &str, brokers: &[SocketAddr]) -> Self {
        let urls = brokers.iter().map(|addr| format!("http://{addr}"));
        let urls = urls.collect::<Vec<_>>().join(",");
        let env = [("LEASEHOLD_ENDPOINTS", &*urls), ("LEASEHOLD_OWNER", owner)];
        Self::start_with(language.command(), &env)
            .await
            .unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    /// Starts one with these variables; what it says when it cannot connect.
    pub async fn start_with(mut command: Command, env: &[(&str, &str)]) -> Result<Self, Failure> {
        let dir = TempDir::new("probe");
        command.env("LEASEHOLD_LOG", "debug");
        command.envs(env.iter().copied());
        let log = dir.path().join("stderr.log");
        let (process, stdin, stdout) = TestProcess::start_talking(command, &log);
        let (commands, sent) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, sent));
        let said = Arc::<Said>::default();
        tokio::spawn(Arc::clone(&said).read(stdout));
        let probe = Self {
            process,
            commands: Some(commands),
            said,
            last_id: AtomicU64::new(0),
            dir,
        };
        let begun = probe.heard(START_LIMIT, |event| match event {
            Event::Ready { .. } => Some(Ok(())),
            Event::Failed { error, .. } => Some(Err(error.clone())),
            Event::Lost { .. } | Event::Queued { .. } => None,
        });
        begun.await.map(|()| probe)
    }

    /// Begins a command.
    pub fn begin(&self, what: &str, mut fields: Map<String, Value>) -> Call {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        fields.insert("id".to_owned(), json!(id));
        fields.insert("do".to_owned(), json!(what));
        let (sender, answer) = oneshot::channel();
        locked(&self.said.open).insert(id, sender);
        let commands = self.commands.as_ref().expect("its stdin is open");
        // A probe that is gone answers nothing.
        let _ = commands.send(Value::Object(fields).to_string());
        Call { id, answer }
    }

    /// Begins an acquire.
    #[must_use]
    pub fn asks(&self, ask: &Ask) -> Call {
        self.begin("acquire", ask.fields())
    }

    /// Takes a lock.
    pub async fn acquire(&self, ask: &Ask) -> Result<Lease, Failure> {
        self.asks(ask).lease().await
    }

    /// Takes a lock that is free or soon will be.
    pub async fn takes(&self, ask: &Ask) -> Lease {
        let taken = self.acquire(ask).await;
        taken.unwrap_or_else(|failure| panic!("{ask:?}: {failure:?}"))
    }

    /// Takes a lock if it is free.
    pub async fn tries(&self, ask: &Ask) -> Result<Option<Lease>, Failure> {
        let call = self.begin("try_acquire", ask.fields());
        let (at, outcome) = call.outcome().await;
        let value = outcome?;
        Ok((!value.is_null()).then(|| lease(at, value)))
    }

    /// Gives up an acquire.
    pub async fn cancel(&self, call: &Call) {
        self.told("cancel", json!({"call": call.id})).await;
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: &str) -> Result<(), Failure> {
        let call = self.begin_with("release", json!({ "lease": lease }));
        call.outcome().await.1.map(drop)
    }

    /// Gives back a lease that it has.
    pub async fn gives(&self, lease: &str) {
        let released = self.release(lease).await;
        released.unwrap_or_else(|failure| panic!("{lease}: {failure:?}"));
    }

    /// What it knows of its lease.
    pub async fn state(&self, lease: &str) -> Lease {
        let state = self.looks(lease).lease().await;
        state.expect("a look cannot fail")
    }

    /// Begins a look at its lease.
    #[must_use]
    pub fn looks(&self, lease: &str) -> Call {
        self.begin_with("state", json!({ "lease": lease }))
    }

    /// Who it sees holding a lock.
    pub async fn observe(&self, lock: &str) -> Option<Holder> {
        let seen = self.told("observe", json!({ "lock": lock })).await;
        serde_json::from_value(seen["holder"].clone()).expect("a holder or null")
    }

    /// A command that cannot fail; its answer.
    pub async fn told(&self, what: &str, fields: Value) -> Value {
        let (_, outcome) = self.begin_with(what, fields).outcome().await;
        outcome.unwrap_or_else(|failure| panic!("{what}: {failure:?}"))
    }

    /// Begins a command with these fields.
    #[must_use]
    pub fn begin_with(&self, what: &str, fields: Value) -> Call {
        let Value::Object(fields) = fields else {
            panic!("{fields} are no fields")
        };
        self.begin(what, fields)
    }

    /// Waits until it tells that a lease is lost.
    pub async fn lost(&self, lease: &str) -> Loss {
        let loss = |event: &Event| loss_of(event, lease);
        self.heard(ANSWER_LIMIT, loss).await
    }

    /// The loss of a lease, if it was told.
    #[must_use]
    pub fn loss(&self, lease: &str) -> Option<Loss> {
        let events = self.said.events.borrow();
        events.iter().find_map(|event| loss_of(event, lease))
    }

    /// Waits until an acquire is told this place in line; how many wait.
    pub async fn queued(&self, call: &Call, place: u32) -> u32 {
        let heard = self.heard(ANSWER_LIMIT, |event| {
            let (position, length) = place_of(event, call.id)?;
            (position == place).then_some(length)
        });
        heard.await
    }

    /// The places in line that an acquire was told, in their order.
    #[must_use]
    pub fn places(&self, call: u64) -> Vec<u32> {
        let events = self.said.events.borrow();
        let places = events.iter().filter_map(|event| place_of(event, call));
        places.map(|(position, _)| position).collect()
    }

    /// The process, to pause and resume it.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// SIGKILL; returns once it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Has it end without a release; returns once it is gone.
    pub async fn exit(&mut self) {
        // Nothing answers.
        drop(self.begin("exit", Map::new()));
        assert_eq!(self.process.ended().await, Some(0));
    }

    /// Has it end as programs of its language do, by closing its stdin; returns once it is gone.
    pub async fn end(&mut self) {
        self.commands = None;
        assert_eq!(self.process.ended().await, Some(0));
    }

    /// Everything that it has said, and its log.
    #[must_use]
    pub fn output(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("stderr.log"));
        locked(&self.said.lines).clone() + &log.expect("its log")
    }

    async fn heard<T>(&self, limit: Duration, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let mut events = self.said.events.subscribe();
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
        heard.unwrap_or_else(|_| panic!("not told; said: {}", locked(&self.said.lines)))
    }
}

impl Call {
    /// When it was answered, and how.
    pub async fn outcome(self) -> (Duration, Result<Value, Failure>) {
        let answer = timeout(ANSWER_LIMIT, self.answer).await;
        let answer = answer.expect("answered in time");
        answer.expect("the probe lives").outcome()
    }

    /// The lease that it was answered with.
    pub async fn lease(self) -> Result<Lease, Failure> {
        let (at, outcome) = self.outcome().await;
        outcome.map(|value| lease(at, value))
    }

    /// Whether it has no answer so far.
    pub fn is_open(&mut self) -> bool {
        matches!(
            self.answer.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }
}

impl Said {
    async fn read(self: Arc<Self>, stdout: ChildStdout) {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            locked(&self.lines).push_str(&format!("{line}\n"));
            match Line::read(&line) {
                Line::Event(event) => self.events.send_modify(|events| events.push(event)),
                Line::Answer(answer) => {
                    let call = locked(&self.open).remove(&answer.id);
                    // Nobody waits for some of them.
                    let _ = call.expect("an answer to a command").send(answer);
                }
            }
        }
        locked(&self.open).clear();
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

fn loss_of(event: &Event, wanted: &str) -> Option<Loss> {
    let Event::Lost {
        at_ms,
        lease,
        reason,
    } = event
    else {
        return None;
    };
    (lease == wanted).then(|| Loss {
        at: time(*at_ms),
        reason: reason.clone(),
    })
}

fn place_of(event: &Event, wanted: u64) -> Option<(u32, u32)> {
    let Event::Queued {
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

fn lease(at: Duration, value: Value) -> Lease {
    let lease = serde_json::from_value(value.clone());
    let lease: Lease = lease.unwrap_or_else(|error| panic!("{error}: {value}"));
    Lease { at, ..lease }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
