//! What of the configuration can change while the broker runs.

use std::time::Duration;

use super::{
    key::{Kind, key, number, time},
    reader::Reader,
};
use crate::{lock::Limits, quotas::QuotaLimits, telemetry};

const QUOTA_MOST: u32 = 1_000_000_000;
const TTL_LEAST: Duration = Duration::from_millis(100);
const TTL_DEFAULT: Duration = Duration::from_secs(10);
const LOCK_DELAY_MOST: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// As humantime counts it.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// What calls and a stop go by from the moment they begin. Of the limits `ttl_max_ms` and
/// `lock_delay_max_ms` stay as they are: they stand in the store's era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Bounds of what callers may ask for.
    pub limits: Limits,
    /// The longest time that a stop may take.
    pub drain_timeout: Duration,
    /// What callers may have at once.
    pub quotas: QuotaLimits,
    /// What is logged: directives of tracing-subscriber's `EnvFilter`.
    pub log_filter: String,
}

impl Live {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let about = "How long a stop may take before open connections are cut";
        let drain_timeout = key("server.drain_timeout", about).or("10s").reloads();
        let about = "What to log, by level and module, such as info or leasehold_server=debug";
        let log_filter = key("log.filter", about).or("info").reloads();
        Self {
            limits: limits(reader),
            quotas: quotas(reader),
            drain_timeout: reader.read(drain_timeout, time(Duration::ZERO, HOUR)),
            log_filter: reader.read(log_filter, filter()),
        }
    }
}

fn limits(reader: &mut Reader) -> Limits {
    let about = "The shortest validity; a shorter one asked for is raised to it";
    let ttl_min = key("limits.ttl_min", about).or("1s").reloads();
    let ttl_min = reader.read(ttl_min, time(TTL_LEAST, HOUR));
    let about = "The longest validity; a longer one asked for is cut to it";
    let ttl_max = key("limits.ttl_max", about).or("60s");
    let ttl_max = reader.read(ttl_max, time(TTL_LEAST, HOUR));
    if ttl_max < ttl_min {
        reader.problem("limits.ttl_max", "must not be below limits.ttl_min");
    }
    let about = "The validity where the caller names none";
    let ttl_default = key("limits.ttl_default", about).or("10s").reloads();
    let in_bounds = TTL_DEFAULT.min(ttl_max).max(ttl_min);
    let in_bounds = humantime::format_duration(in_bounds).to_string();
    let ttl_default = reader.read_or(ttl_default, time(TTL_LEAST, HOUR), &in_bounds);
    if ttl_max >= ttl_min && !(ttl_min..=ttl_max).contains(&ttl_default) {
        let between = "must lie between limits.ttl_min and limits.ttl_max";
        reader.problem("limits.ttl_default", between);
    }
    let about = "The longest wait in line; a longer one asked for is cut to it";
    let wait_max = key("limits.wait_max", about).or("1h").reloads();
    let about = "The longest max_hold, and the max_hold where the caller names none; a longer one asked \
        for is cut to it";
    let max_hold_max = key("limits.max_hold_max", about).reloads();
    let max_hold_max = reader.find(max_hold_max, &time(TTL_LEAST, YEAR));
    if max_hold_max.is_some_and(|max_hold_max| max_hold_max < ttl_min) {
        reader.problem("limits.max_hold_max", "must not be below limits.ttl_min");
    }
    let about = "The longest lock_delay; a longer one asked for is refused";
    let lock_delay_max = key("limits.lock_delay_max", about).or("10s");
    Limits {
        ttl_min_ms: millis(ttl_min),
        ttl_max_ms: millis(ttl_max),
        ttl_default_ms: millis(ttl_default),
        max_hold_max_ms: max_hold_max.map(millis),
        wait_max_ms: millis(reader.read(wait_max, time(Duration::ZERO, HOUR))),
        lock_delay_max_ms: millis(
            reader.read(lock_delay_max, time(Duration::ZERO, LOCK_DELAY_MOST)),
        ),
    }
}

fn quotas(reader: &mut Reader) -> QuotaLimits {
    let mut count = |name, about, default| {
        reader.read(
            key(name, about).or(default).reloads(),
            number(1, QUOTA_MOST),
        )
    };
    QuotaLimits {
        locks_per_caller: count(
            "quotas.locks_per_caller",
            "Locks that a caller may hold or wait for, where callers show who they are",
            "10000",
        ),
        locks_per_namespace: count(
            "quotas.locks_per_namespace",
            "Locks of a namespace that may be held or waited for",
            "100000",
        ),
        locks: count(
            "quotas.locks",
            "Locks that may be held or waited for in all",
            "250000",
        ),
        acquires_per_second: count(
            "quotas.acquires_per_second",
            "Acquires of a caller, where callers show who they are; twice as many in a burst",
            "500",
        ),
        acquires_at_once: count(
            "quotas.acquires_at_once",
            "Acquires that the store may owe an answer; more are refused as overload",
            "4096",
        ),
    }
}

fn filter() -> Kind<String> {
    let schema = serde_json::json!({ "type": "string" });
    Kind::explaining("a log filter", schema, |text| {
        match telemetry::check(text) {
            Ok(()) => Ok(text.to_owned()),
            Err(error) => Err(format!("must be a log filter, not {text:?}: {error}")),
        }
    })
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
