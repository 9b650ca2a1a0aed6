//! Redis Sentinel: deployments, their faults, replicas that lag, the first grant after a failover,
//! and a deployment shared by a run.

pub mod deployment;
pub mod grant_probe;
pub mod lagging_replicas;
pub mod shared;
