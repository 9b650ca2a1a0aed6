//! Recording of what a client sends and receives in a history.

use std::{pin::Pin, sync::Arc};

use leasehold_proto::v1::{Lease, LockTarget, ReleaseRequest, ReleaseResponse};
use tonic::Status;

use super::{AcquireCall, Client, HeldLease};
use crate::{
    clock::boottime,
    history::recorder::{HistoryRecorder, RecordedAttempt, SentAcquire},
};

impl Client {
    /// Records all acquires, renewals and releases of the client and its clones.
    #[must_use]
    pub fn with_recorder(self, recorder: &Arc<HistoryRecorder>) -> Self {
        let recorder = Some(Arc::clone(recorder));
        Self { recorder, ..self }
    }

    pub(super) fn record_acquire(
        &self,
        at: usize,
        targets: &[LockTarget],
        call: &AcquireCall,
        under: Option<&Lease>,
    ) -> Option<RecordedAttempt> {
        let sent = SentAcquire {
            client: &self.name,
            broker: at % self.channels.len(),
            targets,
            call,
            under,
        };
        Some(self.recorder.as_ref()?.invoke(sent))
    }

    pub(super) fn record_renewal(&self, lease: &Lease, result: &Result<HeldLease, Status>) {
        if let Some(recorder) = &self.recorder {
            recorder.answer_renewal(&self.name, &lease.lease_id, result);
        }
    }

    pub(super) async fn send_release(
        &self,
        at: usize,
        request: ReleaseRequest,
    ) -> Result<ReleaseResponse, Status> {
        let lease_id = request.lease.as_ref().map(|lease| lease.lease_id.clone());
        let lease_id = lease_id.unwrap_or_default();
        let release = self.recorder.as_ref().map(|recorder| {
            let lock = request.lock.as_ref().map(|lock| lock.name.as_str());
            recorder.invoke_release(&self.name, &lease_id, lock)
        });
        let mut locks = self.locks(at);
        let result = Box::pin(locks.release(request)).await;
        if let (Some(recorder), Some(release)) = (&self.recorder, release) {
            recorder.answer_release(&self.name, &lease_id, release, &result);
        }
        Ok(result?.into_inner())
    }
}

/// Waits for the reply to a call that was just sent, and returns its lease.
pub(super) async fn receive_lease(
    recorded: Option<RecordedAttempt>,
    reply: Pin<Box<impl Future<Output = Result<Option<Lease>, Status>>>>,
) -> Result<HeldLease, Status> {
    let sent_at = boottime();
    let lease = reply.await;
    let lease = lease.and_then(|lease| lease.ok_or_else(|| Status::data_loss("no lease")));
    let held = lease.map(|lease| HeldLease { lease, sent_at });
    if let Some(recorded) = recorded {
        recorded.answer(&held);
    }
    held
}
