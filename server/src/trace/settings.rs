//! Where spans go, and how many: the settings, and OpenTelemetry's own variables where its libraries read them.

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

use super::{sampling::Sampling, sender::Sender};

const NAME: &str = "leasehold-server";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What the library calls a process that nobody has named.
const UNNAMED: &str = "unknown_service";

/// Tracing as it is configured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TracingSettings {
    /// The collector, which takes OTLP over gRPC; `None`: the library's own variables name it, or nobody does.
    pub endpoint: Option<String>,
    /// The address that those variables name.
    pub endpoint_of_library: Option<String>,
    /// The share of the calls whose callers have not decided; 0 is off.
    pub sample_ratio: f64,
}

impl TracingSettings {
    /// `None`: it is off.
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
        let exporter = exporter.map_err(|error| format!("cannot send spans: {error}"))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_sampler(Sampling)
            .with_batch_exporter(Sender::new(exporter));
        Ok(Some(provider.build()))
    }
}

pub(super) fn tracer(provider: &SdkTracerProvider) -> SdkTracer {
    let scope = InstrumentationScope::builder(NAME).with_version(VERSION);
    provider.tracer_with_scope(scope.build())
}

/// Who sends the spans: as the environment says, and what it leaves open.
fn resource() -> Resource {
    let given = Resource::builder().build();
    let is_named = |key: &'static str| {
        let name = given.get(&Key::new(key)).map(|name| name.to_string());
        name.is_some_and(|name| !name.starts_with(UNNAMED))
    };
    let own = [
        ("service.name", NAME.to_owned()),
        ("service.version", VERSION.to_owned()),
        ("service.instance.id", Uuid::new_v4().to_string()),
    ];
    let own = own.into_iter().filter(|(key, _)| !is_named(key));
    let own = own.map(|(key, value)| KeyValue::new(key, value));
    Resource::builder().with_attributes(own).build()
}
