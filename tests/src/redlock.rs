//! RedLock: deployments of several Redis servers, and brokers that use them.

pub mod broker;
pub mod deployment;
