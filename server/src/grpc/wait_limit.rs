//! Limit of waiting unary calls per connection, which reserves some of the connection's streams for
//! the releases that the calls wait for.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tonic::{Code, Status};

use super::{pb, status};

/// The number of waiting calls on each connection of this broker.
#[derive(Debug, Clone)]
pub(super) struct ConnectionWaitLimiter {
    max: usize,
    by_peer: Arc<Mutex<HashMap<SocketAddr, usize>>>,
}

/// A waiting call, counted until it is dropped.
#[derive(Debug)]
pub(super) struct WaitPermit {
    waits: ConnectionWaitLimiter,
    peer: SocketAddr,
}

impl ConnectionWaitLimiter {
    /// Creates a limit of three quarters of the streams of a connection.
    pub(super) fn new(max_concurrent_streams: u32) -> Self {
        let streams = usize::try_from(max_concurrent_streams).unwrap_or(usize::MAX);
        Self {
            max: streams / 4 * 3,
            by_peer: Arc::default(),
        }
    }

    /// Counts a waiting call on the connection from `peer`, or rejects it at the limit.
    /// Returns `None` without a connection.
    pub(super) fn acquire(&self, peer: Option<SocketAddr>) -> Result<Option<WaitPermit>, Status> {
        let Some(peer) = peer else {
            return Ok(None);
        };
        let mut counts = self.by_peer.lock();
        let count = counts.entry(peer).or_default();
        if *count >= self.max {
            let message = format!(
                "{} calls wait on this connection, three quarters of its streams; wait on a lease \
                 stream (Hold), or on another connection",
                self.max
            );
            let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
            return Err(status::with_reason(code, reason, &message));
        }
        *count += 1;
        let waits = self.clone();
        Ok(Some(WaitPermit { waits, peer }))
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut counts = self.waits.by_peer.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}
