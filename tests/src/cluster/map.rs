//! Who serves which slots, as a node sees it.

use std::{net::SocketAddr, ops::RangeInclusive};

use super::ClusterDeployment;

/// A node, as another one sees it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which node.
    pub index: usize,
    /// Its id in the cluster.
    pub id: String,
    /// The id of its master, if it is a replica.
    pub master: Option<String>,
    /// Its role and state: `master`, `slave`, `fail?`, ...
    pub flags: Vec<String>,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// What it serves.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Seen {
    /// Whether it serves a slot.
    #[must_use]
    pub fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Whether it has failed, at least for who sees it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.is("fail") || self.is("fail?")
    }

    /// Whether it has a flag.
    #[must_use]
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

impl ClusterDeployment {
    /// What a node sees.
    pub async fn seen_by(&self, index: usize) -> Vec<Seen> {
        let mut raw = self.server(index).connect().await;
        let text = raw.must(&["CLUSTER", "NODES"]).await.text().to_owned();
        text.lines().filter_map(|line| self.seen_in(line)).collect()
    }

    /// The masters that serve slots and have not failed, as a node sees them that runs.
    pub async fn masters(&self) -> Vec<usize> {
        let seen = self.seen().await;
        let serve = seen
            .iter()
            .filter(|node| node.is("master") && !node.has_failed() && !node.slots.is_empty());
        let mut masters: Vec<_> = serve.map(|node| node.index).collect();
        masters.sort_unstable();
        masters
    }

    /// The master of a slot, which may have failed.
    pub async fn master_of(&self, slot: u16) -> usize {
        let seen = self.seen().await;
        let master = seen.iter().find(|node| node.serves(slot));
        master.expect("a slot that is assigned").index
    }

    /// The replicas of a master.
    pub async fn replicas_of(&self, master: usize) -> Vec<usize> {
        let seen = self.seen().await;
        let id = seen.iter().find(|node| node.index == master);
        let id = &id.expect("a node of this cluster").id;
        let follow = seen.iter().filter(|node| node.master.as_ref() == Some(id));
        follow.map(|node| node.index).collect()
    }

    async fn seen(&self) -> Vec<Seen> {
        let first = self.answering().next().expect("a node that runs");
        self.seen_by(first).await
    }

    /// One line of CLUSTER NODES; `None` for a node whose address is not known yet.
    fn seen_in(&self, line: &str) -> Option<Seen> {
        let words: Vec<&str> = line.split(' ').collect();
        let [
            id,
            addr,
            flags,
            master,
            _ping,
            _pong,
            _epoch,
            link,
            slots @ ..,
        ] = words.as_slice()
        else {
            panic!("not a node: {line}")
        };
        let addr: SocketAddr = addr.split('@').next().and_then(|addr| addr.parse().ok())?;
        let mut members = self.members.iter();
        let index = members.position(|member| member.addr().port() == addr.port())?;
        Some(Seen {
            index,
            id: (*id).to_owned(),
            master: (*master != "-").then(|| (*master).to_owned()),
            flags: flags.split(',').map(str::to_owned).collect(),
            connected: *link == "connected",
            slots: slots.iter().filter_map(|range| slots_in(range)).collect(),
        })
    }
}

/// `5`, `0-5`; slots on their way stand in brackets.
fn slots_in(range: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
