//! Checks whether a master that is cut off stops in time: before its successor lets a lease be renewed.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
};

use super::{
    connection::{Endpoint, setting},
    place::{NAMED_FOR, Place, SentinelView},
    verify::{Findings, ServerInfo},
};

/// How long after `min-replicas-max-lag` a master may still take writes: it counts its replicas once a second, in
/// whole seconds.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);

/// Margin for commands that are under way when a broker leaves a master.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// When a master takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MinReplicas {
    /// With fewer replicas than that.
    to_write: usize,
    /// A replica counts for so long after it was heard.
    max_lag: Duration,
}

/// What else there is around a master.
#[derive(Debug, Clone, Copy)]
struct Around {
    replicas: usize,
    /// Brokers ask Sentinels which server is the master.
    has_sentinels: bool,
    view: Option<SentinelView>,
    former_max: Duration,
}

/// Adds what an operator should know of the replication of a master, outside a cluster.
pub(super) async fn check(
    endpoint: &Endpoint,
    client: &Client,
    info: &ServerInfo<'_>,
    view: Option<SentinelView>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let Endpoint { config, .. } = endpoint;
    if config.place.is_cluster() || !info.may_be_replaced(config) {
        return Ok(());
    }
    let around = Around {
        replicas: info.replicas().max(view.map_or(0, |view| view.replicas)),
        has_sentinels: matches!(config.place, Place::Sentinel(_)),
        view,
        former_max: Duration::from_millis(config.bounds.former_master_max_ms),
    };
    let Some(settings) = min_replicas(client).await? else {
        findings.hides_settings = true;
        findings.warnings.push(format!(
            "{} does not show its settings to this broker's user: see that min-replicas-to-write is the \
             number of its replicas ({}) and min-replicas-max-lag at least 2 s less than \
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

/// `None` if the broker's user may not see them.
async fn min_replicas(client: &Client) -> Result<Option<MinReplicas>, Error> {
    let to_write = shown(client, "min-replicas-to-write").await?;
    let max_lag = shown(client, "min-replicas-max-lag").await?;
    Ok(to_write.zip(max_lag).and_then(|(to_write, max_lag)| {
        Some(MinReplicas {
            to_write: to_write.try_into().ok()?,
            max_lag: Duration::from_secs(max_lag),
        })
    }))
}

async fn shown(client: &Client, name: &str) -> Result<Option<u64>, Error> {
    match setting(client, name).await {
        Ok(text) => Ok(text.and_then(|text| text.parse().ok())),
        Err(error) if is_of_connection(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether it is no answer of the server.
fn is_of_connection(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Tls
    )
}

impl Around {
    /// What it means that a master does not stop by itself.
    fn consequence(self) -> &'static str {
        match self.has_sentinels && self.former_max >= NAMED_FOR + LEFT_WITHIN {
            true => {
                "Otherwise G2 is not given unless all brokers name the same Sentinels, each by an \
                 address of its own: then no two of them use two masters for longer than 4 s."
            }
            false => "Otherwise G2 is not given.",
        }
    }
}

impl MinReplicas {
    fn warnings(self, address: &str, around: Around) -> Vec<String> {
        let Self { to_write, max_lag } = self;
        let Around {
            replicas,
            former_max,
            ..
        } = around;
        let mut warnings = Vec::new();
        // With a lag of 0 Redis counts no replicas.
        let needed = if max_lag.is_zero() { 0 } else { to_write };
        if needed < replicas.max(1) {
            warnings.push(format!(
                "{address} has {replicas} replicas but needs only {needed} of them for a write: cut off together \
                 with that many, it goes on granting locks. Set min-replicas-to-write (now {to_write}) to {}, \
                 and min-replicas-max-lag (now {}) to more than 0. {}",
                replicas.max(1),
                max_lag.as_secs(),
                around.consequence()
            ));
        }
        let stops_after = max_lag + COUNTED_WITHIN;
        if stops_after > former_max {
            warnings.push(format!(
                "{address} takes writes for up to {} s after it was replaced (min-replicas-max-lag {}), and \
                 store.former_master_max is only {} ms. Lower the one or raise the other. {}",
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
                "{address} takes writes for up to {} s when it is cut off (min-replicas-max-lag {}), and Sentinel \
                 replaces it after down-after-milliseconds {}: what it grants after that is lost. Set \
                 down-after-milliseconds to more than {}, or lower min-replicas-max-lag.",
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

    fn warned(min_replicas: MinReplicas, around: Around) -> Vec<String> {
        min_replicas.warnings("Redis", around)
    }

    fn around(replicas: usize, down_after_s: u64) -> Around {
        let view = SentinelView {
            replicas,
            down_after: Duration::from_secs(down_after_s),
        };
        Around {
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
        for (min_replicas, replicas, says) in [
            (set(0, 2), 2, "but needs only 0 of them"),
            (set(2, 0), 2, "needs only 0 of them"),
            (set(1, 2), 2, "has 2 replicas but needs only 1 of them"),
            (set(0, 2), 0, "has 0 replicas but needs only 0 of them"),
            (set(2, 3), 2, "takes writes for up to 5 s"),
        ] {
            let around = around(replicas, 6);
            let warnings = warned(min_replicas, around);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(says), "{warnings:?}");
            assert!(warnings[0].ends_with("Otherwise G2 is not given."));
            let longer = Around {
                former_max: Duration::from_secs(12),
                ..around
            };
            let warnings = warned(min_replicas, longer);
            let by_sentinels = "unless all brokers name the same Sentinels";
            assert!(
                warnings
                    .iter()
                    .all(|warning| warning.contains(by_sentinels))
            );
            let alone = Around {
                has_sentinels: false,
                view: None,
                ..longer
            };
            let warnings = warned(min_replicas, alone);
            assert!(
                warnings
                    .iter()
                    .all(|warning| !warning.contains(by_sentinels))
            );
        }
        let early = warned(set(2, 2), around(2, 4));
        assert_eq!(early.len(), 1, "{early:?}");
        assert!(
            early[0].contains("down-after-milliseconds 4000"),
            "{early:?}"
        );
    }
}
