//! Notifies the connection that a request has reached a service.

use axum::{extract::Request, response::Response};

use super::generic::Check;
use crate::transport::Peer;

/// Outermost layer of both listeners.
#[derive(Clone)]
pub(super) struct CallStarted;

impl Check for CallStarted {
    fn reject(&self, request: &mut Request) -> Option<Response> {
        if let Some(peer) = request.extensions().get::<Peer>() {
            peer.load.call_started();
        }
        None
    }
}
