//! Counts what happened in the sequences, so that a run that met too little is red.

use std::{collections::BTreeMap, fmt};

use leasehold_server::{
    lock::{Acquire, CLAIM_MS, FencingToken, LeaseId, LockState, expiry_ms},
    store::{
        Acquired, Attached, Cancelled, Checked, Ending, EndingKind, HandOff, LimitSet, Refused,
        Released, Renewed, Revoked,
    },
};

use super::steps::{Answer, Step, Verb};

/// How often each outcome occurred.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

/// What the tally knows of the sequence under way.
#[derive(Debug, Default)]
pub struct Watch {
    calls: Vec<Acquire>,
    /// Requests that were handed the lock provisionally: the token, and when it lapses.
    provisional: Vec<(String, FencingToken, u64)>,
    /// Leases that hold the lock, and until when.
    held: Vec<(LeaseId, u64)>,
}

impl Tally {
    /// How often that outcome occurred.
    pub fn of(&self, outcome: &str) -> u64 {
        self.0.get(outcome).copied().unwrap_or(0)
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.0 {
            *self.0.entry(outcome).or_default() += count;
        }
    }

    /// Counts what a step's command found to be over.
    pub fn count_endings(&mut self, endings: &[Ending]) {
        for ending in endings {
            self.one(match ending.kind {
                EndingKind::Expired => "ended: expired",
                EndingKind::Revoked => "ended: revoked",
                EndingKind::MaxHold => "ended: max_hold",
            });
        }
    }

    /// Counts a step: the lock before and after it as a look at the step's time shows it.
    pub fn count(
        &mut self,
        watch: &mut Watch,
        step: &Step,
        answer: &Answer,
        seen: [&LockState; 2],
    ) {
        watch.assert_closed(step, answer);
        if let Verb::Acquire(acquire) = &step.verb {
            watch.calls.push(Acquire::clone(acquire));
        }
        let touched_nothing = match answer.refused() {
            Some(Refused::Late) => true,
            Some(Refused::NoEra) => matches!(answer, Answer::Touch(_) | Answer::Check(_)),
            Some(Refused::Recovering { .. }) | None => {
                matches!(answer, Answer::Get(_) | Answer::Check(_))
            }
        };
        if !touched_nothing {
            self.count_lapses(watch, step);
        }
        self.count_line(step, answer, seen);
        match answer {
            Answer::Acquire(Ok(done)) => self.count_acquired(watch, step, &done.reply, seen[0]),
            Answer::Renew(Ok(done)) => self.count_renewed(watch, step, &done.reply),
            Answer::Release(Ok(done)) => {
                self.count_released(&done.reply);
                self.count_if(is_weaker(seen), "release: downgraded");
            }
            Answer::Cancel(Ok(done)) => self.count_cancelled(done.reply),
            Answer::Touch(Ok(done)) => {
                self.count_if(done.reply.rejoin, "touch: rejoin");
                self.count_if(!done.reply.held.is_empty(), "touch: grant told");
            }
            Answer::SetLimit(Ok(done)) => self.one(match done.reply {
                LimitSet::Set { previous: 1.. } if step.verb.removes_limit() => {
                    "set limit: removed"
                }
                LimitSet::Set { .. } => "set limit",
                LimitSet::Mismatch => "set limit: mismatch",
            }),
            Answer::Revoke(Ok(done)) => self.one(match done.reply {
                Revoked::Taken { .. } => "revoke: taken",
                Revoked::Already => "revoke: already",
                Revoked::Expired => "revoke: expired",
                Revoked::Released => "revoke: released",
                Revoked::NotFound => "revoke: not found",
            }),
            Answer::Check(Ok(done)) => self.one(match done.reply {
                Checked::Live { .. } => "check: live",
                Checked::Stale { .. } => "check: stale",
                Checked::Unknown => "check: unknown",
            }),
            Answer::Attach(Ok(done)) => self.one(match done.reply {
                Attached::Attached(_) if done.moved.is_some() => "attach: moved",
                Attached::Attached(_) => "attach: attached",
                Attached::Stale => "attach: stale",
                Attached::MaxHold => "attach: max_hold",
                Attached::Revoked { .. } => "attach: revoked",
                Attached::Expired => "attach: expired",
                Attached::Released => "attach: released",
                Attached::NotFound => "attach: not found",
            }),
            Answer::Get(_) => self.one("get"),
            Answer::Acquire(_) | Answer::Renew(_) | Answer::Touch(_) | Answer::SetLimit(_) => {}
            Answer::Attach(_) | Answer::Revoke(_) => {}
            Answer::Release(_) | Answer::Cancel(_) | Answer::Check(_) | Answer::Failed(_) => {}
        }
        if let Some(refused) = answer.refused() {
            self.one(match refused {
                Refused::Late => "late",
                Refused::NoEra => "no era",
                Refused::Recovering { .. } => "recovering",
            });
        }
        self.count_if(answer.hand_offs().len() > 1, "several hand-offs at once");
        for hand_off in answer.hand_offs() {
            self.count_hand_off(watch, step, hand_off);
        }
        watch.settle(step, seen[1]);
    }

    fn count_released(&mut self, released: &Released) {
        self.one(match released {
            Released::Now { hold_count: 0 } => "release: now",
            Released::Now { .. } => "release: an entry",
            Released::Already { hold_count: 0 } => "release: already",
            Released::Already { .. } => "release: an entry already",
            Released::Elsewhere => "release: elsewhere",
            Released::Expired => "release: expired",
            Released::Revoked { .. } => "release: revoked",
            Released::NotFound => "release: not found",
        });
    }

    fn count_cancelled(&mut self, cancelled: Cancelled) {
        self.count_if(cancelled != Cancelled::Unknown, "cancel");
        self.one(match cancelled {
            Cancelled::Dequeued => "cancel: dequeued",
            Cancelled::Freed => "cancel: freed",
            Cancelled::Kept => "cancel: kept",
            Cancelled::Unknown => "cancel: unknown",
        });
    }

    fn count_lapses(&mut self, watch: &mut Watch, step: &Step) {
        let now_ms = step.now_us / 1_000;
        let (provisional, held) = (watch.provisional.len(), watch.held.len());
        watch
            .provisional
            .retain(|&(_, _, until_ms)| until_ms > now_ms);
        watch.held.retain(|&(_, until_ms)| until_ms > now_ms);
        for _ in watch.provisional.len()..provisional {
            self.one("fall-back");
        }
        for _ in watch.held.len()..held {
            self.one("expiry");
        }
    }

    /// Waiters that were passed over, and those that were dropped because their broker was silent.
    fn count_line(&mut self, step: &Step, answer: &Answer, [before, after]: [&LockState; 2]) {
        let ids = |state: &LockState| -> Vec<String> {
            state
                .waiters
                .iter()
                .map(|waiting| waiting.owner.id.clone())
                .collect()
        };
        let (before_ids, after_ids) = (ids(before), ids(after));
        let held = match answer {
            Answer::Touch(Ok(outcome)) => outcome.reply.held.first(),
            Answer::Touch(_) | Answer::Acquire(_) | Answer::Renew(_) | Answer::Get(_) => None,
            Answer::Release(_) | Answer::Cancel(_) | Answer::SetLimit(_) => None,
            Answer::Attach(_) | Answer::Revoke(_) | Answer::Check(_) | Answer::Failed(_) => None,
        };
        let hand_off = answer.hand_offs().first().or(held);
        let Some(granted) = hand_off.map(|hand_off| hand_off.request.to_string()) else {
            return;
        };
        let Some(place) = before_ids.iter().position(|id| *id == granted) else {
            return;
        };
        let acting = match &step.verb {
            Verb::Acquire(acquire) => acquire.request.to_string(),
            Verb::Cancel(request, _) => request.to_string(),
            Verb::Release(..) | Verb::Renew(..) | Verb::Touch(_) => String::new(),
            Verb::Attach(..) | Verb::Revoke(_) => String::new(),
            Verb::SetLimit(_) | Verb::Get | Verb::Check(_) => String::new(),
        };
        for passed in before_ids[..place].iter().filter(|id| **id != acting) {
            self.one(if after_ids.contains(passed) {
                "passed over"
            } else {
                "dropped"
            });
        }
    }

    fn count_acquired(
        &mut self,
        watch: &mut Watch,
        step: &Step,
        reply: &Acquired,
        before: &LockState,
    ) {
        let Verb::Acquire(acquire) = &step.verb else {
            return;
        };
        let mut holders = before.holders.iter();
        let held = holders.any(|held| held.lease_id == acquire.lease_id);
        let beside = !before.holders.is_empty();
        let waits = before
            .waiters
            .iter()
            .any(|waiting| waiting.owner == acquire.owner);
        self.count_if(
            (held || waits) && matches!(reply, Acquired::Granted(_) | Acquired::Queued { .. }),
            "repeat",
        );
        self.one(match reply {
            Acquired::Granted(grant) if grant.hold_count > 1 => "acquire: entered",
            Acquired::Granted(_) if held => "acquire: held already",
            Acquired::Granted(grant) if watch.is_provisional(grant.fencing_token) => {
                "acquire: claimed"
            }
            Acquired::Granted(_) if waits => "acquire: waited and granted",
            Acquired::Granted(_) if beside => "acquire: granted beside holders",
            Acquired::Granted(_) => "acquire: granted at once",
            Acquired::Queued { .. } if waits => "acquire: queued already",
            Acquired::Queued { .. } => "acquire: queued",
            Acquired::Held(held) if held.closed_ms > 0 => "acquire: closed by a lock_delay",
            Acquired::Held(_) => "acquire: held by another",
            Acquired::LimitMismatch { .. } => "acquire: limit mismatch",
            Acquired::StaleAttach => "acquire: stale attach",
            Acquired::UpgradeDenied => "acquire: upgrade denied",
            Acquired::TooManyEntries => "acquire: too many entries",
            Acquired::TooManyAttempts => "acquire: too many attempts",
            Acquired::NotFound => "acquire: lease not found",
            Acquired::QueueFull => "full",
            Acquired::RequestIdReused => "acquire: id reused",
            Acquired::Ended => "acquire: ended",
            Acquired::Cancelled => "tombstone",
        });
        if let Acquired::Granted(grant) = reply {
            watch.claim(grant.fencing_token);
        }
    }

    fn count_renewed(&mut self, watch: &mut Watch, step: &Step, renewed: &Renewed) {
        let Verb::Renew(lease, ..) = &step.verb else {
            return;
        };
        let claims = watch.is_provisional(lease.fencing_token);
        self.one(match renewed {
            Renewed::Extended(_) if claims => "renew: claimed",
            Renewed::Extended(_) => "renew: extended",
            Renewed::Elsewhere => "renew: elsewhere",
            Renewed::MaxHold => "renew: max_hold",
            Renewed::Revoked { .. } => "renew: revoked",
            Renewed::Expired => "renew: expired",
            Renewed::Released => "renew: released",
            Renewed::NotFound => "renew: not found",
        });
        if matches!(renewed, Renewed::Extended(_)) {
            watch.claim(lease.fencing_token);
        }
    }

    fn count_hand_off(&mut self, watch: &mut Watch, step: &Step, hand_off: &HandOff) {
        self.one(if hand_off.provisional {
            "remote hand-off"
        } else {
            "local hand-off"
        });
        let call = watch
            .calls
            .iter()
            .find(|call| call.request == hand_off.request);
        let ttl_ms = call.map_or(0, |call| call.terms.cut(call.ttl).as_millis());
        if hand_off.provisional {
            let until_ms = step.now_us / 1_000 + expiry_ms(ttl_ms).min(CLAIM_MS);
            let request = hand_off.request.to_string();
            watch
                .provisional
                .push((request, hand_off.fencing_token, until_ms));
        }
    }

    fn count_if(&mut self, occurred: bool, outcome: &'static str) {
        if occurred {
            self.one(outcome);
        }
    }

    fn one(&mut self, outcome: &'static str) {
        *self.0.entry(outcome).or_default() += 1;
    }
}

impl Watch {
    /// G2: while the era closes the store nothing is granted, and nothing comes back that may have ended
    /// before its data was lost.
    fn assert_closed(&self, step: &Step, answer: &Answer) {
        let is_granted = match (answer, &step.verb) {
            (Answer::Acquire(Ok(done)), _) => matches!(done.reply, Acquired::Granted(_)),
            (Answer::Renew(Ok(done)), Verb::Renew(lease, ..)) => {
                matches!(done.reply, Renewed::Extended(_))
                    && self.is_provisional(lease.fencing_token)
            }
            (Answer::Attach(Ok(done)), _) => {
                matches!(&done.reply, Attached::Attached(grant) if grant.disconnect_grace_ms.is_some())
            }
            (Answer::Check(Ok(done)), _) => matches!(done.reply, Checked::Live { .. }),
            _ => false,
        };
        let is_granted = is_granted || !answer.hand_offs().is_empty();
        assert!(!(is_granted && step.is_closed()), "{step:?} {answer:?}");
    }

    fn is_provisional(&self, token: FencingToken) -> bool {
        self.provisional
            .iter()
            .any(|provisional| provisional.1 == token)
    }

    fn claim(&mut self, token: FencingToken) {
        self.provisional
            .retain(|provisional| provisional.1 != token);
    }

    fn settle(&mut self, step: &Step, after: &LockState) {
        let now_ms = step.now_us / 1_000;
        // A holder past its time is not shown although no command has noticed yet.
        self.held.retain(|&(_, until_ms)| until_ms <= now_ms);
        let holders = after.holders.iter();
        self.held
            .extend(holders.map(|holder| (holder.lease_id, now_ms + holder.remaining_ms)));
        let waits = |request: &String| after.waiters.iter().any(|w| w.owner.id == *request);
        self.provisional.retain(|(request, _, _)| waits(request));
    }
}

/// A holder holds less of the lock than before.
fn is_weaker([before, after]: [&LockState; 2]) -> bool {
    before.holders.iter().any(|held| {
        let mut kept = after.holders.iter();
        kept.any(|kept| kept.lease_id == held.lease_id && kept.mode != held.mode)
    })
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (outcome, count) in &self.0 {
            writeln!(f, "{count:>10}  {outcome}")?;
        }
        Ok(())
    }
}
