//! Tells the connection that a request has begun to be served.

use axum::{extract::Request, response::Response};

use super::small::Check;
use crate::transport::Peer;

/// The layer, outside of all others.
#[derive(Clone)]
pub(super) struct Begun;

impl Check for Begun {
    fn refusal(&self, request: &mut Request) -> Option<Response> {
        if let Some(peer) = request.extensions().get::<Peer>() {
            peer.load.begun();
        }
        None
    }
}
