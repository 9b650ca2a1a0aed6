//! One of the nodes: runs a verb's script on it, if it is there.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::WITHIN;
use crate::{
    lock::BrokerId,
    store::{
        Outcome, Refused, StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            decode::Decode,
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

/// One node, whichever process it is at the moment.
pub(super) struct Member {
    address: String,
    key_prefix: String,
    broker: BrokerId,
    scripts: Scripts,
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
        broker: BrokerId,
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

    /// Asks it once, unless one of the others is the same process: it has one vote.
    pub(super) async fn ask<T>(
        &self,
        others: &[Member],
        question: &Question<T>,
    ) -> Result<Outcome<T>, StoreError> {
        let end = Instant::now() + WITHIN;
        let one = async {
            let node = self.node(end).await?;
            if is_among(&node, others).await {
                let why = format!("{} is another node of this store, too", self.address);
                return Err(StoreError::Unavailable(why));
            }
            self.run(&node, question).await
        };
        let late = |_| StoreError::Unavailable(format!("{} does not answer", self.address));
        timeout_at(end, one).await.map_err(late)?
    }

    async fn run<T>(&self, node: &Node, question: &Question<T>) -> Result<Outcome<T>, StoreError> {
        let command = || {
            (question.command)(&Preamble {
                key_prefix: &self.key_prefix,
                broker: self.broker,
                not_after_ms: node.not_after_ms(),
                era_id: node.era_id(),
            })
        };
        let value = node.eval(self.scripts.get(question.verb), &command).await?;
        let answer = (question.decode)(value, self.broker).inspect_err(|error| {
            node.complain(Refusal::ODD_REPLY, &error.to_string(), &command);
        })?;
        node.saw_time(answer.now_ms);
        answer.outcome.map_err(|refused| {
            if refused == Refused::NoEra {
                node.condemn(&refused.to_string());
            }
            refused.into()
        })
    }
}

async fn is_among(node: &Node, members: &[Member]) -> bool {
    for member in members {
        let other = member.present().await;
        if other.is_some_and(|other| other.run_id() == node.run_id()) {
            return true;
        }
    }
    false
}
