//! Concurrency limits for expensive calls, per connection and for all connections together. A
//! permit is held until the response has been read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use tokio::time::timeout;

use super::hooks::hooked_body;
use crate::{
    grpc,
    transport::{ExpensiveCall, ExpensiveCallLimits, Peer},
};

/// Maximum number of `ListLocks` calls on all connections.
const LISTS_MAX: usize = 32;
/// Maximum number of `GetLock` calls on all connections.
const GETS_MAX: usize = 256;
/// Maximum number of health and reflection streams on all connections.
const AUXILIARY_MAX: usize = 16_384;
const REFLECTION: &str = "/grpc.reflection.";
/// Maximum time for which a call waits for a permit.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Returns the limits of all connections together.
pub(super) fn global_limits() -> ExpensiveCallLimits {
    ExpensiveCallLimits::new(|call| match call {
        ExpensiveCall::List => LISTS_MAX,
        ExpensiveCall::Get => GETS_MAX,
        ExpensiveCall::Auxiliary => AUXILIARY_MAX,
    })
}

/// Runs a call with a permit of its connection and one of all connections, both held until the
/// response has been read. A call that gets no permit within [`WAIT_MAX`] is rejected as overload,
/// as is a call of a connection on which too many calls wait already.
pub(super) async fn limit_expensive_calls(
    State(all): State<ExpensiveCallLimits>,
    request: Request,
    next: Next,
) -> Response {
    let (Some(costly), Some(peer)) = (
        expensive_call(request.uri().path()),
        request.extensions().get::<Peer>(),
    ) else {
        return next.run(request).await;
    };
    let load = Arc::clone(&peer.load);
    let is_reflection = request.uri().path().starts_with(REFLECTION);
    let Some(waits) = load.count_waiting() else {
        return grpc::early_rejections::no_permit().into_http();
    };
    // The connection's permit is acquired first, so that a client waits for its own calls before it
    // competes with others.
    let permits = async { (load.acquire_permit(costly).await, all.acquire(costly).await) };
    let Ok((of_connection, of_all)) = timeout(WAIT_MAX, permits).await else {
        return grpc::early_rejections::no_permit().into_http();
    };
    drop(waits);
    let response = next.run(request).await;
    // Reflection reads requests only as its responses are read.
    let unread = is_reflection.then(|| load.count_paused());
    response.map(|body| {
        hooked_body(body, move |polled, _| {
            let _held = (&unread, &of_connection, &of_all);
            polled
        })
    })
}

fn expensive_call(path: &str) -> Option<ExpensiveCall> {
    match path {
        "/leasehold.v1.InspectionService/ListLocks" => Some(ExpensiveCall::List),
        "/leasehold.v1.InspectionService/GetLock" => Some(ExpensiveCall::Get),
        "/grpc.health.v1.Health/Watch" => Some(ExpensiveCall::Auxiliary),
        _ => path
            .starts_with(REFLECTION)
            .then_some(ExpensiveCall::Auxiliary),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn slots_of_all_connections_are_bounded() {
        for (costly, max) in [
            (ExpensiveCall::List, LISTS_MAX),
            (ExpensiveCall::Get, GETS_MAX),
            (ExpensiveCall::Auxiliary, AUXILIARY_MAX),
        ] {
            let all = global_limits();
            let permits: Vec<_> = (0..max)
                .map(|_| all.acquire(costly).now_or_never())
                .collect();
            assert!(permits.iter().all(Option::is_some), "{costly:?}");
            assert!(all.acquire(costly).now_or_never().is_none(), "{costly:?}");
        }
    }
}
