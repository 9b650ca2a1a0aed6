//! The unary calls that wait, by connection: some of its streams are always left for the release that
//! they wait for.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tonic::{Code, Status};

use super::{pb, status};

/// All waits of this broker's connections.
#[derive(Debug, Clone)]
pub(super) struct Waits {
    most: usize,
    by_peer: Arc<Mutex<HashMap<SocketAddr, usize>>>,
}

/// One wait, until dropped.
#[derive(Debug)]
pub(super) struct Wait {
    waits: Waits,
    peer: SocketAddr,
}

impl Waits {
    /// Three quarters of the streams of a connection may wait.
    pub(super) fn new(max_concurrent_streams: u32) -> Self {
        let streams = usize::try_from(max_concurrent_streams).unwrap_or(usize::MAX);
        Self {
            most: streams / 4 * 3,
            by_peer: Arc::default(),
        }
    }

    /// Begins a wait on the connection from `peer`, if it may. `None`: on no connection.
    pub(super) fn begin(&self, peer: Option<SocketAddr>) -> Result<Option<Wait>, Status> {
        let Some(peer) = peer else {
            return Ok(None);
        };
        let mut by_peer = self.lock();
        let count = by_peer.entry(peer).or_default();
        if *count >= self.most {
            let message = format!(
                "{} calls wait on this connection, three quarters of its streams; wait on a lease \
                 stream (Hold), or on another connection",
                self.most
            );
            let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
            return Err(status::plain(code, reason, &message));
        }
        *count += 1;
        let waits = self.clone();
        Ok(Some(Wait { waits, peer }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, usize>> {
        self.by_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut by_peer = self.waits.lock();
        if let Some(count) = by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                by_peer.remove(&self.peer);
            }
        }
    }
}
