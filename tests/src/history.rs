//! Recorded histories of clients, and the function that judges them.
//!
//! A history contains what clients sent and received, and the faults that were injected, with times
//! of one clock: CLOCK_BOOTTIME if the clients are processes of one host, virtual time in a
//! simulation. It contains nothing that only the broker or the store knows.

pub mod event;
pub mod judge;
pub mod lines;
pub mod recorder;

pub use event::{
    CallRequest, Event, EventKind, Fault, GrantedLock, LockRequest, LossReason, ReleaseScope,
    Validity,
};
pub use judge::{Rule, Verdict, Violation, judge};
