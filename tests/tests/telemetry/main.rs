//! Tests of metrics and traces.

mod waits {
    mod metrics_losses;
}

mod metrics;
mod metrics_files;
mod metrics_page;
mod traces;
mod traces_off;
mod traces_streams;
mod traces_waits;
