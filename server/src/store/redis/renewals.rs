//! Renewal of several locks with one run of the script.

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::{
    CALL_TIMEOUT, RedisStore,
    node::{ExecMode, ScriptError},
    reply,
    routing::{Route, RouteState},
    scripts::{Command, ScriptCall, Verb, calls},
};
use crate::{
    lock::{Grant, LeaseRef},
    store::{LeaseReply, Renewal, Store as _, StoreError},
};

/// Maximum number of locks that one run renews. Redis serves no other client during the run, which
/// takes about as long as a few acquires and releases.
pub(super) const RENEWALS_PER_RUN: usize = 64;

type Renewed = Result<LeaseReply<Grant>, StoreError>;

impl RedisStore {
    /// Renews at most [`RENEWALS_PER_RUN`] locks. In a cluster each lock is renewed by its own
    /// command, because its slot can move separately.
    pub(super) async fn renew_chunk(&self, leases: &[LeaseRef], renewal: Renewal) -> Vec<Renewed> {
        let first = match leases {
            [first, _, ..] if !self.topology.is_cluster() => first,
            _ => return self.renew_each(leases, renewal).await,
        };
        let calls = leases
            .iter()
            .map(|lease| calls::renew(lease, renewal.ttl, renewal.expected_attachment));
        let calls: Vec<_> = calls.collect();
        match self.renew_in_one_run(&calls).await {
            Ok(renewed) => renewed,
            Err(ScriptError::Reloaded) => self.renew_each(leases, renewal).await,
            Err(error) => {
                let recovery = || self.topology.recovery_of(&first.lock);
                let error = StoreError::from(error).with_recovery(recovery);
                leases.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    async fn renew_each(&self, leases: &[LeaseRef], renewal: Renewal) -> Vec<Renewed> {
        join_all(leases.iter().map(|lease| self.renew(lease, renewal))).await
    }

    async fn renew_in_one_run(
        &self,
        calls: &[ScriptCall<LeaseReply<Grant>>],
    ) -> Result<Vec<Renewed>, ScriptError> {
        let Some(first) = calls.first() else {
            return Ok(Vec::new());
        };
        // The locks of a store that is no cluster have the same route.
        let mut route_state = RouteState::new(first.lock(), Verb::Renew, CALL_TIMEOUT);
        let route = self.topology.next_route(&mut route_state).await;
        let route = route.map_err(ScriptError::Failed)?;
        let preamble = self.preamble(&route);
        let Some(command) = Command::merge(calls.iter().map(|call| call.command(&preamble))) else {
            return Ok(Vec::new());
        };
        let script = self.scripts.get(Verb::Renew);
        let sent = Instant::now();
        let run = route.node.run(script, ExecMode::Plain, command);
        let value = timeout_at(route_state.deadline, run).await;
        let value = value.map_err(|_| ScriptError::Failed(super::timeout_error()))??;
        let mut renewed = Vec::with_capacity(calls.len());
        for (call, value) in calls.iter().zip(reply::split_batch(Ok(value), calls.len())) {
            let key = preamble.key(call.lock());
            let reply = match value {
                Ok(value) => route.node.decode_reply(call, value, &preamble),
                Err(error) => Err(route.node.script_error(script, &error, Some(key)).into()),
            };
            let reply = match reply {
                Ok(reply) => self.deliver(&route, call.lock(), sent, reply).await,
                Err(error) => Err(error),
            };
            let recovery = || self.topology.recovery_of(call.lock());
            renewed.push(reply.map_err(|error| error.with_recovery(recovery)));
        }
        self.confirm(&route, calls, renewed).await
    }

    /// Records the grants of renewals. The renewals count only once enough replicas have them.
    async fn confirm(
        &self,
        route: &Route,
        calls: &[ScriptCall<LeaseReply<Grant>>],
        renewed: Vec<Renewed>,
    ) -> Result<Vec<Renewed>, ScriptError> {
        let mut has_grants = false;
        for (call, renewed) in calls.iter().zip(&renewed) {
            if let Ok(Ok(grant)) = renewed {
                self.record_grant(call.lock(), grant);
                has_grants = true;
            }
        }
        if !has_grants {
            return Ok(renewed);
        }
        match route.node.replicated().await {
            Ok(()) => Ok(renewed),
            Err(error) => {
                let unconfirmed = |renewed: Renewed| match renewed {
                    Ok(Ok(_)) => Err(error.clone()),
                    other => other,
                };
                Ok(renewed.into_iter().map(unconfirmed).collect())
            }
        }
    }
}
