//! Notes which answers wait for their clients to read on, and tells a grant that its answer was sent whole.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response};

use super::{
    hooked::{Hook, PolledFrame, hooked},
    small::Around,
};
use crate::{
    grpc::OnDelivery,
    transport::{Answer, Load, Peer},
};

/// Watches the answer of a call until it was read.
#[derive(Clone)]
pub(super) struct Answers;

impl Around for Answers {
    type Noted = Option<Arc<Load>>;

    fn begin(&self, request: &mut Request) -> Option<Arc<Load>> {
        let peer = request.extensions().get::<Peer>();
        peer.map(|peer| Arc::clone(&peer.load))
    }

    fn end(load: Option<Arc<Load>>, mut answer: Response) -> Response {
        let delivery = answer.extensions_mut().remove::<OnDelivery>();
        let Some(load) = load else {
            // Without a connection nobody would see the client go.
            if let Some(delivery) = delivery {
                delivery.done();
            }
            return answer;
        };
        let sending = Sending {
            delivery,
            answer: load.answer(),
        };
        answer.map(|body| hooked(body, sending))
    }
}

/// An answer that is sent. It is asked for more once the client has read what there was.
struct Sending {
    delivery: Option<OnDelivery>,
    answer: Answer,
}

impl Hook for Sending {
    fn polled(&mut self, polled: PolledFrame, _: &mut Context<'_>) -> PolledFrame {
        match polled {
            Poll::Ready(Some(_)) => self.answer.waits(),
            Poll::Ready(None) | Poll::Pending => self.answer.is_read(),
        }
        let polled = polled.map_ok(|frame| frame.map_data(|data| self.answer.piece(data)));
        let is_sent = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if let Some(delivery) = self.delivery.take_if(|_| is_sent) {
            delivery.done();
        }
        polled
    }
}
