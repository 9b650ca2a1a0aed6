//! Messages between the runner and a probe, as specified in `tests/suite/README.md`.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Maximum by which the clock of a probe may be behind: a language without a call for
/// CLOCK_BOOTTIME reads `/proc/uptime`, which has hundredths of a second.
pub const CLOCK_STEP: Duration = Duration::from_millis(10);

/// An acquire command for a probe.
#[derive(Debug, Clone)]
pub struct ProbeAcquire {
    /// Name of the lease in later commands.
    pub lease: String,
    targets: Vec<Value>,
    settings: Map<String, Value>,
}

impl ProbeAcquire {
    /// Returns an acquire of one lock, whose lease has the name of the lock.
    #[must_use]
    pub fn exclusive(lock: &str) -> Self {
        Self::all(lock, [json!({ "name": lock })])
    }

    /// Returns an acquire of a shared lock.
    #[must_use]
    pub fn shared(lock: &str) -> Self {
        Self::all(lock, [json!({"name": lock, "mode": "shared"})])
    }

    /// Returns an acquire of permits of a semaphore.
    #[must_use]
    pub fn permits(lock: &str, permits: u32, limit: u32) -> Self {
        let mode = "semaphore";
        let target = json!({"name": lock, "mode": mode, "permits": permits, "limit": limit});
        Self::all(lock, [target])
    }

    /// Returns an acquire of these targets.
    #[must_use]
    pub fn all(lease: &str, targets: impl IntoIterator<Item = Value>) -> Self {
        Self {
            lease: lease.to_owned(),
            targets: targets.into_iter().collect(),
            settings: Map::new(),
        }
    }

    /// Sets the name of the lease.
    #[must_use]
    pub fn with_lease_name(mut self, lease: &str) -> Self {
        lease.clone_into(&mut self.lease);
        self
    }

    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.with_duration("ttl_ms", ttl)
    }

    /// Sets the time to wait in the queue. Without it, the default of the SDK applies.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        self.with_duration("wait_ms", wait)
    }

    /// Sets a duration setting, in milliseconds.
    #[must_use]
    pub fn with_duration(self, name: &str, time: Duration) -> Self {
        let ms = u64::try_from(time.as_millis()).expect("a short time");
        self.with_field(name, ms)
    }

    /// Puts the call under an existing lease.
    #[must_use]
    pub fn under_lease(self, lease: &str) -> Self {
        self.with_field("under", lease)
    }

    /// Sets a field of the command.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the fields of the command.
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = self.settings.clone();
        fields.insert("as".to_owned(), json!(self.lease));
        fields.insert("targets".to_owned(), json!(self.targets));
        fields
    }
}

/// A lease in the state of its probe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Time of the answer. For a state, it is read before the state.
    #[serde(skip)]
    pub at: Duration,
    pub lease_id: String,
    /// Fencing tokens of the targets, in order.
    pub tokens: Vec<i64>,
    /// True if the lease is valid.
    pub valid: bool,
    pub remaining_ms: f64,
    /// Reason for the loss.
    pub lost_reason: Option<String>,
}

impl Lease {
    /// Returns the fencing token of the first lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.tokens[0]
    }
}

/// A holder of a lock, as reported by a probe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    pub lease_id: String,
    /// Id of the owner, which is the probe's process.
    pub owner: String,
    /// Reason that the owner states for its acquire.
    pub reason: String,
    pub token: i64,
    pub remaining_ms: f64,
}

/// A closure of a lock, as reported by a probe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closure {
    /// `lock_delay`, `at_least` or `operator`.
    pub cause: String,
    pub owner: String,
    pub reason: String,
    pub remaining_ms: f64,
}

/// An error of a command.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Error class, with the same names in all languages.
    pub class: String,
    pub message: String,
    /// Holders of the requested lock.
    #[serde(default)]
    pub holders: Vec<Holder>,
    /// Time after which to retry.
    pub retry_after_ms: Option<f64>,
    /// Reason for the loss of a lease.
    pub reason: Option<String>,
}

/// The answer to a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeReply {
    /// Id of the command.
    pub id: u64,
    at_ms: f64,
    ok: Option<Value>,
    error: Option<Failure>,
}

impl ProbeReply {
    /// Returns the time of the answer, and its result.
    pub fn outcome(self) -> (Duration, Result<Value, Failure>) {
        let outcome = self.error.map_or(Ok(self.ok.unwrap_or_default()), Err);
        (boottime_from_ms(self.at_ms), outcome)
    }
}

/// An event of a probe.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProbeEvent {
    /// The probe has connected.
    Ready {
        /// Time of the connection.
        at_ms: f64,
    },
    /// The probe could not connect, and ends.
    Failed {
        /// Time of the failure.
        at_ms: f64,
        error: Failure,
    },
    /// A lease is lost.
    Lost {
        /// Time at which the SDK reported the loss.
        at_ms: f64,
        /// Name of the lease.
        lease: String,
        reason: String,
    },
    /// An acquire has a new queue position.
    Queued {
        /// Time at which the SDK reported the position.
        at_ms: f64,
        /// Id of the acquire command.
        call: u64,
        /// Queue position. The next waiter has position 1.
        position: u32,
        queue_length: u32,
        /// Holders of the lock.
        holders: Vec<Holder>,
        /// Closure of the lock, if it is closed.
        closure: Option<Closure>,
    },
}

/// A line from a probe.
#[derive(Debug)]
pub enum ProbeLine {
    Reply(ProbeReply),
    Event(ProbeEvent),
}

impl ProbeLine {
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let read = serde_json::from_str(line).and_then(|value: Value| {
            let is_event = value.get("event").is_some();
            Ok(if is_event {
                Self::Event(serde_json::from_value(value)?)
            } else {
                Self::Reply(serde_json::from_value(value)?)
            })
        });
        read.unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// Converts a time of CLOCK_BOOTTIME in milliseconds.
#[must_use]
pub fn boottime_from_ms(at_ms: f64) -> Duration {
    Duration::from_secs_f64(at_ms / 1e3)
}
