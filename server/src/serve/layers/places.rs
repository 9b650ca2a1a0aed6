//! Bounds the costly calls that are in progress, or not read yet, at a time: on a connection, and on all together.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::hooked::{Hook, hooked};
use crate::{
    grpc,
    transport::{Costly, Paused, Peer, Places},
};

/// Lists on all connections.
const LISTS_MAX: usize = 32;
/// Looks at a lock on all connections.
const LOOKS_MAX: usize = 256;
/// Streams of health and reflection on all connections.
const AUXILIARY_MAX: usize = 16_384;
const REFLECTION: &str = "/grpc.reflection.";
/// How long a call waits for a place.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The places of all connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct AllPlaces(Arc<Places>);

impl Default for AllPlaces {
    fn default() -> Self {
        Self(Arc::new(Places::new(|call| match call {
            Costly::List => LISTS_MAX,
            Costly::Look => LOOKS_MAX,
            Costly::Auxiliary => AUXILIARY_MAX,
        })))
    }
}

/// Runs a call with a place of its connection and one of all, which are kept until its answer has been read. A call
/// that finds none within [`WAIT_MAX`], or behind which too many of its connection wait, is refused as overload.
pub(super) async fn take(State(all): State<AllPlaces>, request: Request, next: Next) -> Response {
    let (Some(costly), Some(peer)) = (
        costly(request.uri().path()),
        request.extensions().get::<Peer>(),
    ) else {
        return next.run(request).await;
    };
    let load = Arc::clone(&peer.load);
    let is_reflection = request.uri().path().starts_with(REFLECTION);
    let Some(waits) = load.wait_for_place() else {
        return grpc::early::no_place().into_http();
    };
    // First the connection's own place: one client waits for itself, before it does for others.
    let places = async { (load.place(costly).await, all.0.take(costly).await) };
    let Ok((of_connection, of_all)) = timeout(WAIT_MAX, places).await else {
        return grpc::early::no_place().into_http();
    };
    drop(waits);
    let answer = next.run(request).await;
    let taken = Taken {
        _unread: is_reflection.then(|| load.paused()),
        _of_connection: of_connection,
        _of_all: of_all,
    };
    answer.map(|body| hooked(body, taken))
}

fn costly(path: &str) -> Option<Costly> {
    match path {
        "/leasehold.v1.InspectionService/ListLocks" => Some(Costly::List),
        "/leasehold.v1.InspectionService/GetLock" => Some(Costly::Look),
        "/grpc.health.v1.Health/Watch" => Some(Costly::Auxiliary),
        _ => path.starts_with(REFLECTION).then_some(Costly::Auxiliary),
    }
}

/// The places of a call, which it keeps until its answer has been read.
struct Taken {
    /// Reflection reads its requests when its answers are read.
    _unread: Option<Paused>,
    _of_connection: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Hook for Taken {}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn all_connections_have_so_many_places_together() {
        for (costly, most) in [
            (Costly::List, LISTS_MAX),
            (Costly::Look, LOOKS_MAX),
            (Costly::Auxiliary, AUXILIARY_MAX),
        ] {
            let all = AllPlaces::default();
            let taken: Vec<_> = (0..most)
                .map(|_| all.0.take(costly).now_or_never())
                .collect();
            assert!(taken.iter().all(Option::is_some), "{costly:?}");
            assert!(all.0.take(costly).now_or_never().is_none(), "{costly:?}");
        }
    }
}
