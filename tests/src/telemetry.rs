//! Traces and metrics.

pub mod collector;
pub mod documented_metrics;
pub mod prometheus;
pub mod scrape;
