//! Span exporter that logs export failures at most once a minute.

use std::time::Duration;

use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use parking_lot::Mutex;
use tokio::time::Instant;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Exporter that counts and logs dropped spans.
#[derive(Debug)]
pub(super) struct WatchedExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    dropped: Mutex<DroppedSpans>,
}

/// State of the log of dropped spans.
#[derive(Debug, Default)]
struct DroppedSpans {
    logged_at: Option<Instant>,
    /// Number of spans dropped since the last warning.
    suppressed: usize,
    is_failing: bool,
}

impl WatchedExporter {
    pub(super) fn new(exporter: opentelemetry_otlp::SpanExporter) -> Self {
        let dropped = Mutex::default();
        Self { exporter, dropped }
    }

    fn on_result(&self, count: usize, result: &OTelSdkResult) {
        let mut dropped = self.dropped.lock();
        let Err(error) = result else {
            if std::mem::take(&mut dropped.is_failing) {
                tracing::info!("trace export recovered");
            }
            return;
        };
        dropped.is_failing = true;
        dropped.suppressed += count;
        if dropped
            .logged_at
            .is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL)
        {
            let spans = std::mem::take(&mut dropped.suppressed);
            dropped.logged_at = Some(Instant::now());
            tracing::warn!(spans, %error, "trace export failed, spans dropped");
        }
    }
}

impl SpanExporter for WatchedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.exporter.export(batch).await;
        self.on_result(count, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
