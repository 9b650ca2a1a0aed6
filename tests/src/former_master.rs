//! What tests of a master and its successor share: brokers with small bounds, and a lease that its holder renews.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use tokio::time::sleep;

use crate::{
    broker_process::BrokerOptions,
    client::{Client, Held},
    clock::boottime,
    status::reason,
};

const RENEWED_EVERY: Duration = Duration::from_millis(100);
/// The slowest fail-over, and the way to the new master.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);

/// What became of a lease that its holder renews all the time.
#[derive(Debug, Clone, Copy)]
pub struct Renewals {
    /// Until when the holder trusted it.
    pub trusted_until: Duration,
    /// How many renewals were refused since the new master could not confirm them.
    pub refused: usize,
}

/// Brokers on `url` whose `Q` follows from these bounds.
#[must_use]
pub fn options(url: String, ttl_max: Duration, former_master_max: Duration) -> BrokerOptions {
    let mut options = BrokerOptions::on(url);
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

/// Renews through the first broker until the new master has refused it and nobody trusts the lease any more, whichever
/// is later. However long the fail-over takes, the new master is asked.
pub async fn renew_until_refused(client: &Client, mut held: Held) -> Renewals {
    let (give_up, mut refused) = (boottime() + REFUSED_WITHIN, 0);
    while boottime() < give_up && (refused == 0 || held.trusted()) {
        match client.renew_at(0, &held).await {
            Ok(renewed) => held = renewed,
            Err(status) if reason(&status) == Some(ErrorReason::StoreRecovering) => refused += 1,
            // It waits for a node, or the one that it had is lost.
            Err(_) => {}
        }
        sleep(RENEWED_EVERY).await;
    }
    Renewals {
        trusted_until: held.trusted_until(),
        refused,
    }
}
