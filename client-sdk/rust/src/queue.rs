//! Where a waiting call stands.

use crate::error::Holder;

/// A place in line. A hint: it was true when the broker looked, at most once a second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// 1 is next.
    pub position: u32,
    /// How many wait in all.
    pub queue_length: u32,
    /// Some who hold the lock; at most 5.
    pub holders: Vec<Holder>,
}
