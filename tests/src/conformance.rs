//! Behaviours that every store must have, each written once. `tests/conformance.rs` runs them.

pub mod added_locks;
pub mod attempts;
pub mod closures;
pub mod hand_offs;
pub mod inspection;
pub mod known_mistakes;
pub mod lease_ends;
pub mod lease_options;
pub mod leases;
pub mod limits;
pub mod listing;
pub mod queue;
pub mod recovery;
pub mod reentry;
pub mod repeats;
pub mod revocation;
pub mod seeds;
pub mod semaphores;
pub mod sharing;
pub mod silent_brokers;
pub mod span_limits;
pub mod streams;
pub mod token_floors;
pub mod watches;
