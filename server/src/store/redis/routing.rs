//! Selection of the node for a call: the node of the store, or the node of a cluster that has the
//! lock.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    cluster::{Router, SlotRoute, redirect::Redirect},
    error_table::ErrorClass,
    node::{ExecMode, Node, ScriptError},
    reply::ScriptReply,
    scripts::{EraUse, Verb},
    supervisor::Supervisor,
};
use crate::{
    lock::{ActiveRecovery, FencingToken, LockKey},
    store::{RecoveryState, Rejected, StoreError},
};

/// Time after which a call is retried whose slot has no era, because the slot is moving or its era
/// has not been read yet.
const UNSETTLED_RETRY_MS: u64 = 1_000;

pub(super) enum Topology {
    Single(Supervisor),
    Cluster(Arc<Router>),
}

/// Routing state of a call.
pub(super) struct RouteState<'a> {
    lock: &'a LockKey,
    era_use: EraUse,
    pub(super) deadline: Instant,
    /// The part for a cluster, from the first route on.
    slot_route: Option<SlotRoute>,
    /// True once the scripts were loaded again for the call, since its last redirect.
    has_reloaded: bool,
}

/// A node, and the way in which a command is run on it.
pub(super) struct Route {
    pub(super) node: Arc<Node>,
    /// In a cluster: the era of the lock's slot, which is empty if nothing may be granted, and its
    /// hash tag.
    pub(super) slot_era: Option<(Box<str>, &'static str)>,
    pub(super) mode: ExecMode,
}

impl<'a> RouteState<'a> {
    /// Creates the state of a call that may take `within`.
    pub(super) fn new(lock: &'a LockKey, verb: Verb, within: Duration) -> Self {
        Self {
            lock,
            era_use: verb.era_use(),
            deadline: Instant::now() + within,
            slot_route: None,
            has_reloaded: false,
        }
    }
}

impl Topology {
    /// Returns the next node to use.
    pub(super) async fn next_route(&self, state: &mut RouteState<'_>) -> Result<Route, StoreError> {
        match self {
            Self::Cluster(router) => {
                let start = || SlotRoute::new(state.lock, state.era_use);
                let slot_route = state.slot_route.get_or_insert_with(start);
                router.next_route(slot_route, state.deadline).await
            }
            Self::Single(supervisor) => {
                let remaining = state.deadline.saturating_duration_since(Instant::now());
                let node = supervisor.node(remaining).await?;
                if let (EraUse::Confirm, Some(pause)) = (state.era_use, node.pause()) {
                    return Err(pause.rejection());
                }
                Ok(Route {
                    node,
                    slot_era: None,
                    mode: ExecMode::Batched,
                })
            }
        }
    }

    /// Returns the reply of a node. Returns `None` if the command must be sent to another node, or
    /// again because the scripts were loaded again or without an era.
    pub(super) async fn follow_reply<T>(
        &self,
        state: &mut RouteState<'_>,
        route: &Route,
        reply: Result<ScriptReply<T>, ScriptError>,
    ) -> Result<Option<ScriptReply<T>>, StoreError> {
        if let (Err(ScriptError::Reloaded), false) = (&reply, state.has_reloaded) {
            state.has_reloaded = true;
            return Ok(None);
        }
        match (reply, &mut state.slot_route, self) {
            (Err(ScriptError::Redirected(redirect)), Some(slot_route), Self::Cluster(router)) => {
                if redirect.asking {
                    route.node.mark_moving(redirect.slot).await?;
                }
                router.follow_redirect(slot_route, redirect).await?;
                state.has_reloaded = false;
                Ok(None)
            }
            (Ok(reply), Some(slot_route), _) if route.may_grant() && reply.has_no_era() => {
                slot_route.without_era(&route.node);
                Ok(None)
            }
            (Ok(reply), _, _) => Ok(Some(reply)),
            (Err(missed), _, _) => {
                if let ScriptError::Reloaded = missed {
                    let class = ErrorClass::SCRIPTS_LOST;
                    route.node.log_error(class, "NOSCRIPT", "");
                }
                Err(missed.into())
            }
        }
    }

    /// Returns the recovery of the single node. Unknown in a cluster, where each slot recovers
    /// separately.
    pub(super) fn recovery(&self) -> RecoveryState {
        let node = match self {
            Self::Single(supervisor) => supervisor.current_node(),
            Self::Cluster(_) => None,
        };
        node.map_or(RecoveryState::Unknown, |node| {
            RecoveryState::of_server(|| node.name(), node.recovery())
        })
    }

    /// Returns the recovery of the node that has the lock, or of the lock's slot there.
    pub(super) fn recovery_of(&self, lock: &LockKey) -> Option<ActiveRecovery> {
        match self {
            Self::Single(supervisor) => supervisor.current_node()?.recovery(),
            Self::Cluster(router) => router.recovery_of(lock),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Records the span of a call or of a lease, for the limit of spans of a single node.
    pub(super) fn record_span(&self, span_ms: u64) {
        if let Self::Single(supervisor) = self {
            supervisor.record_span(span_ms);
        }
    }

    /// Records the token of a grant, for the floor of tokens of the next era.
    pub(super) fn record_token(&self, lock: &LockKey, token: FencingToken) {
        match self {
            Self::Single(supervisor) => supervisor.record_token(token),
            Self::Cluster(router) => router.record_token(lock, token),
        }
    }

    /// Returns any node that serves.
    pub(super) async fn any_node(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        match self {
            Self::Single(supervisor) => supervisor.node(within).await,
            Self::Cluster(router) => router.any_node(within).await,
        }
    }
}

impl Route {
    /// Returns the id of the era in which the node may grant locks.
    pub(super) fn era_id(&self) -> &str {
        match &self.slot_era {
            Some((id, _)) => id,
            None => self.node.era_id(),
        }
    }

    pub(super) fn era_tag(&self) -> Option<&'static str> {
        self.slot_era.as_ref().map(|(_, tag)| *tag)
    }

    /// Converts the rejection of a script to an error, and closes a node without an era.
    pub(super) fn rejection(&self, rejected: Rejected) -> StoreError {
        match (&self.slot_era, &rejected) {
            (None, Rejected::NoEra) => self.node.fail(&rejected.to_string()),
            (Some(_), Rejected::NoEra) => {
                return StoreError::Recovering {
                    retry_after_ms: UNSETTLED_RETRY_MS,
                    recovery: None,
                };
            }
            (
                _,
                Rejected::DeadlinePassed | Rejected::Recovering { .. } | Rejected::SpanLimit { .. },
            ) => {}
        }
        rejected.into()
    }

    fn may_grant(&self) -> bool {
        !self.era_id().is_empty()
    }
}

impl<T> ScriptReply<T> {
    fn has_no_era(&self) -> bool {
        matches!(self.outcome, Err(Rejected::NoEra))
    }
}

impl From<StoreError> for ScriptError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<ScriptError> for StoreError {
    fn from(missed: ScriptError) -> Self {
        match missed {
            ScriptError::Failed(error) => error,
            ScriptError::Reloaded => {
                Self::NotExecuted("the server has lost the scripts".to_owned())
            }
            ScriptError::Redirected(Redirect { slot, .. }) => {
                Self::NotExecuted(format!("another master has slot {slot}"))
            }
        }
    }
}
