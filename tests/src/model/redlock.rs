//! A model of clients, of brokers with a RedLock store, and of its nodes, each of which has a clock,
//! an era and the record of one lock.
//!
//! Each command to a node and each reply is one message, which the adversary loses, delays, repeats
//! and reorders.

pub mod action;
pub mod broker;
mod calls;
pub mod election;
pub mod node;
mod operations;
mod properties;
pub mod random;
mod waiters;
pub mod world;

pub use self::{action::RedlockAction, world::RedlockWorld};

/// Number of nodes.
pub const NODES: usize = 3;
/// The lock of the model.
const LOCK: super::keys::LockIndex = 0;
