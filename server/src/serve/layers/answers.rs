//! Notes which answers wait for their clients to read on, and tells a grant that its answer was sent whole.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    response::Response,
};
use http_body::{Frame, SizeHint};

use super::small::Around;
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
        answer.map(|body| {
            Body::new(Answered {
                body,
                delivery,
                answer: load.answer(),
            })
        })
    }
}

/// The answer of a call. It is asked for more once the client has read what there was.
struct Answered {
    body: Body,
    delivery: Option<OnDelivery>,
    answer: Answer,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
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

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
