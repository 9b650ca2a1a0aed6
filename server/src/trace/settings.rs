//! Settings of tracing, and OpenTelemetry's own variables where its libraries read them.

use opentelemetry::{InstrumentationScope, Key, KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig as _, WithTonicConfig as _,
    tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};
use uuid::Uuid;

use super::{exporter::WatchedExporter, sampling::Sampling};

const SERVICE_NAME: &str = "leasehold-server";
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Prefix of the service name that the library uses if none is configured.
const UNKNOWN_SERVICE_PREFIX: &str = "unknown_service";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct TracingSettings {
    /// Address of the collector (OTLP over gRPC). If `None`, the library's own variables are used.
    pub endpoint: Option<String>,
    /// Address in the library's own variables, if any.
    pub endpoint_of_library: Option<String>,
    /// Sampling ratio of calls without a parent decision; 0 turns tracing off.
    pub sample_ratio: f64,
}

impl TracingSettings {
    /// Creates the provider of spans. Returns `None` if tracing is off.
    pub(super) fn provider(&self) -> Result<Option<SdkTracerProvider>, String> {
        let endpoint = self.endpoint.as_ref().or(self.endpoint_of_library.as_ref());
        let Some(endpoint) = endpoint.filter(|_| self.sample_ratio > 0.0) else {
            return Ok(None);
        };
        let mut exporter = SpanExporter::builder().with_tonic();
        if let Some(endpoint) = &self.endpoint {
            exporter = exporter.with_endpoint(endpoint);
        }
        if endpoint.starts_with("https:") {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter = exporter.build();
        let exporter =
            exporter.map_err(|error| format!("cannot create the trace exporter: {error}"))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_sampler(Sampling)
            .with_batch_exporter(WatchedExporter::new(exporter));
        Ok(Some(provider.build()))
    }
}

pub(super) fn tracer(provider: &SdkTracerProvider) -> SdkTracer {
    let scope = InstrumentationScope::builder(SERVICE_NAME).with_version(SERVICE_VERSION);
    provider.tracer_with_scope(scope.build())
}

/// Returns the resource attributes: those in the environment, completed by defaults.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let is_named = |key: &'static str| {
        let name = detected.get(&Key::new(key)).map(|name| name.to_string());
        name.is_some_and(|name| !name.starts_with(UNKNOWN_SERVICE_PREFIX))
    };
    let attributes = [
        ("service.name", SERVICE_NAME.to_owned()),
        ("service.version", SERVICE_VERSION.to_owned()),
        ("service.instance.id", Uuid::new_v4().to_string()),
    ];
    let attributes = attributes.into_iter().filter(|(key, _)| !is_named(key));
    let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
    Resource::builder().with_attributes(attributes).build()
}
