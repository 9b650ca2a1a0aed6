//! The Leasehold lock broker.
//!
//! Suggested reading order: `lock`, `store`, `store::memory`, `broker`, `grpc`.

pub mod access;
mod address;
pub mod broker;
mod browsers;
pub mod commands;
pub mod config;
mod console;
mod file_watch;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grpc;
pub mod inspection;
pub mod lock;
pub mod metrics;
pub mod quotas;
pub mod random;
mod rate_limit;
pub mod recent_events;
pub mod reload;
pub mod request;
pub mod runtime;
mod serve;
pub mod shutdown;
pub mod store;
pub mod telemetry;
mod time;
pub mod trace;
pub mod transport;

pub use serve::{Listeners, RunError, run};
