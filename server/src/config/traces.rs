//! `tracing.*`: where spans go, and how many.

use std::env;

use serde_json::json;

use super::{
    key::{Kind, key},
    reader::Reader,
};
use crate::trace::TracingSettings;

/// OpenTelemetry's own variables that name a collector, the more special one first.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// Turns all of OpenTelemetry off.
const DISABLED: &str = "OTEL_SDK_DISABLED";

pub(super) fn read(reader: &mut Reader) -> TracingSettings {
    let about = "The collector to which spans of calls are sent with OTLP over gRPC; without it, and \
                 without OTEL_EXPORTER_OTLP_ENDPOINT, there is no tracing";
    let endpoint = reader.find(key("tracing.otlp_endpoint", about), &address());
    let about =
        "The share of calls that are traced where the caller has not decided; 0 turns tracing off";
    let sample_ratio = reader.read(key("tracing.sample_ratio", about).or("0.01"), share());
    let of_library = ENDPOINTS.into_iter().find_map(variable);
    let is_disabled = variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
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

fn address() -> Kind<String> {
    let what = "an http or https address without a password, such as http://127.0.0.1:4317";
    let schema = json!({ "type": "string", "pattern": "^https?://[^@/]+/?$" });
    Kind::new(what, schema, |text| {
        let rest = text.strip_prefix("http://");
        let host = rest.or_else(|| text.strip_prefix("https://"))?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_legal = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        (!host.is_empty() && host.chars().all(is_legal)).then(|| text.to_owned())
    })
}

fn share() -> Kind<f64> {
    let schema = json!({ "type": "number", "minimum": 0, "maximum": 1 });
    Kind::new("a number from 0 to 1, such as 0.01", schema, |text| {
        let share: f64 = text.parse().ok()?;
        (0.0..=1.0).contains(&share).then_some(share)
    })
}
