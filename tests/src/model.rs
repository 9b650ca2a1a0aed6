//! A model of clients, brokers and the network around the specification of a lock's record, and of
//! an adversary that loses, delays, repeats and reorders everything that is in flight.
//!
//! A [`World`] is changed by [`Action`]s only, and an action names what it affects by stable keys.
//! Therefore a history of actions can be repeated, shortened, searched exhaustively and executed on
//! the scripts.

pub mod action;
pub mod broker;
pub mod client;
mod event_counts;
pub mod exhaustive;
pub mod keys;
mod operator;
pub mod properties;
pub mod random;
pub mod recovery;
pub mod redlock;
pub mod scripts;
pub mod shrink;
pub mod store;
pub mod world;

pub use self::{action::Action, world::World};

/// A world that is changed by actions only.
pub trait ModelWorld {
    type Action: Clone;

    /// Applies an action. Returns false, and changes nothing, if the action does not apply.
    ///
    /// # Errors
    /// The violated property, as a sentence.
    fn apply(&mut self, action: &Self::Action) -> Result<bool, String>;
}
