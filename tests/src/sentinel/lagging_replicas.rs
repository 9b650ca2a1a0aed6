//! Replicas that lack the last grants of their master.

use std::time::Duration;

use tokio::time::sleep;

use super::deployment::SentinelDeployment;
use crate::{client::unary::Client, load::lost_writes::read_last_tokens};

/// Number of attempts in which no lock is granted before the test fails.
const ATTEMPTS_MAX: usize = 20;

/// Stops the replication from a master until, after `lag`, a lock of the load has a later token than
/// a replica can have. Returns the last tokens of the locks.
///
/// A master without replicas stops its writes soon. If it does so before anything was granted, the
/// replication begins again.
pub async fn let_replicas_lag(
    redis: &SentinelDeployment,
    master: usize,
    client: &Client,
    locks: usize,
    lag: Duration,
) -> Vec<i64> {
    for _ in 0..ATTEMPTS_MAX {
        redis.cut_replication(master);
        let replicated = read_last_tokens(client, locks).await;
        sleep(lag).await;
        let tokens = read_last_tokens(client, locks).await;
        if tokens.iter().zip(&replicated).any(|(now, then)| now > then) {
            return tokens;
        }
        redis.heal();
        redis.wait_until_ready().await;
    }
    panic!("no grant without replicas in {ATTEMPTS_MAX} attempts");
}
