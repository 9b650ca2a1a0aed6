//! Check, from the settings of a master, that it stops in time when it is cut off: before leases are
//! renewed at its successor.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
};

use super::{
    connection::{Endpoint, setting},
    location::{MASTER_VALID_FOR, SentinelView, StoreLocation},
    verify::{Findings, ServerInfo},
};

/// Time after `min-replicas-max-lag` for which a master may still accept writes. Redis counts the
/// replicas once a second, in whole seconds.
const REPLICA_COUNT_DELAY: Duration = Duration::from_secs(2);

/// Margin for commands in flight when a broker leaves a master.
const IN_FLIGHT_MARGIN: Duration = Duration::from_secs(2);

/// Settings by which a master stops accepting writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MinReplicas {
    /// Minimum number of replicas for a write.
    to_write: usize,
    /// Time for which a replica counts after its last acknowledgment.
    max_lag: Duration,
}

/// The replication around a master.
#[derive(Debug, Clone, Copy)]
struct ReplicationContext {
    replicas: usize,
    /// True if brokers query Sentinels for the master.
    has_sentinels: bool,
    view: Option<SentinelView>,
    former_max: Duration,
}

/// Adds what the settings of a master show: in a cluster also problems, elsewhere only warnings.
pub(super) async fn check(
    endpoint: &Endpoint,
    client: &Client,
    info: &ServerInfo<'_>,
    view: Option<SentinelView>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let Endpoint { config, .. } = endpoint;
    if config.location.is_cluster() {
        check_cluster(endpoint, client, findings).await;
        return Ok(());
    }
    if !info.has_replacement(config) {
        return Ok(());
    }
    let around = ReplicationContext {
        replicas: info
            .replica_count()
            .max(view.map_or(0, |view| view.replicas)),
        has_sentinels: matches!(config.location, StoreLocation::Sentinel(_)),
        view,
        former_max: Duration::from_millis(config.bounds.former_master_max_ms),
    };
    let Some(settings) = min_replicas(client).await? else {
        findings.hides_settings = true;
        findings.warnings.push(format!(
            "{} does not show its settings to this broker's user: check that min-replicas-to-write \
             is the number of its replicas ({}) and min-replicas-max-lag at least 2 s less than \
             store.former_master_max ({} ms), or allow CONFIG GET. {}",
            endpoint.name(),
            around.replicas,
            around.former_max.as_millis(),
            around.consequence()
        ));
        return Ok(());
    };
    let warnings = settings.warnings(&endpoint.name(), around);
    findings.warnings.extend(warnings);
    Ok(())
}

/// Adds the problems and warnings that the settings of a master of a cluster show.
async fn check_cluster(endpoint: &Endpoint, client: &Client, findings: &mut Findings) {
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
    let former_max_ms = endpoint.config.bounds.former_master_max_ms;
    if timeout.parse().is_ok_and(|ms: u64| ms > former_max_ms) {
        findings.warnings.push(format!(
            "{address} has cluster-node-timeout {timeout}: an isolated master accepts writes for \
             that long, but store.former_master_max is only {former_max_ms} ms, so G2 is not \
             guaranteed. Lower cluster-node-timeout, or raise store.former_master_max."
        ));
    }
}

/// Returns the settings, or `None` if the broker's user may not read them.
async fn min_replicas(client: &Client) -> Result<Option<MinReplicas>, Error> {
    let to_write = read_setting(client, "min-replicas-to-write").await?;
    let max_lag = read_setting(client, "min-replicas-max-lag").await?;
    Ok(to_write.zip(max_lag).and_then(|(to_write, max_lag)| {
        Some(MinReplicas {
            to_write: to_write.try_into().ok()?,
            max_lag: Duration::from_secs(max_lag),
        })
    }))
}

async fn read_setting(client: &Client, name: &str) -> Result<Option<u64>, Error> {
    match setting(client, name).await {
        Ok(text) => Ok(text.and_then(|text| text.parse().ok())),
        Err(error) if is_connection_error(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns true if the error is one of the connection and not a reply of the server.
fn is_connection_error(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Tls
    )
}

impl ReplicationContext {
    /// Returns the consequence of a master that does not stop accepting writes.
    fn consequence(self) -> &'static str {
        match self.has_sentinels && self.former_max >= MASTER_VALID_FOR + IN_FLIGHT_MARGIN {
            true => {
                "Otherwise G2 is not guaranteed unless all brokers configure the same Sentinels, \
                 each with its own address: then no two brokers use two masters for longer than 4 \
                 s."
            }
            false => "Otherwise G2 is not guaranteed.",
        }
    }
}

impl MinReplicas {
    fn warnings(self, address: &str, around: ReplicationContext) -> Vec<String> {
        let Self { to_write, max_lag } = self;
        let ReplicationContext {
            replicas,
            former_max,
            ..
        } = around;
        let mut warnings = Vec::new();
        // With a lag of 0 Redis counts no replicas.
        let needed = if max_lag.is_zero() { 0 } else { to_write };
        if needed < replicas.max(1) {
            warnings.push(format!(
                "{address} has {replicas} replicas but needs only {needed} of them for a write: \
                 isolated together with that many, it continues to grant locks. Set \
                 min-replicas-to-write (now {to_write}) to {}, and min-replicas-max-lag (now {}) \
                 to more than 0. {}",
                replicas.max(1),
                max_lag.as_secs(),
                around.consequence()
            ));
        }
        let stops_after = max_lag + REPLICA_COUNT_DELAY;
        if stops_after > former_max {
            warnings.push(format!(
                "{address} accepts writes for up to {} s after it was replaced \
                 (min-replicas-max-lag {}), but store.former_master_max is only {} ms. Lower \
                 min-replicas-max-lag, or raise store.former_master_max. {}",
                stops_after.as_secs(),
                max_lag.as_secs(),
                former_max.as_millis(),
                around.consequence()
            ));
        }
        if let Some(SentinelView { down_after, .. }) = around.view
            && stops_after >= down_after
        {
            warnings.push(format!(
                "{address} accepts writes for up to {} s when it is isolated (min-replicas-max-lag \
                 {}), but Sentinel replaces it after down-after-milliseconds {}: later grants are \
                 lost. Set down-after-milliseconds to more than {}, or lower \
                 min-replicas-max-lag.",
                stops_after.as_secs(),
                max_lag.as_secs(),
                down_after.as_millis(),
                stops_after.as_millis()
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(to_write: usize, max_lag_s: u64) -> MinReplicas {
        MinReplicas {
            to_write,
            max_lag: Duration::from_secs(max_lag_s),
        }
    }

    fn warned(min_replicas: MinReplicas, around: ReplicationContext) -> Vec<String> {
        min_replicas.warnings("Redis", around)
    }

    fn around(replicas: usize, down_after_s: u64) -> ReplicationContext {
        let view = SentinelView {
            replicas,
            down_after: Duration::from_secs(down_after_s),
        };
        ReplicationContext {
            replicas,
            has_sentinels: true,
            view: Some(view),
            former_max: Duration::from_secs(4),
        }
    }

    #[test]
    fn safe_replication_settings_are_not_reported() {
        assert_eq!(warned(set(2, 2), around(2, 5)), [""; 0]);
        assert_eq!(warned(set(3, 1), around(2, 4)), [""; 0]);
    }

    #[test]
    fn settings_that_let_a_cut_off_master_accept_writes_are_reported() {
        for (min_replicas, replicas, expected) in [
            (set(0, 2), 2, "but needs only 0 of them"),
            (set(2, 0), 2, "needs only 0 of them"),
            (set(1, 2), 2, "has 2 replicas but needs only 1 of them"),
            (set(0, 2), 0, "has 0 replicas but needs only 0 of them"),
            (set(2, 3), 2, "accepts writes for up to 5 s"),
        ] {
            let around = around(replicas, 6);
            let warnings = warned(min_replicas, around);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(expected), "{warnings:?}");
            assert!(warnings[0].ends_with("Otherwise G2 is not guaranteed."));
            let longer = ReplicationContext {
                former_max: Duration::from_secs(12),
                ..around
            };
            let warnings = warned(min_replicas, longer);
            let by_sentinels = "unless all brokers configure the same Sentinels";
            assert!(
                warnings
                    .iter()
                    .all(|warning| warning.contains(by_sentinels))
            );
            let standalone = ReplicationContext {
                has_sentinels: false,
                view: None,
                ..longer
            };
            let warnings = warned(min_replicas, standalone);
            assert!(
                warnings
                    .iter()
                    .all(|warning| !warning.contains(by_sentinels))
            );
        }
        let early_failover = warned(set(2, 2), around(2, 4));
        assert_eq!(early_failover.len(), 1, "{early_failover:?}");
        assert!(
            early_failover[0].contains("down-after-milliseconds 4000"),
            "{early_failover:?}"
        );
    }
}
