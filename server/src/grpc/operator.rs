//! Operator actions outside the gRPC API, which are authenticated and authorized like API calls.

use std::net::SocketAddr;

use tonic::Status;

use super::authorization::{Operation, RequestContext, authenticate};
use crate::{access::AccessControl, lock::Limits, transport::Peer};

/// An operator who may change the log filter.
pub(crate) struct OperatorContext {
    context: RequestContext,
    peer: Option<SocketAddr>,
}

impl OperatorContext {
    /// Authenticates and authorizes an operator by the connection and the header `authorization`.
    ///
    /// # Errors
    /// The status that an API call would fail with.
    pub(crate) fn authorize(
        access: &AccessControl,
        peer: Option<&Peer>,
        authorization: Option<&[u8]>,
    ) -> Result<Self, Status> {
        let caller = authenticate(access, peer, authorization)?;
        let context = RequestContext::for_caller(access, Limits::default(), caller, peer)?;
        context.authorize_any(Operation::SetLogFilter)?;
        let peer = peer.map(|peer| peer.address);
        Ok(Self { context, peer })
    }

    /// Writes an audit event to the log.
    pub(crate) fn audit(&self, action: &str, detail: &str) {
        let caller = &*self.context.caller.name;
        let peer = self.peer.map(tracing::field::display);
        tracing::info!(target: "audit", caller, peer, what = detail, "an operator {action}");
    }
}
