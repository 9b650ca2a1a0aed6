//! Adapts the limit of spans in a store to the spans in use: see spans.lua.

use std::{
    convert::Infallible,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::Client,
    error::Error,
    types::{FromValue as _, Value},
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, info};

use super::{
    connection::RedisConfig,
    era::{Era, QUARANTINE_MARGIN_MS},
    node::Node,
    script::Script,
    scripts::Command,
    silence::boot_ms,
    span_limit::{LastSpanLimit, SpanLimitTerms, StoredSpanLimit},
};
use crate::lock::{CUT_TTL_MIN_MS, SPAN_MIN_MS, span_ms};

static SPANS: LazyLock<Script> =
    LazyLock::new(|| Script::new("spans", include_str!("lua/spans.lua")));

/// Interval at which a larger span that was requested is noticed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the store is stamped and the spans in use are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Step of the limit, so that slightly longer ttls do not raise it again.
const STEP_MS: u64 = 5_000;

/// The largest span that this broker has seen since the last report: requested by a call, or that of
/// a lease that was renewed.
#[derive(Debug, Default)]
pub(super) struct SpanUse(AtomicU64);

impl SpanUse {
    /// Records the span of a call or of a lease.
    pub(super) fn record(&self, span_ms: u64) {
        // A load alone is cheaper than a write that changes nothing.
        if span_ms > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(span_ms, Ordering::Relaxed);
        }
    }
}

/// Reports the spans in use to the store, so that it raises and lowers its limit, and records the
/// limit that the store replies.
pub(super) struct SpanKeeper<'a> {
    pub(super) node: &'a Node,
    pub(super) client: Client,
    pub(super) config: &'a RedisConfig,
    pub(super) span_use: &'a SpanUse,
    pub(super) last_limit: &'a LastSpanLimit,
}

impl SpanKeeper<'_> {
    /// Runs while the node serves. Does nothing for a store without a limit.
    pub(super) async fn run(self) -> Infallible {
        let era = self.node.era().filter(|era| era.span_limit.is_some());
        let (Some(terms), Some(era)) = (self.config.span_limit, era) else {
            return std::future::pending().await;
        };
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last_limit, mut reported_at) = (era.span_limit, None::<Instant>);
        let mut is_loaded = false;
        loop {
            ticks.tick().await;
            let wanted_ms = self.span_use.0.load(Ordering::Relaxed);
            let is_over = last_limit.is_some_and(|limit| wanted_ms > limit.after_ms);
            let is_due = reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL);
            if !is_over && !is_due {
                continue;
            }
            let seen_ms = self.span_use.0.swap(0, Ordering::Relaxed);
            if !is_loaded {
                is_loaded = SPANS.load(&self.client).await.is_ok();
            }
            match self.report(seen_ms, terms, era).await {
                Ok(Some(limit)) => {
                    if last_limit != Some(limit) {
                        self.log_change(limit);
                    }
                    (last_limit, reported_at) = (Some(limit), Some(Instant::now()));
                }
                // The health check closes the node.
                Ok(None) => {}
                Err(error) => {
                    is_loaded = false;
                    self.span_use.record(seen_ms);
                    debug!(%error, "the limit of spans was not adapted");
                }
            }
        }
    }

    /// Runs the script. Returns the limit, or `None` in another era.
    async fn report(
        &self,
        seen_ms: u64,
        terms: SpanLimitTerms,
        era: &Era,
    ) -> Result<Option<StoredSpanLimit>, Error> {
        // The largest bounds of all brokers, because the limit is for all of them.
        let bounds = era.bounds.max(self.config.bounds);
        let least_ms = span_ms(CUT_TTL_MIN_MS, bounds.lock_delay_max_ms).max(SPAN_MIN_MS);
        let longest_ms = bounds.span_ms().max(SPAN_MIN_MS);
        // A recovery by the limit, without the limit itself.
        let rest_ms = bounds.former_master_max_ms + QUARANTINE_MARGIN_MS;
        let numbers = [
            seen_ms.min(longest_ms),
            least_ms,
            terms.change_ms(bounds.former_master_max_ms),
            rest_ms,
            STEP_MS,
        ];
        let mut args: Vec<Value> = vec![era.id.as_str().into()];
        args.extend(numbers.map(|number| Value::from(number.to_string())));
        let command = Command {
            keys: vec![self.config.era_key(), self.config.spans_key()],
            args,
        };
        let sent_ms = boot_ms();
        let reply = SPANS.run(&self.client, command).await?;
        let (text, now_ms) = <(String, u64)>::from_value(reply)?;
        let limit = StoredSpanLimit::of_era(&text);
        if let Some(limit) = limit {
            self.last_limit.record(limit.at(now_ms), sent_ms);
        }
        Ok(limit)
    }

    fn log_change(&self, limit: StoredSpanLimit) {
        let StoredSpanLimit {
            before_ms,
            after_ms,
            at_ms,
        } = limit;
        let remaining_ms = at_ms.saturating_sub(self.node.now_us() / 1_000);
        info!(
            before_ms,
            after_ms,
            remaining_ms,
            "{} changes the limit of spans",
            self.node.name()
        );
    }
}
