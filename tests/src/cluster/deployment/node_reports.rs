//! The slot map and the node states, as a node reports them.

use std::{net::SocketAddr, ops::RangeInclusive};

use super::ClusterDeployment;

/// The state of a node, as another node reports it.
#[derive(Debug, Clone)]
pub struct ReportedNode {
    pub index: usize,
    /// Node id in the cluster.
    pub id: String,
    /// Node id of the master, if the node is a replica.
    pub master: Option<String>,
    /// Role and state flags: `master`, `slave`, `fail?`, ...
    pub flags: Vec<String>,
    /// True if the reporting node is connected to the node.
    pub is_connected: bool,
    /// Slots that the node serves.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl ReportedNode {
    /// Returns true if the node serves a slot.
    #[must_use]
    pub fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Returns true if the node has failed, at least for the reporting node.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_flag("fail") || self.has_flag("fail?")
    }

    /// Returns true if the node has a flag.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

impl ClusterDeployment {
    /// Returns the states of all nodes, as node `index` reports them.
    pub async fn nodes_reported_by(&self, index: usize) -> Vec<ReportedNode> {
        let mut raw = self.server(index).connect().await;
        let text = raw.must(&["CLUSTER", "NODES"]).await.text().to_owned();
        text.lines()
            .filter_map(|line| self.parse_node(line))
            .collect()
    }

    /// Returns the masters that serve slots and have not failed, as a running node reports them.
    pub async fn masters(&self) -> Vec<usize> {
        let seen = self.reported_nodes().await;
        let serve = seen
            .iter()
            .filter(|node| node.has_flag("master") && !node.has_failed() && !node.slots.is_empty());
        let mut masters: Vec<_> = serve.map(|node| node.index).collect();
        masters.sort_unstable();
        masters
    }

    /// Returns the master of a slot, which may have failed.
    pub async fn master_of(&self, slot: u16) -> usize {
        let seen = self.reported_nodes().await;
        let master = seen.iter().find(|node| node.serves(slot));
        master.expect("a slot that is assigned").index
    }

    pub async fn replicas_of(&self, master: usize) -> Vec<usize> {
        let seen = self.reported_nodes().await;
        let id = seen.iter().find(|node| node.index == master);
        let id = &id.expect("a node of this cluster").id;
        let follow = seen.iter().filter(|node| node.master.as_ref() == Some(id));
        follow.map(|node| node.index).collect()
    }

    async fn reported_nodes(&self) -> Vec<ReportedNode> {
        let first = self.running_nodes().next().expect("a node that runs");
        self.nodes_reported_by(first).await
    }

    /// Parses a line of CLUSTER NODES. Returns `None` for a node whose address is not known yet.
    fn parse_node(&self, line: &str) -> Option<ReportedNode> {
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
        Some(ReportedNode {
            index,
            id: (*id).to_owned(),
            master: (*master != "-").then(|| (*master).to_owned()),
            flags: flags.split(',').map(str::to_owned).collect(),
            is_connected: *link == "connected",
            slots: slots
                .iter()
                .filter_map(|range| parse_slots(range))
                .collect(),
        })
    }
}

/// Parses a slot or a range such as `5` or `0-5`. Slots in migration are in brackets and return
/// `None`.
fn parse_slots(range: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
