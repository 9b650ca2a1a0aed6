//! Brokers and fixtures of brokers.

pub mod abuse_fixture;
pub mod configuration;
pub mod delayed_store;
pub mod deployment;
pub mod in_process;
pub mod local_stream;
pub mod pods;
pub mod process;
pub mod tls;
