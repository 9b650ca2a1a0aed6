//! Calls without an answer: sent again on every stream until there is one.

use std::{sync::Arc, time::Duration};

use leasehold_proto::v1::{
    CancelAcquire, ErrorReason, Granted, HoldAcquire, HoldAcquireAll, Queued, Refused,
    hold_request::Message as Request,
};
use tokio::sync::{oneshot, watch};

use super::{Keeper, leases::Owned, link::About, moves::jittered};
use crate::{
    clock,
    core::{Core, Orders, Slot},
    error::{Error, LostReason, Refusal, holder, is_open, refused, time},
    guard::{Guard, Held},
    order::{Ask, Call, Message},
    queue::Place,
};

/// How much longer than it may wait a call of unknown outcome is repeated.
const REPEAT_LIMIT: Duration = Duration::from_secs(5);
/// How soon a call is repeated that was refused for now.
const REPEAT_PAUSE: Duration = Duration::from_millis(200);
/// How soon another broker is tried when this one does not reach its store.
const STORE_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Wait {
    pub(super) call: Call,
    pub(super) slot: Option<Slot>,
    under: Option<Held>,
    /// How long it may wait in line.
    until: Duration,
    attach_number: i32,
    /// As which it was sent last; 0: not on this stream.
    call_id: i64,
    /// Why it has no answer yet.
    why: Option<Error>,
    place: watch::Sender<Option<Place>>,
    /// `None`: the caller is gone.
    answer: Option<oneshot::Sender<Result<Guard, Error>>>,
    reach: (Orders, Arc<Core>),
}

impl Wait {
    /// Answers, if the caller is there still. What it got and does not take gives itself back.
    pub(super) fn answer(&mut self, result: Result<Guard, Error>) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(result);
        }
    }

    pub(super) fn reach(&self) -> (Orders, Arc<Core>) {
        self.reach.clone()
    }

    pub(super) fn attach_number(&self) -> i32 {
        self.attach_number
    }

    fn is_for(&self, lease_id: &str) -> bool {
        self.under
            .as_ref()
            .is_some_and(|held| held.lease_id() == lease_id)
    }
}

impl Keeper {
    pub(super) fn ask(&mut self, ask: Ask) {
        let request_id = ask.call.request_id.clone();
        let wait = Wait {
            call: ask.call,
            slot: ask.slot,
            under: ask.under,
            until: clock::now().saturating_add(ask.wait),
            attach_number: 0,
            call_id: 0,
            why: None,
            place: ask.place,
            answer: Some(ask.answer),
            reach: (ask.orders, ask.core),
        };
        self.look_at_wait(&wait);
        self.waits.insert(request_id.clone(), wait);
        self.acquire(&request_id);
    }

    /// Sends a call, if it can be sent now. Under a lease that is only once that is on this stream.
    pub(super) fn acquire(&mut self, request_id: &str) {
        let (Some(link), Some(wait)) = (&mut self.link, self.waits.get_mut(request_id)) else {
            return;
        };
        let mut under = None;
        if let Some(held) = &wait.under {
            let owned = self.leases.get(held.lease_id());
            let Some(owned) = owned.filter(|owned| !owned.is_given_back()) else {
                let why = held.lost_reason().unwrap_or(LostReason::Released);
                wait.answer(Err(Error::LeaseLost(why)));
                self.waits.remove(request_id);
                return;
            };
            if !owned.is_here() {
                return;
            }
            under = Some(owned.lease().clone());
            wait.attach_number = owned.attach_number();
        } else {
            wait.attach_number += 1;
        }
        // A call that is late already still asks once, without waiting.
        let left = wait.until.saturating_sub(clock::now());
        let (message, attach_number) = (wait.call.message(left, under), wait.attach_number);
        let traceparent = wait.call.traceparent.clone();
        wait.call_id = link.call(
            About::Acquire(request_id.to_owned()),
            |call_id| match message {
                Message::One(request) => Request::Acquire(HoldAcquire {
                    call_id,
                    request: Some(request),
                    attach_number,
                    traceparent,
                }),
                Message::Several(request) => Request::AcquireAll(HoldAcquireAll {
                    call_id,
                    request: Some(request),
                    attach_number,
                    traceparent,
                }),
            },
        );
    }

    /// What could not be sent before, since its lease was not here. If that is over now, so are they.
    pub(super) fn acquire_under(&mut self, lease_id: &str) {
        let waits = self.waits.iter();
        let waits = waits.filter(|(_, wait)| wait.is_for(lease_id) && wait.call_id == 0);
        let waits: Vec<_> = waits.map(|(request_id, _)| request_id.clone()).collect();
        for request_id in waits {
            self.acquire(&request_id);
        }
    }

    /// The caller is gone: the broker answers with a refusal, or with a grant that is given back.
    pub(super) fn cancel(&mut self, request_id: &str) {
        let Some(wait) = self.waits.get_mut(request_id) else {
            return;
        };
        wait.answer = None;
        let call_id = wait.call_id;
        match &self.link {
            Some(link) if call_id > 0 => link.send(Request::Cancel(CancelAcquire { call_id })),
            _ => {
                self.waits.remove(request_id);
            }
        }
    }

    pub(super) fn queued(&mut self, queued: &Queued) {
        let about = self.link.as_ref();
        let about = about.and_then(|link| link.asked(queued.call_id));
        let Some(About::Acquire(request_id)) = about else {
            return;
        };
        let wait = self.waits.get(request_id);
        if let Some(wait) = wait {
            wait.place.send_replace(Some(Place {
                position: u32::try_from(queued.position).unwrap_or_default(),
                queue_length: u32::try_from(queued.queue_length).unwrap_or_default(),
                holders: queued.holders.iter().map(holder).collect(),
            }));
        }
    }

    pub(super) fn granted(&mut self, granted: Granted) {
        let Some((About::Acquire(request_id), called)) = self.answered(granted.call_id) else {
            return;
        };
        let Some(lease) = granted.lease else { return };
        let Some(mut wait) = self.waits.remove(&request_id) else {
            // An earlier sending of the call was answered, too; its guard decides.
            return;
        };
        let beat = self
            .link
            .as_ref()
            .and_then(|link| link.beat_sent(granted.as_of_sequence));
        // The store was asked after both; after a pause the heartbeat is the older one.
        let sent = beat.map_or(called, |beat| beat.max(called));
        if wait.under.is_none() {
            self.own(lease, wait, sent);
        } else if let Some(guard) = self.enter(lease, &wait) {
            wait.answer(Ok(guard));
        } else {
            wait.answer(Err(Error::LeaseLost(LostReason::Expired)));
        }
    }

    /// A guard for what a call under a lease has added to it. `None`: the lease is over.
    fn enter(&mut self, lease: leasehold_proto::v1::Lease, wait: &Wait) -> Option<Guard> {
        let Some(owned) = self.leases.get_mut(&lease.lease_id) else {
            // It is on this stream again, and must not be renewed.
            self.detach(lease.lease_id);
            return None;
        };
        Some(owned.enter(lease, &wait.call, wait.reach()))
    }

    pub(super) fn refused(&mut self, message: &Refused) {
        match self.answered(message.call_id) {
            Some((About::Acquire(request_id), _)) => self.acquire_refused(&request_id, message),
            Some((About::Attach(lease_id), _)) => self.attach_refused(&lease_id, message),
            Some((About::Release(lease_id, None), _)) => self.release_refused(&lease_id, message),
            Some((About::Release(lease_id, Some(part)), _)) => {
                self.part_released(&lease_id, part, Err(message));
            }
            Some((About::Credential(_), _)) => self.credential_refused(&message.message),
            Some((About::Nothing, _)) | None => {}
        }
    }

    fn acquire_refused(&mut self, request_id: &str, message: &Refused) {
        let Some(wait) = self.waits.get_mut(request_id) else {
            return;
        };
        if wait.call_id != message.call_id {
            return;
        }
        wait.call_id = 0;
        if wait.answer.is_none() || !is_open(message) {
            wait.answer(Err(refused(message)));
            self.waits.remove(request_id);
            return;
        }
        wait.why = Some(refused(message));
        let now = clock::now();
        let about = About::Acquire(request_id.to_owned());
        self.again.push((now + jittered(REPEAT_PAUSE), about));
        self.leave_if_useless(message);
    }

    /// A broker that goes away, or does not reach its store, is not the one to ask again.
    fn leave_if_useless(&mut self, message: &Refused) {
        let is_one_of_many = self.brokers.endpoints.len() > 1;
        let reason = message.reason();
        if reason == ErrorReason::Draining {
            self.leave(Duration::ZERO);
        } else if reason == ErrorReason::StoreUnavailable && is_one_of_many {
            self.leave(jittered(STORE_PAUSE));
        }
    }

    /// Nobody has answered these calls for too long.
    pub(super) fn watch_waits(&mut self, now: Duration) {
        let is_late = |wait: &Wait| {
            let give_up_at = wait.until.saturating_add(REPEAT_LIMIT);
            wait.answer.is_some() && now >= give_up_at
        };
        let late = self.waits.iter().filter(|(_, wait)| is_late(wait));
        let late: Vec<_> = late.map(|(request_id, _)| request_id.clone()).collect();
        for request_id in late {
            let why_not = match &self.link {
                Some(_) => "the broker does not answer".to_owned(),
                None => self.moving.why_not(),
            };
            if let Some(wait) = self.waits.get_mut(&request_id) {
                let why = wait.why.take();
                wait.answer(Err(
                    why.unwrap_or_else(|| Error::Unavailable(Refusal::new(why_not)))
                ));
            }
            self.cancel(&request_id);
        }
    }

    /// No broker accepts the credential: calls are told so instead of being sent on and on.
    pub(super) fn deny_waits(&mut self) {
        let why = self.moving.why_not();
        for (_, mut wait) in self.waits.drain() {
            wait.answer(Err(Error::Unauthenticated(Refusal::new(why.clone()))));
        }
    }

    /// The stream is gone, and with it every call of somebody who is gone, too: the broker gives up
    /// what does not come again.
    pub(super) fn waits_off_stream(&mut self) {
        self.waits.retain(|_, wait| wait.answer.is_some());
        for wait in self.waits.values_mut() {
            wait.call_id = 0;
        }
    }
}

impl Owned {
    /// How the call begins again that this lease was granted to, and not yet handed out.
    pub(super) fn into_wait(self) -> Option<Wait> {
        let (slot, wait) = self.unborn()?;
        let slot = Some(slot);
        Some(Wait {
            slot,
            call_id: 0,
            ..wait
        })
    }
}

/// What a lease is asked to be.
pub(super) fn ttl_of(lease: &leasehold_proto::v1::Lease) -> Duration {
    time(lease.ttl)
}
