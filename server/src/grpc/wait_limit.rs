//! Limit of waiting unary calls per connection, which reserves some of the connection's streams for
//! the releases that the calls wait for.

use std::net::SocketAddr;

use tonic::{Code, Status};

use super::{pb, status::ErrorResponse};
use crate::quotas::{SharedQuota, SharedQuotaPermit};

/// The number of waiting calls on each connection of this broker.
#[derive(Debug, Clone)]
pub(super) struct ConnectionWaitLimiter {
    max: usize,
    /// Quota in which each connection is a caller.
    quota: SharedQuota,
}

impl ConnectionWaitLimiter {
    /// Creates a limit of three quarters of the streams of a connection.
    pub(super) fn new(max_concurrent_streams: u32) -> Self {
        let streams = usize::try_from(max_concurrent_streams).unwrap_or(usize::MAX);
        let max = streams / 4 * 3;
        Self {
            max,
            quota: SharedQuota::new(max, usize::MAX),
        }
    }

    /// Counts a waiting call on the connection from `peer` until the permit is dropped, or rejects
    /// it at the limit. Returns `None` without a connection.
    pub(super) fn acquire(
        &self,
        peer: Option<SocketAddr>,
    ) -> Result<Option<SharedQuotaPermit>, Status> {
        let permit = peer.map(|peer| self.quota.try_acquire(&peer.to_string().into()));
        permit.transpose().map_err(|_| {
            let message = format!(
                "{} calls wait on this connection, three quarters of its streams; wait on a lease \
                 stream (Hold), or on another connection",
                self.max
            );
            let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
            ErrorResponse::new(code, reason, message).into()
        })
    }
}
