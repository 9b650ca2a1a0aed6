//! Looks after one line: asks the nodes for the first in it, when that may be worth while.

use std::{sync::Arc, time::Duration};

use rand::Rng as _;
use tokio::{select, time::Instant};

use super::{
    Shared,
    election::{Elected, Wants},
    line::{Head, Standing},
    queued,
    taken::Taken,
    votes::{Busy, Lost},
};
use crate::{
    lock::{Acquire, AttemptId, Grant, LockKey, expiry_ms},
    store::{Acquired, Event, HandOff, Moved, StoreError, redis::scripts::Tells},
};

/// How soon calls of several brokers that have parts of a lock try again, times how often they did.
const SPLIT_MS: std::ops::Range<u64> = 5..50;
/// The clocks of the nodes and ours tick apart, and other brokers wait for the same moment.
const AFTER_EVENT_MS: std::ops::Range<u64> = 1..10;
/// The first in line rests no longer than this.
const LONGEST_MS: u64 = 1_000;
const LONGEST: Duration = Duration::from_millis(LONGEST_MS);
/// How soon nodes that did not answer are asked again.
const RETRY: Duration = Duration::from_millis(250);
/// How much longer a grant is known here than to the nodes.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

impl Shared {
    /// Runs while calls wait for the lock.
    pub(super) async fn keep_line(self: Arc<Self>, lock: LockKey) {
        let mut splits = 0;
        loop {
            let head = select! {
                head = self.lines.due(&lock) => head,
                () = self.stop.cancelled() => return,
            };
            let Some(head) = head else { return };
            let pause = self.serve(&lock, head, &mut splits).await;
            self.lines.rest(&lock, pause);
        }
    }

    /// Asks the nodes for the first in line, and says how long to rest then.
    async fn serve(&self, lock: &LockKey, mut head: Head, splits: &mut u64) -> Duration {
        let mut asked = head.acquire.clone();
        let is_try = asked.wait_ms == 0;
        // What is taken back late of an earlier try must not touch this one.
        if head.first.is_none() || asked.rejoin || is_try {
            asked.attempt = AttemptId::random();
        }
        let tells = match head.is_followed {
            true => Tells::Always,
            false => Tells::IfHeld,
        };
        let elected = self.nodes.elect(&asked, Wants { new: true, tells }).await;
        let busy = match elected {
            Ok(Elected::Granted(grant, moved)) => {
                *splits = 0;
                self.hand_off(lock, &asked, head, (grant, moved));
                return match tells {
                    Tells::Always => LONGEST,
                    Tells::Never | Tells::IfHeld => Duration::ZERO,
                };
            }
            Ok(Elected::Lost(Lost::Refused(refused))) => {
                self.drop_out(lock, head, Ok(refused));
                return Duration::ZERO;
            }
            Err(error) => {
                let stays = matches!(error, StoreError::Recovering { .. }) && head.acquire.rejoin;
                if stays && let Some(first) = head.first.take() {
                    // The call may be gone: then its place goes, too.
                    let _ = first.send(Ok(self.queued(lock, head.place)));
                }
                if head.first.is_some() {
                    self.drop_out(lock, head, Err(error));
                }
                return RETRY;
            }
            Ok(Elected::Lost(Lost::Busy(busy))) => busy,
        };
        if is_try && (!busy.is_split || Instant::now() >= head.until) {
            let mut contention = busy.contention;
            contention.queue_length = self.lines.length(lock).saturating_sub(1);
            self.drop_out(lock, head, Ok(Acquired::Held(contention)));
            return Duration::ZERO;
        }
        match head.first.take() {
            Some(first) if is_try => self.lines.answer_later(lock, head.place, first),
            Some(first) => drop(first.send(Ok(self.queued(lock, head.place)))),
            None => {}
        }
        *splits = if busy.is_split { *splits + 1 } else { 0 };
        pause(&busy, *splits)
    }

    /// A quorum holds the lock for the first in line: says so, unless it has left meanwhile.
    fn hand_off(
        &self,
        lock: &LockKey,
        asked: &Acquire,
        head: Head,
        (grant, moved): (Grant, Option<Moved>),
    ) {
        let by = asked.attempt;
        let token = grant.fencing_token;
        let is_alone = |attempts: &[AttemptId]| attempts == [by];
        let note = |attempts: &[AttemptId]| {
            (!is_alone(attempts)).then(|| Taken {
                request: asked.request,
                token,
                by,
                attempts: attempts.to_vec(),
            })
        };
        let life = Duration::from_millis(expiry_ms(asked.ttl.as_millis()));
        let until = head.until.max(Instant::now()) + life + KNOWN_AFTER;
        let Some(attempts) = self.lines.take_granted(lock, head.place, (note, until)) else {
            return self.nodes.take_back_everywhere(lock, asked.request, by);
        };
        self.tell_moved(lock, moved);
        let queue_length = self.lines.length(lock);
        let granted = Acquired::Granted(Grant {
            queue_length,
            ..grant
        });
        // A caller that is gone takes the attempt back.
        let is_told = head
            .first
            .is_some_and(|first| first.send(Ok(granted)).is_ok());
        if !is_told || !is_alone(&attempts) {
            let hand_off = HandOff {
                broker: self.broker,
                request: asked.request,
                fencing_token: token,
                // Whoever joins knows no tokens here: only the nodes tell whether it is still its.
                provisional: true,
            };
            self.tell(Event::HandOff(lock.clone(), hand_off, None));
        }
    }

    /// Takes the first out of the line with this answer. One that waits asks again for it.
    fn drop_out(&self, lock: &LockKey, head: Head, answer: Result<Acquired, StoreError>) {
        self.lines.take(lock, head.place);
        match head.first {
            Some(first) => drop(first.send(answer)),
            None => self.tell(Event::Rejoin(lock.clone())),
        }
    }

    fn queued(&self, lock: &LockKey, place: u64) -> Acquired {
        let position = self.lines.position(lock, place);
        queued(Standing { place, position })
    }
}

/// How long the first in line rests that did not get the lock.
fn pause(busy: &Busy, splits: u64) -> Duration {
    let mut rng = rand::thread_rng();
    let pause_ms = match splits {
        0 => busy.free_in_ms + rng.gen_range(AFTER_EVENT_MS),
        splits => rng.gen_range(SPLIT_MS) * splits,
    };
    Duration::from_millis(pause_ms.min(LONGEST_MS))
}
