//! Redis Sentinel: deployments, their faults, the first grant after a failover, and a deployment
//! shared by a run.

pub mod deployment;
pub mod grant_probe;
pub mod shared;
