//! Sends spans to a collector, and says once in a while that it does not take them.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use tokio::time::Instant;

const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The exporter, watched.
#[derive(Debug)]
pub(super) struct Sender {
    exporter: opentelemetry_otlp::SpanExporter,
    lost: Mutex<Lost>,
}

/// What could not be sent.
#[derive(Debug, Default)]
struct Lost {
    told: Option<Instant>,
    /// Spans, since then.
    untold: usize,
    is_failing: bool,
}

impl Sender {
    pub(super) fn new(exporter: opentelemetry_otlp::SpanExporter) -> Self {
        let lost = Mutex::default();
        Self { exporter, lost }
    }

    fn sent(&self, count: usize, result: &OTelSdkResult) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = result else {
            if std::mem::take(&mut lost.is_failing) {
                tracing::info!("the collector takes spans again");
            }
            return;
        };
        lost.is_failing = true;
        lost.untold += count;
        if lost.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            let spans = std::mem::take(&mut lost.untold);
            lost.told = Some(Instant::now());
            tracing::warn!(spans, %error, "the collector does not take spans: they are lost");
        }
    }
}

impl SpanExporter for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.exporter.export(batch).await;
        self.sent(count, &result);
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
