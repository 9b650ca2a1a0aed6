//! Verification, from the settings of a master, that a cluster may keep locks.

use std::time::Duration;

use fred::clients::Client;

use crate::store::redis::{
    connection::{Endpoint, setting},
    verify::Findings,
};

/// Adds the problems of the settings to the findings.
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
            "{address} does not show its settings to this broker's user. Check that \
             cluster-require-full-coverage is no and cluster-node-timeout at most \
             store.former_master_max, or allow CONFIG GET."
        ));
        return;
    };
    if coverage != "no" {
        let problem = format!(
            "{address} has cluster-require-full-coverage {coverage}: if one master fails, all \
             others stop too. Set it to no, or start with --allow-unsafe-redis."
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
            "{address} has cluster-node-timeout {timeout}: an isolated master accepts writes for \
             that long, but store.former_master_max is only {} ms, so G2 is not guaranteed. Lower \
             cluster-node-timeout, or raise store.former_master_max.",
            lag.as_millis()
        ));
    }
}
