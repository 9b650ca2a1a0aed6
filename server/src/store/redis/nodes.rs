//! Which node a call is sent to: the one of a store, or the one of a cluster that has the lock.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    answers::Answer,
    cluster::{Asked, Router, redirect::Redirect},
    node::{Missed, Node, Way},
    scripts::{EraUse, Verb},
    supervisor::Supervisor,
};
use crate::{
    lock::{DeploymentKey, LockKey},
    store::{Refused, StoreError},
};

/// When to ask again for a lock whose slot has no era: it is on its way to another master, or was
/// not looked at yet.
const UNSETTLED_RETRY_MS: u64 = 1_000;

/// The nodes of a store.
pub(super) enum Nodes {
    One(Supervisor),
    Cluster(Arc<Router>),
}

/// What becomes of a call on its way to its lock.
pub(super) struct Course {
    until: Instant,
    era_use: EraUse,
    asked: Option<Asked>,
}

/// A node, and how it is asked.
pub(super) struct Target {
    pub(super) node: Arc<Node>,
    /// In a cluster: the era of the lock's slot, empty where nothing may be granted, and its tag.
    pub(super) slot_era: Option<(Box<str>, &'static str)>,
    pub(super) way: Way,
}

impl Nodes {
    /// The course of a call, which may take so long.
    pub(super) fn course(&self, lock: &LockKey, verb: Verb, within: Duration) -> Course {
        Course {
            until: Instant::now() + within,
            era_use: verb.era_use(),
            asked: match self {
                Self::One(_) => None,
                Self::Cluster(_) => Some(Asked::new(lock, verb.era_use())),
            },
        }
    }

    /// The node to ask next.
    pub(super) async fn target(&self, course: &mut Course) -> Result<Target, StoreError> {
        match (self, &mut course.asked) {
            (Self::Cluster(router), Some(asked)) => router.target(asked, course.until).await,
            (Self::One(supervisor), _) => {
                let left = course.until.saturating_duration_since(Instant::now());
                let node = supervisor.node(left).await?;
                if let (EraUse::Confirms, Some(pause)) = (course.era_use, node.pause()) {
                    return Err(pause.refusal());
                }
                Ok(Target {
                    node,
                    slot_era: None,
                    way: Way::Along,
                })
            }
            (Self::Cluster(_), None) => Err(StoreError::NotNow("no lock is named".to_owned())),
        }
    }

    /// The answer of a node in time; `None` if another one must be asked, or the same without era.
    pub(super) async fn answered<T>(
        &self,
        course: &mut Course,
        target: &Target,
        answer: impl Future<Output = Result<Answer<T>, Missed>> + Send,
    ) -> Result<Option<Answer<T>>, StoreError> {
        let late = |_| StoreError::Unavailable("no answer in time".to_owned());
        let answer = timeout_at(course.until, answer).await.map_err(late)?;
        match (answer, &mut course.asked, self) {
            (Err(Missed::Elsewhere(redirect)), Some(asked), Self::Cluster(router)) => {
                if redirect.asking {
                    target.node.mark_moving(redirect.slot).await?;
                }
                router.follow_to(asked, redirect).await?;
                Ok(None)
            }
            (Ok(answer), Some(asked), _) if target.grants() && answer.has_no_era() => {
                asked.without_era(&target.node);
                Ok(None)
            }
            (Ok(answer), _, _) => Ok(Some(answer)),
            (Err(missed), _, _) => Err(missed.into()),
        }
    }

    /// Until the one node grants, by its own clock. In a cluster each slot has a time of its own.
    pub(super) fn recovering_ms(&self) -> Option<u64> {
        let Self::One(supervisor) = self else {
            return None;
        };
        let node = supervisor.present()?;
        let until_ms = node.era()?.no_grants_before_ms;
        Some(until_ms.saturating_sub(node.now_us() / 1_000))
    }

    /// The key of the deployment, when there is a node that serves.
    pub(super) async fn deployment_key(
        &self,
        within: Duration,
    ) -> Result<DeploymentKey, StoreError> {
        Ok(self.any(within).await?.deployment_key())
    }

    /// Any node that serves.
    pub(super) async fn any(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        match self {
            Self::One(supervisor) => supervisor.node(within).await,
            Self::Cluster(router) => router.any_node(within).await,
        }
    }
}

impl Target {
    /// The era in which it may be asked for grants.
    pub(super) fn era_id(&self) -> &str {
        match &self.slot_era {
            Some((id, _)) => id,
            None => self.node.era_id(),
        }
    }

    pub(super) fn era_tag(&self) -> Option<&'static str> {
        self.slot_era.as_ref().map(|(_, tag)| *tag)
    }

    /// What becomes of a script that was refused.
    pub(super) fn refused(&self, refused: Refused) -> StoreError {
        match (&self.slot_era, &refused) {
            (None, Refused::NoEra) => self.node.condemn(&refused.to_string()),
            (Some(_), Refused::NoEra) => {
                return StoreError::Recovering {
                    retry_after_ms: UNSETTLED_RETRY_MS,
                };
            }
            (_, Refused::Late | Refused::Recovering { .. }) => {}
        }
        refused.into()
    }

    fn grants(&self) -> bool {
        !self.era_id().is_empty()
    }
}

impl<T> Answer<T> {
    fn has_no_era(&self) -> bool {
        matches!(self.outcome, Err(Refused::NoEra))
    }
}

impl From<Missed> for StoreError {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Failed(error) => error,
            Missed::Elsewhere(Redirect { slot, .. }) => {
                Self::NotNow(format!("another master has slot {slot}"))
            }
        }
    }
}
