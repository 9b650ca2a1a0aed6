//! The rights of the broker's user, as the documentation prints them.

use crate::{broker_process::KEY_PREFIX, cluster::ClusterDeployment};

const OPERATING: &str = include_str!("../../docs/operating.md");
const ON_ONE_NODE: &str = "ACL SETUSER leasehold ";
const IN_A_CLUSTER: &str = "In a cluster, on every server";
const NEEDED_ON_ONE_NODE: &str = "+mget";

/// What `ACL SETUSER` takes in a cluster, and which of that a single server does not need.
#[must_use]
pub fn in_a_cluster() -> (Vec<String>, Vec<String>) {
    let mut lines = OPERATING.lines();
    let line = lines.find_map(|line| line.strip_prefix(ON_ONE_NODE));
    let line = line.expect("the documentation prints the line");
    let line = line.replace("leasehold:", KEY_PREFIX);
    let more = lines.find(|line| line.starts_with(IN_A_CLUSTER));
    let more = more.expect("and what a cluster needs besides");
    let quoted = more.split('`').skip(1).step_by(2);
    let words = |rights: &str| -> Vec<String> {
        let rights = rights.split(' ').map(str::to_owned);
        rights.filter(|right| right != NEEDED_ON_ONE_NODE).collect()
    };
    let more: Vec<_> = quoted.flat_map(words).collect();
    ([words(&line), more.clone()].concat(), more)
}

/// What sharded channels need besides.
#[must_use]
pub fn sharded() -> Vec<String> {
    let (_, rights) = OPERATING
        .split_once("with `store.sharded_pubsub` also `")
        .expect("the documentation says it");
    let (rights, _) = rights.split_once('`').expect("it is quoted");
    rights.split(' ').map(str::to_owned).collect()
}

/// Gives every server the user `leasehold` with those rights and no others.
pub async fn give(cluster: &ClusterDeployment, password: &str) {
    let (rights, _) = in_a_cluster();
    let rights = rights.iter().map(String::as_str);
    let words = ["ACL", "SETUSER", "leasehold"].into_iter().chain(rights);
    let words: Vec<_> = words.collect();
    let password = format!(">{password}");
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        raw.must(&words).await;
        raw.must(&["ACL", "SETUSER", "leasehold", &password]).await;
    }
}
