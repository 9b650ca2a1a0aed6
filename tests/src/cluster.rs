//! Redis Cluster.

pub mod deployment;
pub mod fixture;
pub mod grant_probe;
pub mod scenario;
pub mod shared;
pub mod store;
pub mod workload;
