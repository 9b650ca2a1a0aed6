//! What a holder makes of the messages of its stream.

use std::{sync::atomic::Ordering, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, Granted, LeaseAttached, LeaseExtended, Refused, hold_response::Message as Response,
};
use tokio::sync::watch;
use tonic::Code;

use super::{
    End, Kept, Known,
    keeper::{Keeper, Owned, REPEAT_LIMIT, release, time},
    link::{About, Link},
};
use crate::clock::boottime;

const REPEAT_PAUSE: Duration = Duration::from_millis(200);

impl Keeper {
    pub(super) fn hear(&mut self, link: &mut Link, message: Response) {
        match message {
            Response::Granted(granted) => self.granted(link, granted),
            Response::Refused(refused) => self.refused(link, refused),
            Response::Attached(attached) => self.attached(link, attached),
            Response::Ack(ack) => {
                if let Some(sent) = link.beat_sent(ack.sequence) {
                    for extended in ack.leases {
                        self.extended(link, sent, extended);
                    }
                }
            }
            Response::Released(released) => {
                if let Some((About::Release(lease_id), _)) = link.answered(released.call_id) {
                    self.end(&lease_id, End::Released);
                }
            }
            Response::Ended(ended) => {
                let reason = ended.reason();
                self.end(&ended.lease_id, End::Told(reason));
            }
            Response::Reconnect(reconnect) => {
                let delay = reconnect.delay.unwrap_or_default();
                link.leave_at = Some(boottime() + Duration::try_from(delay).unwrap_or_default());
            }
            Response::Queued(_) | Response::ReleaseRequested(_) | Response::Done(_) => {}
        }
    }

    fn attached(&mut self, link: &mut Link, attached: LeaseAttached) {
        link.answered(attached.call_id);
        if let Some(owned) = self.leases.get_mut(&attached.lease_id) {
            owned.is_here = true;
            owned
                .known
                .send_modify(|known| known.attached_at = Some(boottime()));
            if owned.release.is_some() {
                release(link, attached.lease_id);
            }
        }
    }

    fn granted(&mut self, link: &mut Link, granted: Granted) {
        let Some((About::Acquire(request_id), called)) = link.answered(granted.call_id) else {
            return;
        };
        let (Some(wait), Some(lease)) = (self.waits.remove(&request_id), granted.lease) else {
            return;
        };
        let sent = match granted.as_of_sequence {
            0 => called,
            sequence => link.beat_sent(sequence).expect("a heartbeat that was sent"),
        };
        let ttl = time(lease.ttl);
        let (known, watched) = watch::channel(Known {
            valid_until: sent + ttl,
            ttl,
            attached_at: None,
            acknowledged_at: None,
            ended: None,
        });
        let lease_id = lease.lease_id.clone();
        let owned = Owned {
            lease: lease.clone(),
            attach_number: wait.attach_number,
            is_here: true,
            known,
            release: None,
        };
        self.leases.insert(lease_id.clone(), owned);
        let known = watched;
        if wait.answer.send(Ok(Kept { lease, known })).is_err() {
            release(link, lease_id);
        }
    }

    fn refused(&mut self, link: &mut Link, refused: Refused) {
        let Some((about, _)) = link.answered(refused.call_id) else {
            return;
        };
        let now = boottime();
        let reason = refused.reason();
        // Also a wait that the broker gave up by itself, since it did not hear of us for too long.
        let is_open =
            refused.code == i32::from(Code::Unavailable) || reason == ErrorReason::Cancelled;
        if let About::Acquire(request_id) = &about {
            let until = self.waits.get(request_id).map(|wait| wait.until);
            if !is_open || until.is_some_and(|until| until + REPEAT_LIMIT < now) {
                if let Some(wait) = self.waits.remove(request_id) {
                    // A caller that is gone needs no answer.
                    let _ = wait.answer.send(Err(refused));
                }
                return;
            }
        }
        if is_open {
            let pause = REPEAT_PAUSE.mul_f64(0.5 + rand::random::<f64>());
            return self.again.push((now + pause, about));
        }
        match about {
            About::Acquire(_) => {}
            About::Attach(lease_id) | About::Release(lease_id) => {
                self.end(&lease_id, End::Refused(reason));
            }
        }
    }

    /// A lease that was not trusted any more is given up, whatever the store makes of it.
    fn extended(&mut self, link: &mut Link, sent: Duration, extended: LeaseExtended) {
        let Some(owned) = self.leases.get_mut(&extended.lease_id) else {
            return;
        };
        if usize::try_from(extended.grant_count) != Ok(owned.lease.grants.len()) {
            return;
        }
        let now = boottime();
        if now >= owned.known.borrow().trusted_until() {
            self.counters.too_late.fetch_add(1, Ordering::Relaxed);
            self.end(&extended.lease_id, End::Lapsed);
            return release(link, extended.lease_id);
        }
        let ttl = time(extended.ttl);
        owned.known.send_modify(|known| {
            known.valid_until = known.valid_until.max(sent + ttl);
            known.ttl = ttl;
            known.acknowledged_at = Some(now);
        });
    }

    pub(super) fn end(&mut self, lease_id: &str, end: End) {
        let Some(owned) = self.leases.remove(lease_id) else {
            return;
        };
        // Trust that ran out before stays where it ended.
        owned
            .known
            .send_modify(|known| known.ended = Some((boottime(), end)));
        if let Some(answer) = owned.release {
            // A caller that is gone needs no answer.
            let _ = answer.send(end);
        }
    }
}
