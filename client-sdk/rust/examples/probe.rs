//! Plays the scenarios of the suite with the Rust client. Each line of input is a JSON command, and
//! each line of output is a JSON response or event. The protocol is in `tests/suite/README.md`.

#![expect(clippy::print_stdout, reason = "stdout is where the runner listens")]
#![expect(clippy::disallowed_methods, reason = "the runner's variables are read")]

use std::{
    cell::RefCell,
    collections::HashMap,
    env, fs, io, panic,
    process::{ExitCode, exit},
    rc::Rc,
    thread,
    time::Duration,
};

use leasehold::{
    Certificate, Client, ClientTlsConfig, Closure, ClosureCause, ConnectError, Error, Guard, Held,
    Holder, Identity, Lock, QueuePosition, ReleaseError, Target,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::oneshot,
    task::{AbortHandle, LocalSet, spawn_local},
};
use tracing_subscriber::filter::LevelFilter;

type Shared<K, V> = Rc<RefCell<HashMap<K, V>>>;
type Setting = fn(Lock, Duration) -> Lock;
type Outcome = Result<Value, Value>;

/// State that the commands use.
#[derive(Clone)]
struct Probe {
    client: Client,
    leases: Shared<String, Lease>,
    /// Senders that cancel pending acquires.
    pending: Shared<u64, oneshot::Sender<()>>,
}

struct Lease {
    /// `None` after the release.
    guard: Option<Guard>,
    held: Held,
    targets: Vec<Target>,
    watch: AbortHandle,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // A panic must not look like a late response.
    panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        exit(101);
    }));
    if let Ok(level) = env::var("LEASEHOLD_LOG") {
        let level = if level == "trace" {
            LevelFilter::TRACE
        } else {
            LevelFilter::DEBUG
        };
        let log = tracing_subscriber::fmt().with_max_level(level);
        log.with_ansi(false).with_writer(io::stderr).init();
    }
    match connect().await {
        Ok(client) => {
            emit(json!({"event": "ready", "at_ms": now_ms()}));
            let probe = Probe {
                client,
                leases: Rc::default(),
                pending: Rc::default(),
            };
            LocalSet::new().run_until(probe.run()).await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            let error = json!({"class": variant(&error), "message": error.to_string()});
            emit(json!({"event": "failed", "at_ms": now_ms(), "error": error}));
            ExitCode::FAILURE
        }
    }
}

async fn connect() -> Result<Client, ConnectError> {
    let variable = |name: &str| env::var(format!("LEASEHOLD_{name}")).ok();
    let file = |name| variable(name).map(|path| fs::read(path).expect("a file that is there"));
    let mut builder = Client::builder(&variable("ENDPOINTS").unwrap_or_default());
    if let Some(owner) = variable("OWNER") {
        builder = builder.owner(owner);
    }
    if let Some(token) = variable("BEARER_TOKEN") {
        builder = builder.bearer_token(token);
    }
    if let Some(path) = variable("BEARER_TOKEN_FILE") {
        builder = builder.bearer_token_file(path);
    }
    builder = builder.allow_insecure_token(variable("ALLOW_INSECURE_TOKEN").is_some());
    if let Some(authority) = file("TLS_CA") {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        if let (Some(shown), Some(key)) = (file("TLS_CERT"), file("TLS_KEY")) {
            tls = tls.identity(Identity::from_pem(shown, key));
        }
        builder = builder.tls(tls);
    }
    builder.connect().await
}

impl Probe {
    async fn run(self) {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let command: Value = serde_json::from_str(&line).expect("a line of JSON");
            let probe = self.clone();
            match command["do"].as_str().expect("what to do") {
                // Blocks the thread of the program itself.
                "block" => {
                    thread::sleep(ms(&command["ms"]).expect("how long"));
                    respond(&command, now_ms(), Ok(json!({})));
                }
                // Exits without releases and exit hooks.
                "exit" => exit(0),
                _ => drop(spawn_local(async move {
                    let before = now_ms();
                    let outcome = probe.execute(&command).await;
                    let is_state = command["do"] == "state";
                    respond(&command, if is_state { before } else { now_ms() }, outcome);
                })),
            }
        }
        // A well-behaved program ends this way: the client installs no exit hook.
        self.client.shutdown().await;
    }

    async fn execute(&self, command: &Value) -> Outcome {
        match command["do"].as_str().unwrap_or_default() {
            "version" => Ok(json!({"language": "rust", "version": env!("CARGO_PKG_VERSION")})),
            "acquire" => {
                let guard = self.cancellable(command, self.lock(command).acquire());
                Ok(self.store_lease(command, guard.await?))
            }
            "try_acquire" => {
                let guard = self.cancellable(command, self.lock(command).try_acquire());
                let guard = guard.await?;
                Ok(guard.map_or(Value::Null, |guard| self.store_lease(command, guard)))
            }
            "cancel" => {
                let call = command["call"].as_u64().expect("the id of a call");
                // The acquire may have ended before.
                if let Some(cancel) = self.pending.borrow_mut().remove(&call) {
                    let _ = cancel.send(());
                }
                Ok(json!({}))
            }
            "release" => {
                let guard = {
                    let mut leases = self.leases.borrow_mut();
                    let lease = leases.get_mut(text(command, "lease")).expect("a lease");
                    lease.watch.abort();
                    lease.guard.take().expect("released once")
                };
                guard
                    .release()
                    .await
                    .map_err(|error| release_failure(&error))?;
                Ok(json!({}))
            }
            "state" => {
                let leases = self.leases.borrow();
                Ok(leases.get(text(command, "lease")).expect("a lease").state())
            }
            "observe" => {
                let mut observer = self.client.elect(text(command, "lock")).observe();
                let leader = observer.next().await.map_err(|error| failure(&error))?;
                Ok(json!({"holder": leader.as_ref().map(holder)}))
            }
            "set_limit" => {
                let limit = command["limit"].as_u64().filter(|limit| *limit > 0);
                let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
                let set = self.client.set_limit(text(command, "lock"), limit).await;
                let previous = set.map_err(|error| failure(&error))?;
                Ok(json!({"previous_limit": previous}))
            }
            "shutdown" => {
                self.client.clone().shutdown().await;
                Ok(json!({}))
            }
            unknown => panic!("{unknown} is no command"),
        }
    }

    fn lock(&self, command: &Value) -> Lock {
        let targets = targets(command);
        let mut lock = match targets.as_slice() {
            [target] => self.client.lock(target.clone()),
            _ => self.client.lock_all(targets),
        };
        let settings: [(&str, Setting); 6] = [
            ("ttl_ms", Lock::ttl),
            ("wait_ms", Lock::wait),
            ("max_hold_ms", Lock::max_hold),
            ("lock_delay_ms", Lock::lock_delay),
            ("disconnect_grace_ms", Lock::disconnect_grace),
            ("at_least_ms", Lock::at_least),
        ];
        for (name, set) in settings {
            if let Some(time) = ms(&command[name]) {
                lock = set(lock, time);
            }
        }
        if let Some(reason) = command["reason"].as_str() {
            lock = lock.reason(reason);
        }
        if let Some(under) = command["under"].as_str() {
            lock = lock.under(&self.leases.borrow().get(under).expect("a lease").held);
        }
        let call = command["id"].clone();
        lock.on_queue(move |queue_position: &QueuePosition| {
            let holders: Vec<_> = queue_position.holders.iter().map(holder).collect();
            emit(json!({
                "event": "queued", "at_ms": now_ms(), "call": call, "position": queue_position.position,
                "queue_length": queue_position.queue_length, "holders": holders,
                "closure": queue_position.closure.as_deref().map(closure),
            }));
        })
    }

    /// Waits for the result of an acquire, unless a `cancel` command drops it first.
    async fn cancellable<T>(
        &self,
        command: &Value,
        acquire: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Value> {
        let id = command["id"].as_u64().expect("an id");
        let (cancel, cancelled) = oneshot::channel();
        self.pending.borrow_mut().insert(id, cancel);
        tokio::select! {
            biased;
            result = acquire => {
                self.pending.borrow_mut().remove(&id);
                result.map_err(|error| failure(&error))
            }
            Ok(()) = cancelled => Err(json!({"class": "Cancelled", "message": "cancelled"})),
        }
    }

    /// Stores a lease under its name, and reports its loss.
    fn store_lease(&self, command: &Value, guard: Guard) -> Value {
        let name = text(command, "as").to_owned();
        let (held, watched, lease) = (guard.held(), guard.held(), name.clone());
        let watch = spawn_local(async move {
            let why = watched.lost().await;
            let at_ms = now_ms();
            emit(json!({"event": "lost", "at_ms": at_ms, "lease": lease, "reason": variant(&why)}));
        });
        let lease = Lease {
            guard: Some(guard),
            held,
            targets: targets(command),
            watch: watch.abort_handle(),
        };
        let state = lease.state();
        self.leases.borrow_mut().insert(name, lease);
        state
    }
}

impl Lease {
    fn state(&self) -> Value {
        let held = &self.held;
        let is_valid = held.is_valid();
        let tokens = self.targets.iter();
        let tokens = tokens.map(|target| held.fencing_token_of(target.clone()));
        json!({
            "lease_id": held.lease_id(), "tokens": tokens.collect::<Vec<_>>(), "valid": is_valid,
            "remaining_ms": held.remaining().as_secs_f64() * 1e3,
            "lost_reason": held.lost_reason().as_ref().map(variant),
        })
    }
}

fn targets(command: &Value) -> Vec<Target> {
    let targets = command["targets"].as_array().into_iter().flatten();
    let number = |target: &Value, name| {
        let number = target[name].as_u64().unwrap_or_default();
        u32::try_from(number).expect("a small number")
    };
    let target = |target: &Value| {
        let mut made = Target::new(text(target, "name"));
        if let Some(namespace) = target["namespace"].as_str() {
            made = made.namespace(namespace);
        }
        match target["mode"].as_str() {
            Some("shared") => made.shared(),
            Some("semaphore") => made.permits(number(target, "permits"), number(target, "limit")),
            _ => made,
        }
    };
    targets.map(target).collect()
}

fn respond(command: &Value, at_ms: f64, outcome: Outcome) {
    let id = &command["id"];
    emit(match outcome {
        Ok(value) => json!({"id": id, "at_ms": at_ms, "ok": value}),
        Err(error) => json!({"id": id, "at_ms": at_ms, "error": error}),
    });
}

fn failure(error: &Error) -> Value {
    let holders: Vec<_> = error.holders().iter().map(holder).collect();
    let retry_after = error.retry_after().map(|time| time.as_secs_f64() * 1e3);
    let lost = if let Error::LeaseLost(why) = error {
        Some(variant(why))
    } else {
        None
    };
    json!({
        "class": variant(error), "message": error.to_string(), "holders": holders,
        "retry_after_ms": retry_after, "reason": lost,
    })
}

fn release_failure(error: &ReleaseError) -> Value {
    let (class, lost) = if let ReleaseError::Lost(why) = error {
        ("LeaseLost".to_owned(), Some(variant(why)))
    } else {
        (variant(error), None)
    };
    json!({"class": class, "message": error.to_string(), "reason": lost})
}

fn closure(closure: &Closure) -> Value {
    let cause = match closure.cause {
        ClosureCause::LockDelay => "lock_delay",
        ClosureCause::AtLeast => "at_least",
        ClosureCause::Operator | ClosureCause::Other | _ => "operator",
    };
    json!({
        "cause": cause, "owner": closure.owner, "reason": closure.reason,
        "remaining_ms": closure.remaining.as_secs_f64() * 1e3,
    })
}

fn holder(holder: &Holder) -> Value {
    json!({
        "lease_id": holder.lease_id, "owner": holder.owner, "reason": holder.reason,
        "token": holder.fencing_token, "remaining_ms": holder.remaining.as_secs_f64() * 1e3,
    })
}

/// Returns the name of an enum's variant, which all SDKs share.
fn variant(value: &impl std::fmt::Debug) -> String {
    let shown = format!("{value:?}");
    let name = shown.split(|c: char| !c.is_alphanumeric()).next();
    name.unwrap_or_default().to_owned()
}

fn text<'a>(command: &'a Value, name: &str) -> &'a str {
    command[name].as_str().expect("a text")
}

fn ms(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

fn now_ms() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec as f64, now.tv_nsec as f64);
    seconds * 1e3 + nanos / 1e6
}

fn emit(line: Value) {
    println!("{line}");
}
