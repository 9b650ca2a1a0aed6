//! What every store must do, each behaviour written once. `tests/conformance.rs` runs them.

pub mod adding;
pub mod attempts;
pub mod endings;
pub mod hand_offs;
pub mod inspection;
pub mod leases;
pub mod limits;
pub mod line;
pub mod listing;
pub mod permits;
pub mod recovery;
pub mod reentry;
pub mod repeats;
pub mod revoking;
pub mod seeds;
pub mod sharing;
pub mod silence;
pub mod streams;
pub mod terms;
pub mod traps;
pub mod watching;
