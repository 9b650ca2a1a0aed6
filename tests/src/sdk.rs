//! Tests of the Rust client.

pub mod broker;
pub mod callers;
pub mod cancellation_load;
pub mod cancellation_point;
pub mod held_guards;
pub mod hold_log;
pub mod proxied_client;
pub mod queue;
pub mod resource;
pub mod validity_log;
