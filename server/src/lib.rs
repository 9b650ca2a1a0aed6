//! The Leasehold lock broker. Modules in the order to read them.

pub mod broker;
pub mod grpc;
pub mod lock;
pub mod store;
pub mod waiters;
