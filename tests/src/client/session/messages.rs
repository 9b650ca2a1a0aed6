//! Handling of the messages that a holder receives on its stream.

use std::{sync::atomic::Ordering, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, Granted, LeaseAttached, LeaseExtended, Refused, hold_response::Message as Response,
};
use tokio::sync::watch;
use tonic::Code;

use super::{
    LeaseEnd, LeaseState, SessionLease,
    connection::{CallKind, StreamConnection},
    task::{RETRY_TIMEOUT, Session, TrackedLease, duration_or_zero, send_release},
};
use crate::clock::boottime;

const RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Session {
    pub(super) fn on_message(&mut self, link: &mut StreamConnection, message: Response) {
        match message {
            Response::Granted(granted) => self.on_granted(link, granted),
            Response::Refused(refused) => self.on_refused(link, refused),
            Response::Attached(attached) => self.on_attached(link, attached),
            Response::Ack(ack) => {
                if let Some(sent) = link.heartbeat_sent_at(ack.sequence) {
                    for extended in ack.leases {
                        self.on_extended(link, sent, extended);
                    }
                }
            }
            Response::Released(released) => {
                if let Some((CallKind::Release(lease_id), _)) = link.complete(released.call_id) {
                    self.end_lease(&lease_id, LeaseEnd::Released);
                }
            }
            Response::Ended(ended) => {
                let reason = ended.reason();
                self.end_lease(&ended.lease_id, LeaseEnd::Reported(reason));
            }
            Response::Reconnect(reconnect) => {
                let delay = reconnect.delay.unwrap_or_default();
                link.reconnect_at =
                    Some(boottime() + Duration::try_from(delay).unwrap_or_default());
            }
            Response::Queued(_) | Response::ReleaseRequested(_) | Response::Done(_) => {}
        }
    }

    fn on_attached(&mut self, link: &mut StreamConnection, attached: LeaseAttached) {
        link.complete(attached.call_id);
        if let Some(owned) = self.leases.get_mut(&attached.lease_id) {
            owned.is_attached = true;
            owned
                .state
                .send_modify(|known| known.attached_at = Some(boottime()));
            if owned.release.is_some() {
                send_release(link, attached.lease_id);
            }
        }
    }

    fn on_granted(&mut self, link: &mut StreamConnection, granted: Granted) {
        let Some((CallKind::Acquire(request_id), called)) = link.complete(granted.call_id) else {
            return;
        };
        let (Some(wait), Some(lease)) = (self.pending_acquires.remove(&request_id), granted.lease)
        else {
            return;
        };
        let sent = match granted.as_of_sequence {
            0 => called,
            sequence => link
                .heartbeat_sent_at(sequence)
                .expect("a heartbeat that was sent"),
        };
        let ttl = duration_or_zero(lease.ttl);
        let (known, watched) = watch::channel(LeaseState {
            valid_until: sent + ttl,
            ttl,
            attached_at: None,
            acknowledged_at: None,
            end: None,
        });
        let lease_id = lease.lease_id.clone();
        let owned = TrackedLease {
            lease: lease.clone(),
            attach_number: wait.attach_number,
            is_attached: true,
            state: known,
            release: None,
        };
        self.leases.insert(lease_id.clone(), owned);
        let known = watched;
        if wait
            .reply
            .send(Ok(SessionLease {
                lease,
                state: known,
            }))
            .is_err()
        {
            send_release(link, lease_id);
        }
    }

    fn on_refused(&mut self, link: &mut StreamConnection, refused: Refused) {
        let Some((about, _)) = link.complete(refused.call_id) else {
            return;
        };
        let now = boottime();
        let reason = refused.reason();
        // This includes a wait that the broker cancelled because it received no heartbeat for too
        // long.
        let is_open =
            refused.code == i32::from(Code::Unavailable) || reason == ErrorReason::Cancelled;
        if let CallKind::Acquire(request_id) = &about {
            let until = self.pending_acquires.get(request_id).map(|wait| wait.until);
            if !is_open || until.is_some_and(|until| until + RETRY_TIMEOUT < now) {
                if let Some(wait) = self.pending_acquires.remove(request_id) {
                    // A caller that was dropped needs no result.
                    let _ = wait.reply.send(Err(refused));
                }
                return;
            }
        }
        if is_open {
            let pause = RETRY_PAUSE.mul_f64(0.5 + rand::random::<f64>());
            return self.retries.push((now + pause, about));
        }
        match about {
            CallKind::Acquire(_) => {}
            CallKind::Attach(lease_id) | CallKind::Release(lease_id) => {
                self.end_lease(&lease_id, LeaseEnd::Rejected(reason));
            }
        }
    }

    /// Extends a lease. A lease whose trusted validity has ended is released, even if the store
    /// renewed it.
    fn on_extended(
        &mut self,
        link: &mut StreamConnection,
        sent: Duration,
        extended: LeaseExtended,
    ) {
        let Some(owned) = self.leases.get_mut(&extended.lease_id) else {
            return;
        };
        if usize::try_from(extended.grant_count) != Ok(owned.lease.grants.len()) {
            return;
        }
        let now = boottime();
        if now >= owned.state.borrow().trusted_until() {
            self.counters.late_acks.fetch_add(1, Ordering::Relaxed);
            self.end_lease(&extended.lease_id, LeaseEnd::ValidityEnded);
            return send_release(link, extended.lease_id);
        }
        let ttl = duration_or_zero(extended.ttl);
        owned.state.send_modify(|known| {
            known.valid_until = known.valid_until.max(sent + ttl);
            known.ttl = ttl;
            known.acknowledged_at = Some(now);
        });
    }

    pub(super) fn end_lease(&mut self, lease_id: &str, end: LeaseEnd) {
        let Some(owned) = self.leases.remove(lease_id) else {
            return;
        };
        // If the trusted validity ended earlier, its end does not change.
        owned
            .state
            .send_modify(|known| known.end = Some((boottime(), end)));
        if let Some(answer) = owned.release {
            // A caller that was dropped needs no result.
            let _ = answer.send(end);
        }
    }
}
