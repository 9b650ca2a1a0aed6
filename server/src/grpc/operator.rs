//! Operator actions outside the gRPC API, which are authenticated and authorized like API calls.

use crate::{
    access::{AccessControl, Verb},
    lock::Limits,
    request::{RequestContext, RequestError, authenticate},
    transport::Peer,
};

/// An operator who may change the log filter.
pub(crate) struct OperatorContext {
    context: RequestContext,
}

impl OperatorContext {
    /// Authenticates and authorizes an operator by the connection and a bearer token.
    ///
    /// # Errors
    /// The error that an API call would fail with.
    pub(crate) fn authorize(
        access: &AccessControl,
        peer: Option<&Peer>,
        bearer: Option<&str>,
    ) -> Result<Self, RequestError> {
        let caller = authenticate(access, peer, bearer)?;
        let context = RequestContext::new(access, Limits::default(), caller, peer)?;
        context.authorize_any(Verb::Admin)?;
        Ok(Self { context })
    }

    /// Writes an audit event to the log.
    pub(crate) fn audit(&self, action: &str, detail: &str) {
        let caller = &*self.context.caller.name;
        let peer = self.context.peer.map(tracing::field::display);
        tracing::info!(target: "audit", caller, peer, what = detail, "an operator {action}");
    }
}
