//! Somebody who changes the broker itself, beside the API: known and admitted as its callers are.

use std::net::SocketAddr;

use tonic::{Request, Status};

use super::{
    address,
    admit::{Ask, Asking},
};
use crate::{access::Gate, lock::Limits};

/// One who may.
pub(crate) struct Operator {
    asking: Asking,
    peer: Option<SocketAddr>,
}

impl Operator {
    /// By what the connection and the headers show.
    ///
    /// # Errors
    /// As a call of the API would be refused.
    pub(crate) fn of<T>(gate: &Gate, request: &Request<T>) -> Result<Self, Status> {
        let asking = Asking::by(gate, Limits::default(), request)?;
        asking.some(Ask::SetLogFilter)?;
        let peer = address(request);
        Ok(Self { asking, peer })
    }

    /// Tells the auditors.
    pub(crate) fn tells(&self, deed: &str, what: &str) {
        let caller = &*self.asking.caller.name;
        let peer = self.peer.map(tracing::field::display);
        tracing::info!(target: "audit", caller, peer, what, "an operator {deed}");
    }
}
