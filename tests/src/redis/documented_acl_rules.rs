//! ACL rules of the broker's Redis user, read from the documentation.

use crate::{broker::process::KEY_PREFIX, cluster::deployment::ClusterDeployment};

const OPERATING: &str = include_str!("../../../docs/operating.md");
const SINGLE_NODE_PREFIX: &str = "ACL SETUSER leasehold ";
const CLUSTER_PREFIX: &str = "In a cluster, on every server";
const SINGLE_NODE_ONLY_RULE: &str = "+mget";

/// Returns the ACL rules for a Redis Cluster, and the subset that a single server does not need.
#[must_use]
pub fn cluster_acl_rules() -> (Vec<String>, Vec<String>) {
    let mut lines = OPERATING.lines();
    let line = lines.find_map(|line| line.strip_prefix(SINGLE_NODE_PREFIX));
    let line = line.expect("the documentation prints the line");
    let line = line.replace("leasehold:", KEY_PREFIX);
    let more = lines.find(|line| line.starts_with(CLUSTER_PREFIX));
    let more = more.expect("and what a cluster needs besides");
    let quoted = more.split('`').skip(1).step_by(2);
    let words = |rights: &str| -> Vec<String> {
        let rights = rights.split(' ').map(str::to_owned);
        rights
            .filter(|right| right != SINGLE_NODE_ONLY_RULE)
            .collect()
    };
    let more: Vec<_> = quoted.flat_map(words).collect();
    ([words(&line), more.clone()].concat(), more)
}

/// Returns the additional ACL rules for sharded pub/sub.
#[must_use]
pub fn sharded_pubsub_acl_rules() -> Vec<String> {
    let (_, rights) = OPERATING
        .split_once("with `store.sharded_pubsub` also `")
        .expect("the documentation says it");
    let (rights, _) = rights.split_once('`').expect("it is quoted");
    rights.split(' ').map(str::to_owned).collect()
}

/// Creates the user `leasehold` with exactly these ACL rules on every server.
pub async fn create_acl_user(cluster: &ClusterDeployment, password: &str) {
    let (rights, _) = cluster_acl_rules();
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
