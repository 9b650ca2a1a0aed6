//! Somebody who changes the broker itself, beside the API: known and admitted as its callers are.

use std::net::SocketAddr;

use tonic::Status;

use super::admit::{Ask, Asking, authenticate};
use crate::{access::Gate, lock::Limits, transport::Peer};

/// One who may.
pub(crate) struct Operator {
    asking: Asking,
    peer: Option<SocketAddr>,
}

impl Operator {
    /// Returns the operator that the connection and the header `authorization` show.
    ///
    /// # Errors
    /// As a call of the API would be refused.
    pub(crate) fn of(
        gate: &Gate,
        peer: Option<&Peer>,
        authorization: Option<&[u8]>,
    ) -> Result<Self, Status> {
        let caller = authenticate(gate, peer, authorization)?;
        let asking = Asking::admitted(gate, Limits::default(), caller, peer)?;
        asking.some(Ask::SetLogFilter)?;
        let peer = peer.map(|peer| peer.address);
        Ok(Self { asking, peer })
    }

    /// Tells the auditors.
    pub(crate) fn tells(&self, deed: &str, what: &str) {
        let caller = &*self.asking.caller.name;
        let peer = self.peer.map(tracing::field::display);
        tracing::info!(target: "audit", caller, peer, what, "an operator {deed}");
    }
}
