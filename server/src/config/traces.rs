//! Settings `tracing.*`: export and sampling of spans.

use std::env;

use serde_json::json;

use super::{
    reader::Reader,
    setting_def::{ValueType, setting},
};
use crate::trace::TracingSettings;

/// OpenTelemetry's variables for the collector's address, the more specific one first.
const ENDPOINT_VARIABLES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// OpenTelemetry's variable that disables the SDK.
const DISABLE_VARIABLE: &str = "OTEL_SDK_DISABLED";

pub(super) fn read(reader: &mut Reader) -> TracingSettings {
    let about = "Collector that receives spans of calls with OTLP over gRPC; without it, and \
        without OTEL_EXPORTER_OTLP_ENDPOINT, tracing is off";
    let endpoint = reader.find(setting("tracing.otlp_endpoint", about), &address());
    let about = "Share of calls to trace if the caller has not decided; 0 turns tracing off";
    let sample_ratio = reader.read(
        setting("tracing.sample_ratio", about).with_default("0.01"),
        sampling_ratio(),
    );
    let of_library = ENDPOINT_VARIABLES.into_iter().find_map(variable);
    let is_disabled =
        variable(DISABLE_VARIABLE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    TracingSettings {
        endpoint: endpoint.filter(|_| !is_disabled),
        endpoint_of_library: of_library.filter(|_| !is_disabled),
        sample_ratio,
    }
}

fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?.into_string().ok()?;
    (!value.trim().is_empty()).then_some(value)
}

fn address() -> ValueType<String> {
    let expected = "an http or https address without a password, such as http://127.0.0.1:4317";
    let schema = json!({ "type": "string", "pattern": "^https?://[^@/]+/?$" });
    ValueType::new(expected, schema, |text| {
        let rest = text.strip_prefix("http://");
        let host = rest.or_else(|| text.strip_prefix("https://"))?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_legal = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        (!host.is_empty() && host.chars().all(is_legal)).then(|| text.to_owned())
    })
}

fn sampling_ratio() -> ValueType<f64> {
    let schema = json!({ "type": "number", "minimum": 0, "maximum": 1 });
    ValueType::new("a number from 0 to 1, such as 0.01", schema, |text| {
        let ratio: f64 = text.parse().ok()?;
        (0.0..=1.0).contains(&ratio).then_some(ratio)
    })
}
