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
    member::{Member, Question, Said},
    tally::{Gather, Tally, Together, no_quorum, quorum},
};
use crate::{
    lock::FencingToken,
    store::{Outcome, StoreError},
    trace::Traced,
};

/// Answers as they come.
pub(super) struct Answers<T> {
    coming: mpsc::UnboundedReceiver<(usize, Said<T>)>,
    heard: HashSet<String>,
}

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

    /// All of them, in their order.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
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
        let (sender, coming) = mpsc::unbounded_channel();
        for index in nodes {
            let (sender, question) = (sender.clone(), question.clone());
            let members = Arc::clone(&self.members);
            let asked = async move {
                let said = members[index].ask(&question).await;
                // Nobody may need it any more.
                let _ = sender.send((index, said));
            };
            self.tasks.spawn(Traced::current().run(asked));
        }
        Answers::new(coming)
    }

    /// Takes in answers until they decide, or until then.
    pub(super) async fn gather<T>(
        &self,
        answers: &mut Answers<T>,
        into: &mut impl Gather<T>,
        until: Instant,
    ) {
        while !into.is_decided() {
            match timeout_at(until, answers.next()).await {
                Ok(Some((node, said))) => into.add(node, said.is_sure, said.answer),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Asks every node whether a lease lives, and says what they say together. `ends`: whether who
    /// refuses knows that it is over.
    pub(super) async fn settle_life<T: Send + 'static, Y, N>(
        &self,
        question: &Question<T>,
        read: fn(Outcome<T>) -> Result<Y, N>,
        ends: fn(&N) -> bool,
    ) -> Result<Together<Y, N>, StoreError> {
        let tally = Tally::new(self.count(), read).of_life(ends);
        self.tally(question, tally).await
    }

    /// Asks every node, and says what they say together.
    pub(super) async fn settle<T: Send + 'static, Y, N>(
        &self,
        question: &Question<T>,
        read: fn(Outcome<T>) -> Result<Y, N>,
    ) -> Result<Together<Y, N>, StoreError> {
        self.tally(question, Tally::new(self.count(), read)).await
    }

    async fn tally<T: Send + 'static, Y, N>(
        &self,
        question: &Question<T>,
        mut tally: Tally<T, Y, N>,
    ) -> Result<Together<Y, N>, StoreError> {
        self.hear(question, &mut tally).await;
        tally.together()
    }

    /// Asks every node, and takes in what they say until it decides.
    pub(super) async fn hear<T: Send + 'static>(
        &self,
        question: &Question<T>,
        into: &mut impl Gather<T>,
    ) {
        let end = Instant::now() + WITHIN;
        self.gather(&mut self.ask(question), into, end).await;
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

impl<T> Answers<T> {
    fn new(coming: mpsc::UnboundedReceiver<(usize, Said<T>)>) -> Self {
        Self {
            coming,
            heard: HashSet::new(),
        }
    }

    /// The next one, with the number of its node. A process that is heard by two addresses has one
    /// vote.
    pub(super) async fn next(&mut self) -> Option<(usize, Said<T>)> {
        let (node, mut said) = self.coming.recv().await?;
        if let Some(run_id) = &said.run_id
            && !self.heard.insert(run_id.clone())
        {
            let why = "it is another node of this store, too".to_owned();
            said.answer = Err(StoreError::Unavailable(why));
        }
        Some((node, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_process_at_two_addresses_has_one_vote() {
        let (sender, coming) = mpsc::unbounded_channel();
        for (node, run_id) in ["one", "two", "one"].into_iter().enumerate() {
            let said = Said {
                run_id: Some(run_id.to_owned()),
                is_sure: true,
                answer: Ok(Outcome::silent('y')),
            };
            assert!(sender.send((node, said)).is_ok());
        }
        drop(sender);
        let mut answers = Answers::new(coming);
        let mut votes = 0;
        while let Some((_, said)) = answers.next().await {
            votes += usize::from(said.answer.is_ok());
        }
        assert_eq!(votes, 2);
    }
}
