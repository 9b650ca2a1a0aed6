//! Votes: how a node of a RedLock store answers a proposed grant, and which brokers it notifies
//! that the lock is free.
//!
//! A node has no queue, and calls never wait at it.

use super::{context::Context, queue::Waiter, record::Record};
use crate::{
    lock::{AcquireCommand, BrokerId, FencingToken, RELEASE_SUBSCRIBERS_MAX, RequestHash},
    store::{Acquired, NotifyMode, Outcome, Rejected, Vote, VoteReply},
};

impl Record {
    /// Answers a proposed grant: grants the lock with the proposed token, returns the grant that
    /// the request already has, or rejects the proposal. `acquire` must not wait.
    ///
    /// # Errors
    /// Like an acquire. A node that may have lost data answers no repeat either: its copy of a
    /// lease may be an old one, which must not count as a vote.
    pub fn vote(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
        vote: &Vote,
    ) -> Result<Outcome<VoteReply>, Rejected> {
        if let Some(rejected) = self.reject_cancelled(context, acquire)? {
            return Ok(Outcome::reply_only(VoteReply::Acquired(rejected)));
        }
        context.check_era()?;
        if let Some(outcome) = self.find_existing(context, acquire, Some(vote))? {
            return Ok(Outcome {
                reply: VoteReply::Acquired(outcome.reply),
                hand_offs: outcome.hand_offs,
                moved: outcome.moved,
            });
        }
        context.check_span(acquire.ttl.as_millis(), acquire.options.lock_delay_ms)?;
        let reply = self.vote_on_new_grant(context, acquire, vote);
        Ok(Outcome::reply_only(reply))
    }

    /// Returns the brokers to notify that the lock is free, except the broker of the command, and
    /// forgets them. Empty while the lock is held.
    pub fn take_release_subscribers(&mut self, context: &Context) -> Vec<BrokerId> {
        if self.holders.len() > 0 {
            return Vec::new();
        }
        let mut subscribers = std::mem::take(&mut self.release_subscribers);
        subscribers.retain(|broker| *broker != context.broker);
        subscribers
    }

    /// Returns the brokers to notify when the lock becomes free, the earliest first.
    pub fn release_subscribers(&self) -> &[BrokerId] {
        &self.release_subscribers
    }

    /// Replaces the token of a holder for whose call no quorum has granted one token. A lease that
    /// was entered again has been reported to its holder with its token, which therefore stays.
    pub(super) fn raise_token(&mut self, context: &Context, request: RequestHash, vote: &Vote) {
        if !vote.raises {
            return;
        }
        let Ok(token) = self.accept_token(context, vote) else {
            return;
        };
        let lease_id = self.holders.by_request(request).map(|held| held.lease_id);
        let held = lease_id.and_then(|lease_id| self.holders.by_lease_mut(lease_id));
        if let Some(held) = held.filter(|held| held.entries.len() == 1) {
            held.fencing_token = token;
            self.last_fencing_token = token.get();
        }
    }

    fn vote_on_new_grant(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
        vote: &Vote,
    ) -> VoteReply {
        if let Err(mismatch) = self.check_limit(acquire) {
            return VoteReply::Acquired(mismatch);
        }
        if vote.notify == NotifyMode::Always {
            self.subscribe_release(context.broker);
        }
        let is_held_by_lease = self.holders.by_lease(acquire.lease_id).is_some();
        if is_held_by_lease || !self.fits(context, acquire.mode.weight()) {
            if vote.notify != NotifyMode::Never {
                self.subscribe_release(context.broker);
            }
            return VoteReply::Acquired(Acquired::Held(self.contention(context.now())));
        }
        let token = match self.accept_token(context, vote) {
            Ok(token) => token,
            Err(reply) => return reply,
        };
        let waiter = Waiter::new(context, acquire, context.now());
        self.grant_with_token(context, waiter, None, token);
        VoteReply::Acquired(self.granted(context, acquire))
    }

    /// Returns the proposed token, or the reason for rejecting it. The token must be near the clock
    /// of the node, because the node may have lost a newer token than it has recorded.
    fn accept_token(&self, context: &Context, vote: &Vote) -> Result<FencingToken, VoteReply> {
        let max_skew_us = vote.max_clock_skew_ms * 1_000;
        let next_token = self.last_fencing_token + 1;
        let oldest = next_token.max(context.now_us.saturating_sub(max_skew_us));
        let Some(token) = vote.token.filter(|token| token.get() >= oldest) else {
            // This token stays acceptable for a while. It is not farther ahead than necessary,
            // because the clocks of other nodes may be behind this one.
            let recent = context.now_us.saturating_sub(max_skew_us / 2);
            return Err(VoteReply::Behind {
                min_token: next_token.max(recent),
            });
        };
        match token.get() > context.now_us + max_skew_us {
            true => Err(VoteReply::Ahead),
            false => Ok(token),
        }
    }

    fn subscribe_release(&mut self, broker: BrokerId) {
        let subscribers = &mut self.release_subscribers;
        if subscribers.len() < RELEASE_SUBSCRIBERS_MAX && !subscribers.contains(&broker) {
            subscribers.push(broker);
        }
    }
}
