//! The Leasehold lock broker. Modules in the order to read them.

pub mod broker;
pub mod config;
pub mod grpc;
pub mod lock;
pub mod prepare;
mod serve;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod waiters;

pub use serve::{Listeners, RunError, run};
