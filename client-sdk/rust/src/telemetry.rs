//! What the client tells of itself with OpenTelemetry: the caller's trace context to the broker, and
//! how long calls waited and locks were held to the program's meter. Without the feature nothing.

use std::time::Duration;

#[cfg(feature = "opentelemetry")]
use self::with_opentelemetry as imp;
#[cfg(not(feature = "opentelemetry"))]
use self::without as imp;
use crate::error::Error;

/// The caller's trace context as in the W3C header of this name, by the program's global
/// propagator; empty: none.
pub(crate) fn traceparent() -> String {
    imp::traceparent()
}

/// A call has ended after this time.
pub(crate) fn waited<T>(time: Duration, result: &Result<T, Error>) {
    let outcome = match result {
        Ok(_) => "granted",
        Err(Error::Held(_)) => "held",
        Err(Error::WaitTimeout(_)) => "wait_timeout",
        Err(_) => "failed",
    };
    imp::waited(time, outcome);
}

/// A guard has ended after this time.
pub(crate) fn held(time: Duration, is_lost: bool) {
    imp::held(time, if is_lost { "lost" } else { "released" });
}

#[cfg(feature = "opentelemetry")]
mod with_opentelemetry {
    use std::{collections::HashMap, sync::OnceLock, time::Duration};

    use opentelemetry::{KeyValue, global, metrics::Histogram};

    struct Instruments {
        wait: Histogram<f64>,
        hold: Histogram<f64>,
    }

    /// Of the meter provider that the program has set by the first call.
    fn instruments() -> &'static Instruments {
        static INSTRUMENTS: OnceLock<Instruments> = OnceLock::new();
        INSTRUMENTS.get_or_init(|| {
            let meter = global::meter("leasehold");
            let histogram = |name, description| {
                let histogram = meter.f64_histogram(name).with_unit("s");
                histogram.with_description(description).build()
            };
            Instruments {
                wait: histogram(
                    "leasehold.client.wait.duration",
                    "From a call to its answer, by outcome.",
                ),
                hold: histogram(
                    "leasehold.client.hold.duration",
                    "From a grant to the end of its guard, by outcome.",
                ),
            }
        })
    }

    pub(super) fn traceparent() -> String {
        let mut headers = HashMap::new();
        global::get_text_map_propagator(|propagator| propagator.inject(&mut headers));
        headers.remove("traceparent").unwrap_or_default()
    }

    pub(super) fn waited(time: Duration, outcome: &'static str) {
        let outcome = [KeyValue::new("outcome", outcome)];
        instruments().wait.record(time.as_secs_f64(), &outcome);
    }

    pub(super) fn held(time: Duration, outcome: &'static str) {
        let outcome = [KeyValue::new("outcome", outcome)];
        instruments().hold.record(time.as_secs_f64(), &outcome);
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod without {
    use std::time::Duration;

    pub(super) fn traceparent() -> String {
        String::new()
    }

    pub(super) fn waited(_: Duration, _: &'static str) {}

    pub(super) fn held(_: Duration, _: &'static str) {}
}
