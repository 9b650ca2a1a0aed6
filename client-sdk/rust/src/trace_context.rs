//! The caller's trace context, for the broker's part of the trace.

/// As in the W3C header of this name, by the program's global propagator; empty: none.
#[cfg(feature = "opentelemetry")]
pub(crate) fn traceparent() -> String {
    use std::collections::HashMap;

    let mut headers = HashMap::new();
    opentelemetry::global::get_text_map_propagator(|propagator| propagator.inject(&mut headers));
    headers.remove("traceparent").unwrap_or_default()
}

/// Without the feature there is none.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn traceparent() -> String {
    String::new()
}
