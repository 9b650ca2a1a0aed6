//! The Leasehold lock broker. To read it: `lock`, `store`, `store::memory`, `waiters`, `broker`, `grpc`.

pub mod broker;
pub mod config;
pub mod grpc;
pub mod lock;
pub mod prepare;
pub mod reload;
pub mod runtime;
mod serve;
pub mod shutdown;
pub mod store;
pub mod streams;
pub mod telemetry;
pub mod waiters;

pub use serve::{Listeners, RunError, run};
