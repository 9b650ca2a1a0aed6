//! The Leasehold lock broker. To read it: `lock`, `store`, `store::memory`, `waiters`, `broker`, `grpc`.

pub mod access;
mod address;
pub mod broker;
mod browsers;
pub mod config;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grpc;
pub mod history;
pub mod lock;
pub mod metrics;
mod pace;
mod page;
pub mod prepare;
pub mod quotas;
pub mod reload;
pub mod runtime;
mod serve;
pub mod shutdown;
pub mod store;
pub mod streams;
pub mod telemetry;
pub mod trace;
pub mod transport;
pub mod waiters;

pub use serve::{Listeners, RunError, run};
