//! Exhaustive search: every history within bounds.
//!
//! Messages are delivered at once, in the order of their keys, unless the adversary spends a fault
//! on one of them. A message that it delays is delivered at any later time.

pub mod choices;
pub mod state;
