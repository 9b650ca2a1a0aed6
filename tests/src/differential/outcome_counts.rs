//! Counts of outcomes in the sequences, so that a run that covers too few of them fails.

use std::{collections::BTreeMap, fmt};

use leasehold_server::{
    lock::{
        AcquireCommand, ClosureCause, FencingToken, Grant, LeaseId, LockState,
        PROVISIONAL_GRANT_MS, expiry_ms,
    },
    store::{
        Acquired, Cancelled, Checked, HandOff, LeaseEndCause, LeaseEndEvent, LeaseRejection,
        LeaseReply, LimitSet, Rejected, Released, Revoked, VoteReply,
    },
};

use super::steps::{Step, StoreCommand, StoreReply};

/// Number of occurrences of each outcome.
#[derive(Debug, Default)]
pub struct OutcomeCounts(BTreeMap<String, u64>);

/// State of the current sequence that the tally needs.
#[derive(Debug, Default)]
pub struct SequenceState {
    calls: Vec<AcquireCommand>,
    /// Requests with a provisional hand-off: the request, its token and the time at which it
    /// lapses.
    provisional: Vec<(String, FencingToken, u64)>,
    /// Leases that hold the lock, with their expiry.
    held: Vec<(LeaseId, u64)>,
}

impl OutcomeCounts {
    /// Returns the number of occurrences of an outcome.
    pub fn count_of(&self, outcome: &str) -> u64 {
        self.0.get(outcome).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.0 {
            *self.0.entry(outcome.clone()).or_default() += count;
        }
    }

    /// Counts the lease ends that the command of a step found.
    pub fn count_lease_ends(&mut self, endings: &[LeaseEndEvent]) {
        for ending in endings {
            self.increment(match ending.kind {
                LeaseEndCause::Expired => "ended: expired",
                LeaseEndCause::Revoked => "ended: revoked",
                LeaseEndCause::MaxHold => "ended: max_hold",
            });
        }
    }

    /// Counts a step, given inspections of the lock before and after it at the time of the step.
    pub fn count(
        &mut self,
        watch: &mut SequenceState,
        step: &Step,
        answer: &StoreReply,
        seen: [&LockState; 2],
    ) {
        watch.assert_no_grants(step, answer);
        if let StoreCommand::Acquire(acquire) | StoreCommand::Vote(acquire, _) = &step.verb {
            watch.calls.push(AcquireCommand::clone(acquire));
        }
        let touched_nothing = match answer.rejection() {
            Some(Rejected::DeadlinePassed) => true,
            Some(Rejected::NoEra) => matches!(
                answer,
                StoreReply::Touch(_) | StoreReply::Check(_) | StoreReply::SetClosure(_)
            ),
            Some(Rejected::Recovering { .. } | Rejected::SpanLimit { .. }) | None => {
                matches!(answer, StoreReply::Get(_) | StoreReply::Check(_))
            }
        };
        if !touched_nothing {
            self.count_lapses(watch, step);
        }
        self.count_passed_waiters(step, answer, seen);
        match answer {
            StoreReply::Acquire(Ok(done)) => self.count_acquired(watch, step, &done.reply, seen[0]),
            StoreReply::Vote(Ok(done)) => self.count_voted(step, &done.reply, seen),
            StoreReply::Renew(Ok(done)) => self.count_renewed(watch, step, &done.reply),
            StoreReply::Release(Ok(done)) => {
                self.count_released(&done.reply);
                self.count_if(is_weaker(seen), "release: downgraded");
            }
            StoreReply::Cancel(Ok(done)) => self.count_cancelled(done.reply),
            StoreReply::Touch(Ok(done)) => {
                self.count_if(done.reply.rejoin, "touch: rejoin");
                self.count_if(!done.reply.held.is_empty(), "touch: grant told");
            }
            StoreReply::SetLimit(Ok(done)) => self.increment(match done.reply {
                LimitSet::Set { previous: Some(_) } if step.verb.removes_limit() => {
                    "set limit: removed"
                }
                LimitSet::Set { .. } => "set limit",
                LimitSet::Mismatch => "set limit: mismatch",
            }),
            StoreReply::SetClosure(Ok(done)) => self.increment(match (&step.verb, &done.reply) {
                (StoreCommand::Open, Some(_)) => "open: opened",
                (StoreCommand::Open, None) => "open: not closed",
                (_, Some(active)) if active.closure.cause == ClosureCause::Operator => "close",
                (_, Some(_)) => "close: closed for longer",
                (_, None) => "close: time has passed",
            }),
            StoreReply::Revoke(Ok(done)) => match &done.reply {
                Ok(Revoked::Taken(_)) => self.increment("revoke: taken"),
                Ok(Revoked::Already) => self.increment("revoke: already"),
                Err(rejection) => self.count_lease_rejection("revoke", rejection),
            },
            StoreReply::Check(Ok(done)) => self.increment(match done.reply {
                Checked::Live { .. } => "check: live",
                Checked::Stale { .. } => "check: stale",
                Checked::Unknown => "check: unknown",
            }),
            StoreReply::Attach(Ok(done)) => match &done.reply {
                Ok(_) if done.moved.is_some() => self.increment("attach: moved"),
                Ok(_) => self.increment("attach: attached"),
                Err(rejection) => self.count_lease_rejection("attach", rejection),
            },
            StoreReply::Get(_) => self.increment("get"),
            StoreReply::Acquire(_)
            | StoreReply::Vote(_)
            | StoreReply::Renew(_)
            | StoreReply::Touch(_)
            | StoreReply::SetLimit(_)
            | StoreReply::SetClosure(_) => {}
            StoreReply::Attach(_) | StoreReply::Revoke(_) => {}
            StoreReply::Release(_)
            | StoreReply::Cancel(_)
            | StoreReply::Check(_)
            | StoreReply::Failed(_) => {}
        }
        if let Some(refused) = answer.rejection() {
            self.increment(match refused {
                Rejected::DeadlinePassed => "late",
                Rejected::NoEra => "no era",
                Rejected::Recovering { .. } if matches!(answer, StoreReply::Vote(_)) => {
                    "vote: recovering"
                }
                Rejected::Recovering { .. } => "recovering",
                Rejected::SpanLimit { .. } if matches!(answer, StoreReply::Renew(_)) => {
                    "renew: over the limit of spans"
                }
                Rejected::SpanLimit { .. } if matches!(answer, StoreReply::Vote(_)) => {
                    "vote: over the limit of spans"
                }
                Rejected::SpanLimit { .. } => "acquire: over the limit of spans",
            });
        }
        self.count_if(answer.hand_offs().len() > 1, "several hand-offs at once");
        for hand_off in answer.hand_offs() {
            self.count_hand_off(watch, step, hand_off);
        }
        watch.update(step, seen[1]);
    }

    fn count_released(&mut self, reply: &LeaseReply<Released>) {
        match reply {
            Ok(released) => {
                self.increment(match (released.already_released, released.hold_count) {
                    (false, 0) => "release: now",
                    (false, _) => "release: an entry",
                    (true, 0) => "release: already",
                    (true, _) => "release: an entry already",
                })
            }
            Err(rejection) => self.count_lease_rejection("release", rejection),
        }
    }

    fn count_lease_rejection(&mut self, verb: &str, rejection: &LeaseRejection) {
        let reason = match rejection {
            LeaseRejection::Elsewhere => "elsewhere",
            LeaseRejection::MaxHold => "max_hold",
            LeaseRejection::Revoked { .. } => "revoked",
            LeaseRejection::Expired => "expired",
            LeaseRejection::Released => "released",
            LeaseRejection::NotFound => "not found",
        };
        self.increment(&format!("{verb}: {reason}"));
    }

    fn count_cancelled(&mut self, cancelled: Cancelled) {
        self.count_if(cancelled != Cancelled::Unknown, "cancel");
        self.increment(match cancelled {
            Cancelled::Dequeued => "cancel: dequeued",
            Cancelled::Freed => "cancel: freed",
            Cancelled::Kept => "cancel: kept",
            Cancelled::Unknown => "cancel: unknown",
        });
    }

    fn count_lapses(&mut self, watch: &mut SequenceState, step: &Step) {
        let now_ms = step.now_us / 1_000;
        let (provisional, held) = (watch.provisional.len(), watch.held.len());
        watch
            .provisional
            .retain(|&(_, _, until_ms)| until_ms > now_ms);
        watch.held.retain(|&(_, until_ms)| until_ms > now_ms);
        for _ in watch.provisional.len()..provisional {
            self.increment("fall-back");
        }
        for _ in watch.held.len()..held {
            self.increment("expiry");
        }
    }

    /// Counts waiters that were passed over, and waiters that were dropped because their broker was
    /// silent.
    fn count_passed_waiters(
        &mut self,
        step: &Step,
        answer: &StoreReply,
        [before, after]: [&LockState; 2],
    ) {
        let ids = |state: &LockState| -> Vec<String> {
            state
                .waiters
                .iter()
                .map(|waiting| waiting.owner.id.clone())
                .collect()
        };
        let (before_ids, after_ids) = (ids(before), ids(after));
        let held = match answer {
            StoreReply::Touch(Ok(outcome)) => outcome.reply.held.first(),
            StoreReply::Touch(_)
            | StoreReply::Acquire(_)
            | StoreReply::Vote(_)
            | StoreReply::Renew(_)
            | StoreReply::Get(_) => None,
            StoreReply::Release(_) | StoreReply::Cancel(_) | StoreReply::SetLimit(_) => None,
            StoreReply::SetClosure(_)
            | StoreReply::Attach(_)
            | StoreReply::Revoke(_)
            | StoreReply::Check(_)
            | StoreReply::Failed(_) => None,
        };
        let hand_off = answer.hand_offs().first().or(held);
        let Some(granted) = hand_off.map(|hand_off| hand_off.request.to_string()) else {
            return;
        };
        let Some(place) = before_ids.iter().position(|id| *id == granted) else {
            return;
        };
        let acting = match &step.verb {
            StoreCommand::Acquire(acquire) | StoreCommand::Vote(acquire, _) => {
                acquire.request.to_string()
            }
            StoreCommand::Cancel(request, _) => request.to_string(),
            StoreCommand::Release(..)
            | StoreCommand::Renew(..)
            | StoreCommand::RenewForClient(..)
            | StoreCommand::Touch(_) => String::new(),
            StoreCommand::Attach(..) | StoreCommand::Revoke(_) => String::new(),
            StoreCommand::Close(_) | StoreCommand::Open => String::new(),
            StoreCommand::SetLimit(_) | StoreCommand::Get | StoreCommand::Check(_) => String::new(),
        };
        for passed in before_ids[..place].iter().filter(|id| **id != acting) {
            self.increment(if after_ids.contains(passed) {
                "passed over"
            } else {
                "dropped"
            });
        }
    }

    fn count_voted(&mut self, step: &Step, reply: &VoteReply, [before, _]: [&LockState; 2]) {
        let StoreCommand::Vote(acquire, _) = &step.verb else {
            return;
        };
        let mut holders = before.holders.iter();
        let held = holders.find(|held| held.lease_id == acquire.lease_id);
        self.increment(match reply {
            VoteReply::Behind { .. } => "vote: behind",
            VoteReply::Ahead => "vote: ahead",
            VoteReply::Acquired(Acquired::Granted(grant)) => match held {
                Some(_) if grant.hold_count > 1 => "vote: entered",
                Some(held) if held.fencing_token < grant.fencing_token => "vote: raised",
                Some(_) => "vote: repeat",
                None => "vote: granted",
            },
            VoteReply::Acquired(Acquired::Held(_)) => "vote: held",
            VoteReply::Acquired(_) => "vote: rejected",
        });
    }

    fn count_acquired(
        &mut self,
        watch: &mut SequenceState,
        step: &Step,
        reply: &Acquired,
        before: &LockState,
    ) {
        let StoreCommand::Acquire(acquire) = &step.verb else {
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
        self.increment(match reply {
            Acquired::Granted(grant) if grant.hold_count > 1 => "acquire: entered",
            Acquired::Granted(grant) if is_cut(acquire, grant) => {
                "acquire: cut to the limit of spans"
            }
            Acquired::Granted(_) if held => "acquire: held already",
            Acquired::Granted(grant) if watch.is_provisional(grant.fencing_token) => {
                "acquire: claimed"
            }
            Acquired::Granted(_) if waits => "acquire: waited and granted",
            Acquired::Granted(_) if beside => "acquire: granted beside holders",
            Acquired::Granted(_) => "acquire: granted at once",
            Acquired::Queued { .. } if waits => "acquire: queued already",
            Acquired::Queued { .. } => "acquire: queued",
            Acquired::Held(held) => {
                match held.closure.as_ref().map(|active| active.closure.cause) {
                    Some(ClosureCause::LockDelay) => "acquire: closed by a lock_delay",
                    Some(ClosureCause::AtLeast) => "acquire: closed by an at_least",
                    Some(ClosureCause::Operator) => "acquire: closed by an operator",
                    None => "acquire: held by another",
                }
            }
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

    fn count_renewed(&mut self, watch: &mut SequenceState, step: &Step, reply: &LeaseReply<Grant>) {
        let (StoreCommand::Renew(lease, ..) | StoreCommand::RenewForClient(lease, ..)) = &step.verb
        else {
            return;
        };
        let claims = watch.is_provisional(lease.fencing_token);
        match reply {
            Ok(_) if claims => self.increment("renew: claimed"),
            Ok(_) => self.increment("renew: extended"),
            Err(rejection) => self.count_lease_rejection("renew", rejection),
        }
        if reply.is_ok() {
            watch.claim(lease.fencing_token);
        }
    }

    fn count_hand_off(&mut self, watch: &mut SequenceState, step: &Step, hand_off: &HandOff) {
        self.increment(if hand_off.is_provisional {
            "remote hand-off"
        } else {
            "local hand-off"
        });
        let call = watch
            .calls
            .iter()
            .find(|call| call.request == hand_off.request);
        let ttl_ms = call.map_or(0, |call| call.options.effective_ttl(call.ttl).as_millis());
        if hand_off.is_provisional {
            let until_ms = step.now_us / 1_000 + expiry_ms(ttl_ms).min(PROVISIONAL_GRANT_MS);
            let request = hand_off.request.to_string();
            watch
                .provisional
                .push((request, hand_off.fencing_token, until_ms));
        }
    }

    fn count_if(&mut self, occurred: bool, outcome: &str) {
        if occurred {
            self.increment(outcome);
        }
    }

    fn increment(&mut self, outcome: &str) {
        match self.0.get_mut(outcome) {
            Some(count) => *count += 1,
            None => {
                self.0.insert(outcome.to_owned(), 1);
            }
        }
    }
}

impl SequenceState {
    /// G2: in an era without grants, nothing is granted, and no lease is restored that may have
    /// ended before its data was lost.
    fn assert_no_grants(&self, step: &Step, answer: &StoreReply) {
        let is_granted = match (answer, &step.verb) {
            (StoreReply::Acquire(Ok(done)), _) => matches!(done.reply, Acquired::Granted(_)),
            (
                StoreReply::Renew(Ok(done)),
                StoreCommand::Renew(lease, ..) | StoreCommand::RenewForClient(lease, ..),
            ) => done.reply.is_ok() && self.is_provisional(lease.fencing_token),
            (StoreReply::Attach(Ok(done)), _) => {
                matches!(
                    &done.reply,
                    Ok(grant) if grant.disconnect_grace_ms.is_some()
                )
            }
            (StoreReply::Check(Ok(done)), _) => matches!(done.reply, Checked::Live { .. }),
            _ => false,
        };
        let is_granted = is_granted || !answer.hand_offs().is_empty();
        assert!(
            !(is_granted && step.forbids_grants()),
            "{step:?} {answer:?}"
        );
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

    fn update(&mut self, step: &Step, after: &LockState) {
        let now_ms = step.now_us / 1_000;
        // An inspection omits an expired holder even before a command has ended it.
        self.held.retain(|&(_, until_ms)| until_ms <= now_ms);
        let holders = after.holders.iter();
        self.held
            .extend(holders.map(|holder| (holder.lease_id, now_ms + holder.remaining_ms)));
        let waits = |request: &String| after.waiters.iter().any(|w| w.owner.id == *request);
        self.provisional.retain(|(request, _, _)| waits(request));
    }
}

/// Returns true if the limit of spans has cut the validity of a new grant.
fn is_cut(acquire: &AcquireCommand, grant: &Grant) -> bool {
    grant.ttl < acquire.options.effective_ttl(acquire.ttl) && acquire.options.max_hold_ms.is_none()
}

/// Returns true if a holder holds the lock in a weaker mode than before.
fn is_weaker([before, after]: [&LockState; 2]) -> bool {
    before.holders.iter().any(|held| {
        let mut kept = after.holders.iter();
        kept.any(|kept| kept.lease_id == held.lease_id && kept.mode != held.mode)
    })
}

impl fmt::Display for OutcomeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (outcome, count) in &self.0 {
            writeln!(f, "{count:>10}  {outcome}")?;
        }
        Ok(())
    }
}
