//! Largest fencing token that this broker has received from the store. A new era continues from it
//! if the clock of the server is behind that of an earlier master.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::FencingToken;

/// The largest token of any lock; 0 before the first one.
#[derive(Debug, Default)]
pub(super) struct LargestToken(AtomicU64);

impl LargestToken {
    /// Records the token of a grant.
    pub(super) fn record(&self, token: FencingToken) {
        // A load alone is cheaper than a write that changes nothing.
        if token.get() > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(token.get(), Ordering::Relaxed);
        }
    }

    /// Returns the largest token, if one was recorded.
    pub(super) fn get(&self) -> Option<FencingToken> {
        FencingToken::new(self.0.load(Ordering::Relaxed))
    }
}
