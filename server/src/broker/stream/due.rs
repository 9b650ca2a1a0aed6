//! What of a stream is to go to the store in its turn: renewals and attachments.
//!
//! A stream waits for a few turns at a time, so that streams are served one after the other: whoever has
//! one lease does not wait behind all leases of the others, and every client soon hears that its broker
//! lives.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{Done, Phase, Stream};
use crate::{
    broker::in_turn,
    lock::{LeaseId, ShownLease},
    trace::Traced,
};

/// Turns that a stream has before the next one. With fewer there are more messages to tell the same
/// renewals, and more tasks to wake: with one at a time a broker renewed less than half as many.
const TOGETHER: usize = 64;

/// Waits for a turn.
pub(super) enum Due {
    Renew(LeaseId),
    Attach(Box<Attach>),
}

/// A call that shows a lease.
pub(super) struct Attach {
    pub(super) call_id: i64,
    pub(super) lease: ShownLease,
    pub(super) number: u32,
    pub(super) traced: Traced,
}

impl Stream {
    /// Has something done in its turn.
    pub(super) fn due_next(&mut self, due: Due) {
        self.due.push_back(due);
        self.take_turns(None);
    }

    /// Does what is due in these turns and in those that nobody else waits for, or waits for more.
    pub(super) fn take_turns(&mut self, mut turns: Option<OwnedSemaphorePermit>) {
        while let Some(due) = self.due.pop_front() {
            if !self.is_still_due(&due) {
                continue;
            }
            let turn = turns.as_mut().and_then(|turns| turns.split(1));
            let more = || Arc::clone(&self.broker.turns).try_acquire_owned().ok();
            let Some(turn) = turn.or_else(more) else {
                self.due.push_front(due);
                return self.wait_for_turns();
            };
            match due {
                Due::Renew(lease_id) => self.renew(lease_id, turn),
                Due::Attach(attach) => self.attach(*attach, turn),
            }
        }
    }

    fn wait_for_turns(&mut self) {
        if !std::mem::replace(&mut self.is_in_turn, true) {
            let all = Arc::clone(&self.broker.turns);
            let count = self.due.len().min(TOGETHER) as u32;
            self.jobs.push(Box::pin(async move {
                // Nobody closes the semaphore.
                Done::Turns(all.acquire_many_owned(count).await.ok())
            }));
        }
    }

    fn is_still_due(&mut self, due: &Due) -> bool {
        match due {
            Due::Renew(lease_id) => {
                let phase = self.phase;
                self.leases.get_mut(lease_id).is_some_and(|owned| {
                    owned.is_due =
                        phase == Phase::Open && owned.unanswered.is_some() && !owned.is_busy;
                    owned.is_due
                })
            }
            Due::Attach(_) => matches!(self.phase, Phase::Open | Phase::Closing),
        }
    }

    fn attach(&mut self, attach: Attach, turn: OwnedSemaphorePermit) {
        let Attach {
            call_id,
            lease,
            number,
            traced,
        } = attach;
        let (broker, to) = (self.broker.clone(), self.attachment(number));
        let origin = traced.origin();
        let attached = async move {
            let result = in_turn(turn, broker.attach(&lease.locks, to)).await;
            Done::Attached {
                call_id,
                number,
                lease,
                result,
                origin,
            }
        };
        let attached = Box::pin(traced.run(attached));
        match self.phase {
            Phase::Open => self.answers.push(attached),
            // It is given back.
            Phase::Closing | Phase::Broken | Phase::Left => self.jobs.push(attached),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream::{self, StreamExt as _};
    use tokio::time::sleep;

    use super::*;
    use crate::{
        broker::{
            Broker, TURN_MAX, TURNS,
            stream::{Asked, StreamCaller},
        },
        lock::{FencingToken, LeaseRef, LeaseToken, Ttl},
        store::stub::{Stub, lease_id, lock},
    };

    fn attach(number: usize) -> Asked {
        let lease_id = lease_id(number);
        let held = LeaseRef {
            lock: lock(&number.to_string()),
            lease_id,
            fencing_token: FencingToken::after(0, 1),
        };
        Asked::Attach {
            call_id: i64::try_from(number).expect("few"),
            lease: ShownLease {
                lease_id,
                lease_token: LeaseToken::from_caller(number.to_string()),
                ttl: Ttl::from_stored(1_000),
                locks: vec![held],
            },
            number: 1,
            traced: Traced::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_attachments_are_at_the_store_at_once() {
        let store = Arc::new(Stub::default());
        let caller = StreamCaller {
            name: Arc::default(),
            expires: None,
            moves_at: None,
        };
        let asked = stream::iter((0..=TURNS).map(attach)).chain(stream::pending());
        let held = Broker::alone(store.clone()).hold(caller, asked.boxed(), Arc::new(|_| true));
        held.expect("there is room");
        sleep(TURN_MAX / 2).await;
        assert_eq!(store.asked(), TURNS);
        sleep(TURN_MAX).await;
        assert_eq!(store.asked(), TURNS + 1, "late ones let others pass");
    }
}
