//! Settings that can change while the broker runs.

use std::time::Duration;

use super::{
    reader::Reader,
    setting_def::{ValueType, duration, number, setting},
};
use crate::{lock::Limits, quotas::QuotaLimits, telemetry, time::millis};

const QUOTA_MAX: u32 = 1_000_000_000;
const TTL_MIN: Duration = Duration::from_millis(100);
const TTL_DEFAULT: Duration = Duration::from_secs(10);
const LOCK_DELAY_MAX: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// A year as defined by humantime.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// Reloadable settings, which apply to calls and shutdowns that begin after a change. The limits
/// `ttl_max_ms` and `lock_delay_max_ms` do not change, because they are recorded in the store's
/// era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadableConfig {
    /// Limits of the times that callers may request.
    pub limits: Limits,
    /// Maximum duration of a shutdown.
    pub drain_timeout: Duration,
    /// Quotas of callers, namespaces and the broker.
    pub quotas: QuotaLimits,
    /// Log filter: directives of tracing-subscriber's `EnvFilter`.
    pub log_filter: String,
}

impl ReloadableConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let about = "Time that a shutdown may take before open connections are closed";
        let drain_timeout = setting("server.drain_timeout", about)
            .with_default("10s")
            .reloadable();
        let about = "Levels and modules to log, such as info or leasehold_server=debug";
        let log_filter = setting("log.filter", about)
            .with_default("info")
            .reloadable();
        Self {
            limits: limits(reader),
            quotas: quotas(reader),
            drain_timeout: reader.read(drain_timeout, duration(Duration::ZERO, HOUR)),
            log_filter: reader.read(log_filter, filter()),
        }
    }
}

fn limits(reader: &mut Reader) -> Limits {
    let about = "Shortest validity of a lease; a shorter request is raised to it";
    let ttl_min = setting("limits.ttl_min", about)
        .with_default("1s")
        .reloadable();
    let ttl_min = reader.read(ttl_min, duration(TTL_MIN, HOUR));
    let about = "Longest validity of a lease; a longer request is reduced to it";
    let ttl_max = setting("limits.ttl_max", about).with_default("60s");
    let ttl_max = reader.read(ttl_max, duration(TTL_MIN, HOUR));
    if ttl_max < ttl_min {
        reader.problem("limits.ttl_max", "must not be below limits.ttl_min");
    }
    let about = "Validity of a lease if the caller requests none";
    let ttl_default = setting("limits.ttl_default", about)
        .with_default("10s")
        .reloadable();
    let in_bounds = TTL_DEFAULT.min(ttl_max).max(ttl_min);
    let in_bounds = humantime::format_duration(in_bounds).to_string();
    let ttl_default = reader.read_or(ttl_default, duration(TTL_MIN, HOUR), &in_bounds);
    if ttl_max >= ttl_min && !(ttl_min..=ttl_max).contains(&ttl_default) {
        let between = "must lie between limits.ttl_min and limits.ttl_max";
        reader.problem("limits.ttl_default", between);
    }
    let about = "Longest wait in a queue; a longer request is reduced to it";
    let wait_max = setting("limits.wait_max", about)
        .with_default("1h")
        .reloadable();
    let about = "Longest max_hold, and the max_hold if the caller requests none; a longer request \
        is reduced to it";
    let max_hold_max = setting("limits.max_hold_max", about).reloadable();
    let max_hold_max = reader.find(max_hold_max, &duration(TTL_MIN, YEAR));
    if max_hold_max.is_some_and(|max_hold_max| max_hold_max < ttl_min) {
        reader.problem("limits.max_hold_max", "must not be below limits.ttl_min");
    }
    let about = "Longest lock_delay; a longer request is rejected";
    let lock_delay_max = setting("limits.lock_delay_max", about).with_default("10s");
    let about = "Longest at_least; a longer request is rejected";
    let at_least_max = setting("limits.at_least_max", about)
        .with_default("24h")
        .reloadable();
    Limits {
        ttl_min_ms: millis(ttl_min),
        ttl_max_ms: millis(ttl_max),
        ttl_default_ms: millis(ttl_default),
        max_hold_max_ms: max_hold_max.map(millis),
        wait_max_ms: millis(reader.read(wait_max, duration(Duration::ZERO, HOUR))),
        lock_delay_max_ms: millis(
            reader.read(lock_delay_max, duration(Duration::ZERO, LOCK_DELAY_MAX)),
        ),
        at_least_max_ms: millis(reader.read(at_least_max, duration(Duration::ZERO, YEAR))),
    }
}

fn quotas(reader: &mut Reader) -> QuotaLimits {
    let mut count = |name, about, default| {
        reader.read(
            setting(name, about).with_default(default).reloadable(),
            number(1, QUOTA_MAX),
        )
    };
    QuotaLimits {
        locks_per_caller: count(
            "quotas.locks_per_caller",
            "Maximum number of locks that an authenticated caller may hold or wait for",
            "10000",
        ),
        locks_per_namespace: count(
            "quotas.locks_per_namespace",
            "Maximum number of locks of a namespace that are held or waited for",
            "100000",
        ),
        locks: count(
            "quotas.locks",
            "Maximum number of locks that are held or waited for in total",
            "250000",
        ),
        acquires_per_second: count(
            "quotas.acquires_per_second",
            "Maximum number of acquires per second of an authenticated caller; twice as many in a \
             burst",
            "500",
        ),
        acquires_in_flight: count(
            "quotas.acquires_at_once",
            "Maximum number of acquires that wait for a reply of the store; further ones are \
             rejected as overload",
            "4096",
        ),
    }
}

fn filter() -> ValueType<String> {
    let schema = serde_json::json!({ "type": "string" });
    ValueType::with_errors("a log filter", schema, |text| {
        match telemetry::check(text) {
            Ok(()) => Ok(text.to_owned()),
            Err(error) => Err(format!("must be a log filter, not {text:?}: {error}")),
        }
    })
}
