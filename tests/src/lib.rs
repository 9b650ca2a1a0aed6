//! Harness of the black-box tests: real brokers, real Redis, real sockets, and an oracle.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

pub mod access;
pub mod broker;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod conformance;
pub mod console;
pub mod differential;
pub mod history;
pub mod load;
pub mod model;
pub mod net;
pub mod process;
pub mod redis;
pub mod redlock;
pub mod repository;
pub mod scale;
pub mod sdk;
pub mod sentinel;
pub mod simulation;
pub mod status;
pub mod store_fixture;
pub mod suite;
pub mod telemetry;
pub mod until;
