//! Bounds what calls keep in memory for clients that do not go on: neither half a message nor an answer
//! that nobody reads costs more than its connection may.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::Extensions,
    middleware::{Next, from_fn},
    response::Response,
};
use futures::future::Either;
use tokio::sync::OwnedSemaphorePermit;
use tonic::service::Routes;

use super::{counted, traced::traced};
use crate::{
    grpc::OnDelivery,
    metrics::{Calls, Counting},
    trace::Tracing,
    transport::{Answer, Large, Load, Partial, Peer, Places},
};

/// So many lists are made or unread at a time, on all connections.
const LISTS_MOST: usize = 32;
/// So many looks at a lock.
const LOOKS_MOST: usize = 256;
/// Before each message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The same, bounded, and counted and traced in the same go.
pub(super) fn bounded(routes: Routes, calls: Calls, tracing: &Tracing) -> Routes {
    let tracing = tracing.clone();
    let all = Arc::new(Places::new(LISTS_MOST, LOOKS_MOST));
    let bound = from_fn(move |request: Request, next: Next| {
        let (load, tracing) = (load(request.extensions()), tracing.clone());
        match load {
            None => Either::Left(async move {
                let mut answer = traced(&tracing, request, next).await;
                // Nobody would see the client go.
                if let Some(delivery) = answer.extensions_mut().remove::<OnDelivery>() {
                    delivery.done();
                }
                answer
            }),
            Some(load) => {
                let counting = calls.begin(request.uri().path());
                let bounds = (load, Arc::clone(&all), counting);
                Either::Right(bounded_call(bounds, tracing, request, next))
            }
        }
    });
    routes.into_axum_router().layer(bound).into()
}

/// What the answer of a call to this path may have much of.
fn large(path: &str) -> Option<Large> {
    match path {
        "/leasehold.v1.InspectionService/ListLocks" => Some(Large::List),
        "/leasehold.v1.InspectionService/GetLock" => Some(Large::Look),
        _ => None,
    }
}

fn load(extensions: &Extensions) -> Option<Arc<Load>> {
    let peer = extensions.get::<Peer>();
    peer.map(|peer| Arc::clone(&peer.load))
}

async fn bounded_call(
    (load, all, mut counting): (Arc<Load>, Arc<Places>, Option<Counting>),
    tracing: Tracing,
    request: Request,
    next: Next,
) -> Response {
    // First the connection's own place: one client waits for itself, before it does for others.
    let places = match large(request.uri().path()) {
        None => (None, None),
        Some(answer) => (load.large(answer).await, all.take(answer).await),
    };
    let request = request.map(|body| {
        Body::new(Asked {
            body,
            message: Message::default(),
            partial: load.partial(),
        })
    });
    let mut answer = traced(&tracing, request, next).await;
    let delivery = answer.extensions_mut().remove::<OnDelivery>();
    if let Some(counting) = &mut counting {
        counted::begun(counting, &answer);
    }
    answer.map(|body| {
        Body::new(Answered {
            body,
            counting,
            delivery,
            answer: load.answer(),
            _places: places,
        })
    })
}

/// The messages of a call, as they come.
struct Asked {
    body: Body,
    message: Message,
    partial: Partial,
}

/// How much of a message is there.
#[derive(Default)]
struct Message {
    prefix: [u8; PREFIX],
    /// Of the prefix and of the message.
    here: usize,
}

impl HttpBody for Asked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.message.more(bytes);
            let here = self.message.here;
            if !self.partial.is(here) {
                let why = "too many messages of this connection are not whole";
                return Poll::Ready(Some(Err(axum::Error::new(why))));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Message {
    fn more(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.here.checked_sub(PREFIX) {
                None => {
                    let taken = bytes.len().min(PREFIX - self.here);
                    self.prefix[self.here..self.here + taken].copy_from_slice(&bytes[..taken]);
                    taken
                }
                Some(here) => bytes.len().min(self.length() - here),
            };
            self.here += taken;
            bytes = &bytes[taken..];
            if self.here >= PREFIX && self.here - PREFIX == self.length() {
                self.here = 0;
            }
        }
    }

    fn length(&self) -> usize {
        let [_, a, b, c, d] = self.prefix;
        usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
    }
}

/// The answer of a call. It is asked for more once the client has read what there was.
struct Answered {
    body: Body,
    counting: Option<Counting>,
    delivery: Option<OnDelivery>,
    answer: Answer,
    _places: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match polled {
            Poll::Ready(Some(_)) => self.answer.waits(),
            Poll::Ready(None) | Poll::Pending => self.answer.is_read(),
        }
        if let Some(counting) = &mut self.counting {
            counted::went_on(counting, &polled);
        }
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
}
