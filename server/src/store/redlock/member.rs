//! One of the nodes: runs a verb's script on it, if it is there.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{WITHIN, endings::Endings};
use crate::{
    lock::{BrokerId, Filter},
    store::{
        Outcome, Refused, StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            decode::Decode,
            era::Era,
            list::Looks,
            node::Node,
            place::Place,
            refusal::Refusal,
            scripts::{Command, Preamble, Scripts, Verb},
            supervisor::{Subscription, Supervisor},
        },
    },
};

/// What a verb does at each node.
pub(super) struct Question<T> {
    verb: Verb,
    command: Arc<dyn Fn(&Preamble<'_>) -> Command + Send + Sync>,
    decode: Decode<T>,
}

/// What a node said.
pub(super) struct Said<T> {
    /// The process that it was; `None`: there was none.
    pub(super) run_id: Option<String>,
    /// It knows of all that it has answered: it has not come back a short while ago.
    pub(super) is_sure: bool,
    pub(super) answer: Result<Outcome<T>, StoreError>,
}

/// One node, whichever process it is at the moment.
pub(super) struct Member {
    address: String,
    key_prefix: String,
    broker: BrokerId,
    scripts: Scripts,
    endings: Arc<Endings>,
    supervisor: Supervisor,
}

impl<T> Question<T> {
    pub(super) fn new(
        verb: Verb,
        decode: Decode<T>,
        command: impl Fn(&Preamble<'_>) -> Command + Send + Sync + 'static,
    ) -> Self {
        Self {
            verb,
            command: Arc::new(command),
            decode,
        }
    }
}

impl<T> Clone for Question<T> {
    fn clone(&self) -> Self {
        Self {
            verb: self.verb,
            command: Arc::clone(&self.command),
            decode: self.decode,
        }
    }
}

impl Member {
    /// Connects, or goes on trying to if the node is out of reach.
    pub(super) async fn start(
        mut config: RedisConfig,
        (broker, endings): (BrokerId, Arc<Endings>),
        scripts: Scripts,
        subscription: Subscription,
        (tasks, stop): (&TaskTracker, CancellationToken),
    ) -> Result<Self, NodeError> {
        config.wait_for_store = true;
        let Place::Server(address) = &config.place else {
            let why = "A node of a redlock store is one server, at an address of its own.";
            return Err(NodeError::Unfit(vec![why.to_owned()]));
        };
        let (address, key_prefix) = (address.to_string(), config.key_prefix.clone());
        let all = scripts.all();
        let supervisor = Supervisor::start(config, all, subscription, tasks, stop).await?;
        Ok(Self {
            address,
            key_prefix,
            broker,
            scripts,
            endings,
            supervisor,
        })
    }

    /// How it is called in messages.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The verified process, if there is one now.
    pub(super) async fn present(&self) -> Option<Arc<Node>> {
        self.supervisor.node(Duration::ZERO).await.ok()
    }

    /// The verified process, now or by then.
    pub(super) async fn node(&self, until: Instant) -> Result<Arc<Node>, StoreError> {
        let within = until.saturating_duration_since(Instant::now());
        self.supervisor.node(within).await
    }

    /// How it is looked at for a list.
    pub(super) fn looks<'a>(&'a self, filter: &'a Filter) -> Looks<'a> {
        Looks {
            key_prefix: &self.key_prefix,
            broker: self.broker,
            scripts: &self.scripts,
            filter,
        }
    }

    /// Asks it once.
    pub(super) async fn ask<T>(&self, question: &Question<T>) -> Said<T> {
        let end = Instant::now() + WITHIN;
        let node = match self.node(end).await {
            Ok(node) => node,
            Err(error) => {
                return Said {
                    run_id: None,
                    is_sure: false,
                    answer: Err(error),
                };
            }
        };
        let late = |_| StoreError::Unavailable(format!("{} does not answer", self.address));
        let answer = timeout_at(end, self.run(&node, question)).await;
        let now_ms = node.now_us() / 1_000;
        let is_open = |era: &Era| now_ms >= era.no_grants_before_ms;
        Said {
            run_id: Some(node.run_id().to_owned()),
            is_sure: node.era().is_some_and(is_open),
            answer: answer.map_err(late).and_then(|answer| answer),
        }
    }

    async fn run<T>(&self, node: &Node, question: &Question<T>) -> Result<Outcome<T>, StoreError> {
        let command = || {
            (question.command)(&Preamble {
                key_prefix: &self.key_prefix,
                broker: self.broker,
                not_after_ms: node.not_after_ms(),
                era_id: node.era_id(),
                era_tag: None,
                is_sharded: false,
                is_watched: false,
            })
        };
        let value = node.eval(self.scripts.get(question.verb), &command).await?;
        let answer = (question.decode)(value, self.broker).inspect_err(|error| {
            node.complain(Refusal::ODD_REPLY, &error.to_string(), &command);
        })?;
        node.saw_time(answer.now_ms);
        if !answer.ended.is_empty()
            && let Some(key) = command().keys.first()
        {
            self.endings.told(key, answer.ended);
        }
        answer.outcome.map_err(|refused| {
            if refused == Refused::NoEra {
                node.condemn(&refused.to_string());
            }
            refused.into()
        })
    }
}
