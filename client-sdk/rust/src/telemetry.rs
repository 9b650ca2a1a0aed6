//! OpenTelemetry: the trace context of calls, and histograms of wait and hold times on the
//! program's meter. Does nothing without the feature.

use std::time::Duration;

#[cfg(feature = "opentelemetry")]
use self::with_opentelemetry as imp;
#[cfg(not(feature = "opentelemetry"))]
use self::without as imp;
use crate::error::Error;

/// Returns the caller's trace context as a W3C `traceparent` header, from the program's global
/// propagator. Empty if there is none.
pub(crate) fn traceparent() -> String {
    imp::traceparent()
}

/// Records the duration of an acquire.
pub(crate) fn record_acquire<T>(time: Duration, result: &Result<T, Error>) {
    let outcome = match result {
        Ok(_) => "granted",
        Err(Error::Held(_)) => "held",
        Err(Error::WaitTimeout(_)) => "wait_timeout",
        Err(_) => "failed",
    };
    imp::record_acquire(time, outcome);
}

/// Records the time for which a guard was held.
pub(crate) fn record_hold(time: Duration, is_lost: bool) {
    imp::record_hold(time, if is_lost { "lost" } else { "released" });
}

#[cfg(feature = "opentelemetry")]
mod with_opentelemetry {
    use std::{collections::HashMap, sync::OnceLock, time::Duration};

    use opentelemetry::{KeyValue, global, metrics::Histogram};

    struct Instruments {
        wait: Histogram<f64>,
        hold: Histogram<f64>,
    }

    /// Returns instruments of the meter provider that the program has set before the first call.
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
                    "Time from a call to its response, by outcome.",
                ),
                hold: histogram(
                    "leasehold.client.hold.duration",
                    "Time from a grant to the end of its guard, by outcome.",
                ),
            }
        })
    }

    pub(super) fn traceparent() -> String {
        let mut headers = HashMap::new();
        global::get_text_map_propagator(|propagator| propagator.inject(&mut headers));
        headers.remove("traceparent").unwrap_or_default()
    }

    pub(super) fn record_acquire(time: Duration, outcome: &'static str) {
        let outcome = [KeyValue::new("outcome", outcome)];
        instruments().wait.record(time.as_secs_f64(), &outcome);
    }

    pub(super) fn record_hold(time: Duration, outcome: &'static str) {
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

    pub(super) fn record_acquire(_: Duration, _: &'static str) {}

    pub(super) fn record_hold(_: Duration, _: &'static str) {}
}
