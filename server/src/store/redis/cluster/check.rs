//! Checks, from the settings of a master of a cluster, whether the cluster may keep locks.

use std::time::Duration;

use fred::clients::Client;

use crate::store::redis::{
    connection::{Endpoint, setting},
    verify::Findings,
};

/// Adds what is wrong to what is known already.
pub(in crate::store::redis) async fn check_settings(
    endpoint: &Endpoint,
    client: &Client,
    findings: &mut Findings,
) {
    let address = endpoint.name();
    let coverage = setting(client, "cluster-require-full-coverage").await;
    let timeout = setting(client, "cluster-node-timeout").await;
    let (Ok(Some(coverage)), Ok(Some(timeout))) = (coverage, timeout) else {
        findings.hides_settings = true;
        findings.warnings.push(format!(
            "{address} does not show its settings to this broker's user. See that \
             cluster-require-full-coverage is no and cluster-node-timeout at most \
             store.former_master_max, or allow CONFIG GET."
        ));
        return;
    };
    if coverage != "no" {
        let problem = format!(
            "{address} has cluster-require-full-coverage {coverage}: when one master is lost all \
             others stop, too. Set it to no, or start with --allow-unsafe-redis."
        );
        match endpoint.config.allow_unsafe {
            true => findings.warnings.push(problem),
            false => findings.problems.push(problem),
        }
    }
    let lag = Duration::from_millis(endpoint.config.bounds.former_master_max_ms);
    if timeout
        .parse()
        .is_ok_and(|ms| Duration::from_millis(ms) > lag)
    {
        findings.warnings.push(format!(
            "{address} has cluster-node-timeout {timeout}: cut off from the others it goes on for \
             so long, and store.former_master_max is only {} ms, so G2 is not given. Lower the one \
             or raise the other.",
            lag.as_millis()
        ));
    }
}
