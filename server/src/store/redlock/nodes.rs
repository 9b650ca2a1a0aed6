//! All nodes: asks them at the same time, and waits for no more answers than decide.

use std::{collections::HashSet, sync::Arc};

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;

use super::{
    WITHIN,
    member::{Member, Question},
    tally::{Gather, Tally, Together, no_quorum, quorum},
};
use crate::{
    lock::FencingToken,
    store::{Outcome, StoreError},
};

/// Answers as they come, each with the number of its node.
pub(super) type Answers<T> = mpsc::UnboundedReceiver<(usize, Result<Outcome<T>, StoreError>)>;

/// The nodes of a store.
#[derive(Clone)]
pub(super) struct Nodes {
    members: Arc<[Member]>,
    tasks: TaskTracker,
    pub(super) apart_max_ms: u64,
}

impl Nodes {
    pub(super) fn new(members: Vec<Member>, tasks: TaskTracker, apart_max_ms: u64) -> Self {
        Self {
            members: members.into(),
            tasks,
            apart_max_ms,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Waits until a quorum of nodes is there.
    pub(super) async fn ready(&self, until: Instant) -> Result<(), StoreError> {
        let all = self.members.iter().map(|member| member.node(until));
        let mut coming: FuturesUnordered<_> = all.collect();
        let (mut present, mut silent) = (0, Vec::new());
        while let Some(node) = coming.next().await {
            match node {
                Ok(_) => present += 1,
                Err(error) => silent.push(error),
            }
            if present == quorum(self.count()) {
                return Ok(());
            }
        }
        Err(no_quorum(self.count(), 0, silent.into_iter()))
    }

    /// The addresses of nodes that are not there, and of those that are one process with another.
    pub(super) async fn missing(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut missing, mut twice, mut run_ids) = (Vec::new(), Vec::new(), HashSet::new());
        for member in &*self.members {
            match member.present().await {
                Some(node) if run_ids.insert(node.run_id().to_owned()) => {}
                Some(_) => twice.push(member.address()),
                None => missing.push(member.address()),
            }
        }
        (missing, twice)
    }

    /// Asks every node. Each is asked to the end, whoever waits for its answer.
    pub(super) fn ask<T: Send + 'static>(&self, question: &Question<T>) -> Answers<T> {
        self.ask_some(0..self.count(), question)
    }

    /// Asks these nodes.
    pub(super) fn ask_some<T: Send + 'static>(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        question: &Question<T>,
    ) -> Answers<T> {
        let (sender, answers) = mpsc::unbounded_channel();
        for index in nodes {
            let (sender, question) = (sender.clone(), question.clone());
            let members = Arc::clone(&self.members);
            self.tasks.spawn(async move {
                let (earlier, member) = (&members[..index], &members[index]);
                let answer = member.ask(earlier, &question).await;
                // Nobody may need it any more.
                let _ = sender.send((index, answer));
            });
        }
        answers
    }

    /// Takes in answers until they decide, or until then.
    pub(super) async fn gather<T>(
        &self,
        answers: &mut Answers<T>,
        into: &mut impl Gather<T>,
        until: Instant,
    ) {
        while !into.is_decided() {
            match timeout_at(until, answers.recv()).await {
                Ok(Some((node, answer))) => into.add(node, answer),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Asks every node, and says what they say together.
    pub(super) async fn settle<T: Send + 'static, Y, N>(
        &self,
        question: &Question<T>,
        read: fn(Outcome<T>) -> Result<Y, N>,
    ) -> Result<Together<Y, N>, StoreError> {
        let mut tally = Tally::new(self.count(), read);
        let end = Instant::now() + WITHIN;
        self.gather(&mut self.ask(question), &mut tally, end).await;
        tally.together()
    }

    /// The token for a grant now, near the clocks of a quorum; `None` if no node is there.
    pub(super) async fn token(&self) -> Option<FencingToken> {
        let mut clocks = Vec::new();
        for member in &*self.members {
            clocks.extend(member.present().await.map(|node| node.now_us()));
        }
        clocks.sort_unstable();
        FencingToken::new(*clocks.get(clocks.len() / 2)?)
    }
}
