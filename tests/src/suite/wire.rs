//! What is said between the runner and a probe, as `tests/suite/README.md` has it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Maximum by which the clock of a probe may be behind: a language without a call for CLOCK_BOOTTIME reads
/// `/proc/uptime`, which shows hundredths of a second.
pub const CLOCK_STEP: Duration = Duration::from_millis(10);

/// An acquire that a probe is told to do.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What the lease is called in later commands.
    pub lease: String,
    targets: Vec<Value>,
    settings: Map<String, Value>,
}

impl Ask {
    /// One lock, whose name is that of the lease.
    #[must_use]
    pub fn one(lock: &str) -> Self {
        Self::all(lock, [json!({ "name": lock })])
    }

    /// One lock as a reader.
    #[must_use]
    pub fn shared(lock: &str) -> Self {
        Self::all(lock, [json!({"name": lock, "mode": "shared"})])
    }

    /// Permits of a semaphore.
    #[must_use]
    pub fn permits(lock: &str, permits: u32, limit: u32) -> Self {
        let mode = "semaphore";
        let target = json!({"name": lock, "mode": mode, "permits": permits, "limit": limit});
        Self::all(lock, [target])
    }

    /// Any targets.
    #[must_use]
    pub fn all(lease: &str, targets: impl IntoIterator<Item = Value>) -> Self {
        Self {
            lease: lease.to_owned(),
            targets: targets.into_iter().collect(),
            settings: Map::new(),
        }
    }

    /// With a lease of this name.
    #[must_use]
    pub fn called(mut self, lease: &str) -> Self {
        lease.clone_into(&mut self.lease);
        self
    }

    /// Validity.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.time("ttl_ms", ttl)
    }

    /// How long to wait in line; without this as long as the SDK does by itself.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.time("wait_ms", wait)
    }

    /// A setting that is a time.
    #[must_use]
    pub fn time(self, name: &str, time: Duration) -> Self {
        let ms = u64::try_from(time.as_millis()).expect("a short time");
        self.with(name, ms)
    }

    /// Under this lease.
    #[must_use]
    pub fn under(self, lease: &str) -> Self {
        self.with("under", lease)
    }

    /// Any setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    /// The command's fields.
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = self.settings.clone();
        fields.insert("as".to_owned(), json!(self.lease));
        fields.insert("targets".to_owned(), json!(self.targets));
        fields
    }
}

/// A lease as its probe sees it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// When the probe had it, or before it looked.
    #[serde(skip)]
    pub at: Duration,
    /// Public identifier.
    pub lease_id: String,
    /// One for each target, in their order.
    pub tokens: Vec<i64>,
    /// Whether it may be trusted.
    pub valid: bool,
    /// For how long.
    pub remaining_ms: f64,
    /// Why not.
    pub lost_reason: Option<String>,
}

impl Lease {
    /// The fencing token of its first lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.tokens[0]
    }
}

/// Somebody who holds a lock, as a probe was told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Public identifier.
    pub lease_id: String,
    /// The process.
    pub owner: String,
    /// Why it took the lock.
    pub reason: String,
    /// Its fencing token.
    pub token: i64,
    /// Time left on its lease.
    pub remaining_ms: f64,
}

/// What failed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind of error, in the common spelling.
    pub class: String,
    /// For people.
    pub message: String,
    /// Who was in the way.
    #[serde(default)]
    pub holders: Vec<Holder>,
    /// When to try again.
    pub retry_after_ms: Option<f64>,
    /// Why a lease was lost.
    pub reason: Option<String>,
}

/// An answer to a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The command's.
    pub id: u64,
    at_ms: f64,
    ok: Option<Value>,
    error: Option<Failure>,
}

impl Answer {
    /// When it was answered, and how.
    pub fn outcome(self) -> (Duration, Result<Value, Failure>) {
        let outcome = self.error.map_or(Ok(self.ok.unwrap_or_default()), Err);
        (time(self.at_ms), outcome)
    }
}

/// What a probe says by itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// It is connected.
    Ready {
        /// Since then.
        at_ms: f64,
    },
    /// It could not connect, and ends.
    Failed {
        /// When.
        at_ms: f64,
        /// Why.
        error: Failure,
    },
    /// A lease is lost.
    Lost {
        /// When the probe had heard.
        at_ms: f64,
        /// Its name.
        lease: String,
        /// Why.
        reason: String,
    },
    /// A place in line.
    Queued {
        /// When the probe had heard.
        at_ms: f64,
        /// The id of the acquire.
        call: u64,
        /// 1 is next.
        position: u32,
        /// How many wait.
        queue_length: u32,
        /// Who holds the lock.
        holders: Vec<Holder>,
    },
}

/// A line of a probe.
#[derive(Debug)]
pub enum Line {
    /// To a command.
    Answer(Answer),
    /// By itself.
    Event(Event),
}

impl Line {
    /// Reads it.
    #[must_use]
    pub fn read(line: &str) -> Self {
        let read = serde_json::from_str(line).and_then(|value: Value| {
            let is_event = value.get("event").is_some();
            Ok(if is_event {
                Self::Event(serde_json::from_value(value)?)
            } else {
                Self::Answer(serde_json::from_value(value)?)
            })
        });
        read.unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// A moment on CLOCK_BOOTTIME.
#[must_use]
pub fn time(at_ms: f64) -> Duration {
    Duration::from_secs_f64(at_ms / 1e3)
}
