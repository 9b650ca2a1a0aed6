//! Tracks which responses wait for their clients, and reports the delivery of grants whose response
//! was sent completely.

use std::{
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response};

use super::hooks::{PolledFrame, RequestResponseHook, hooked_body};
use crate::{
    grpc::PendingDelivery,
    transport::{ConnectionLoad, Peer},
};

/// Layer that tracks the response of each call until the client has read it.
#[derive(Clone)]
pub(super) struct ResponseTracking;

impl RequestResponseHook for ResponseTracking {
    type State = Option<Arc<ConnectionLoad>>;

    fn on_request(&self, request: &mut Request) -> ControlFlow<Response, Self::State> {
        let peer = request.extensions().get::<Peer>();
        ControlFlow::Continue(peer.map(|peer| Arc::clone(&peer.load)))
    }

    fn on_response(load: Option<Arc<ConnectionLoad>>, mut response: Response) -> Response {
        let delivery = response.extensions_mut().remove::<PendingDelivery>();
        let mut delivery = delivery.and_then(|delivery| delivery.take());
        let Some(load) = load else {
            // Without a connection, a disconnect of the client cannot be detected.
            if let Some(delivery) = delivery {
                delivery.confirm();
            }
            return response;
        };
        let tracked = load.track_response();
        // The body is polled for more after the client has read the previous frames.
        let track = move |polled: PolledFrame, _: &mut Context<'_>| {
            match polled {
                Poll::Ready(Some(_)) => tracked.mark_unread(),
                Poll::Ready(None) | Poll::Pending => tracked.mark_read(),
            }
            let polled = polled.map_ok(|frame| frame.map_data(|data| tracked.piece(data)));
            let is_sent = match &polled {
                Poll::Ready(None) => true,
                Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
                Poll::Ready(Some(Err(_))) | Poll::Pending => false,
            };
            if let Some(delivery) = delivery.take_if(|_| is_sent) {
                delivery.confirm();
            }
            polled
        };
        response.map(|body| hooked_body(body, track))
    }
}
