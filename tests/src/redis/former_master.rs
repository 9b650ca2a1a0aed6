//! Common parts of tests with a replaced master: brokers with small bounds, and a lease that its
//! holder renews continuously.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use tokio::time::sleep;

use crate::{
    broker::process::BrokerOptions,
    client::unary::{Client, HeldLease},
    clock::boottime,
    status::error_reason,
};

const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
/// Bound that includes the slowest failover and the brokers' connection to the new master.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Outcome of a continuously renewed lease.
#[derive(Debug, Clone, Copy)]
pub struct Renewals {
    /// Time until which the holder relied on the lease.
    pub trusted_until: Duration,
    /// Number of renewals that were rejected with `StoreRecovering`, because the new master could
    /// not confirm them.
    pub rejected: usize,
}

/// Returns options of brokers on `url`, with bounds that determine the quarantine `Q`.
#[must_use]
pub fn broker_options(
    url: String,
    ttl_max: Duration,
    former_master_max: Duration,
) -> BrokerOptions {
    let mut options = BrokerOptions::for_store(url);
    let settings = [
        ("LIMITS__TTL_MAX", ttl_max),
        ("LIMITS__LOCK_DELAY_MAX", Duration::ZERO),
        ("STORE__FORMER_MASTER_MAX", former_master_max),
    ];
    let env = |(key, value): (&str, Duration)| {
        (format!("LEASEHOLD__{key}"), format!("{}s", value.as_secs()))
    };
    options.env = settings.into_iter().map(env).collect();
    options
}

/// Renews through the first broker until the new master has rejected a renewal and the validity of
/// the lease has ended, whichever is later. The new master therefore receives a renewal even if the
/// failover is slow.
pub async fn renew_until_rejected(client: &Client, mut held: HeldLease) -> Renewals {
    let (give_up, mut refused) = (boottime() + REJECTION_TIMEOUT, 0);
    while boottime() < give_up && (refused == 0 || held.is_trusted()) {
        match client.renew_at(0, &held).await {
            Ok(renewed) => held = renewed,
            Err(status) if error_reason(&status) == Some(ErrorReason::StoreRecovering) => {
                refused += 1
            }
            // The broker has no node yet, or has lost its node.
            Err(_) => {}
        }
        sleep(RENEWAL_INTERVAL).await;
    }
    Renewals {
        trusted_until: held.trusted_until(),
        rejected: refused,
    }
}
