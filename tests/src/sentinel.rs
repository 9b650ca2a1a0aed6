//! Redis Sentinel: deployments, their faults, and one shared by a run.

pub mod deployment;
pub mod shared;
