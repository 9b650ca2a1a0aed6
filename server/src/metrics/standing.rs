//! How the broker stands: what is set, or looked at when somebody asks, rather than counted.

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::metrics::{family::Family, gauge::Gauge, info::Info};

use super::{
    Counters, Names,
    labels::{File, Labels, Listener},
};

const REVISION: &str = match option_env!("LEASEHOLD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// What is looked at when somebody asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// The store would answer now.
    pub is_store_up: bool,
    /// The broker's clients are asked to move.
    pub is_draining: bool,
    /// Lease streams that are open.
    pub hold_streams: usize,
    /// Watches that are open.
    pub watch_streams: usize,
}

/// A connection, until dropped.
#[derive(Debug)]
pub struct OpenConnection(Gauge);

type Time = Gauge<f64, AtomicU64>;

pub(super) struct Gauges {
    store_up: Gauge,
    draining: Gauge,
    streams: Family<Labels, Gauge>,
    connections: Family<Labels, Gauge>,
    refused: Counters,
    is_reloaded: Family<Labels, Gauge>,
    reloaded_at: Family<Labels, Time>,
    certificate: Family<Labels, Time>,
}

impl Gauges {
    pub(super) fn new(names: &mut Names<'_>) -> Self {
        let gauges = Self {
            store_up: Gauge::default(),
            draining: Gauge::default(),
            streams: Family::default(),
            connections: Family::default(),
            refused: Family::default(),
            is_reloaded: Family::default(),
            reloaded_at: Family::default(),
            certificate: Family::default(),
        };
        let about = "Whether the store can be asked: 1, or 0";
        names.plain("store_up", about, gauges.store_up.clone());
        let about = "Whether clients are asked to move to other brokers: 1, or 0";
        names.plain("draining", about, gauges.draining.clone());
        names.plain("streams", "Streams that are open", gauges.streams.clone());
        let about = "Connections that are open";
        names.plain("connections", about, gauges.connections.clone());
        let about = "Connections that were refused because there are too many";
        names.plain("connections_refused", about, gauges.refused.clone());
        let about = "Whether what was read last is in use: 1, or 0";
        names.plain(
            "config_last_reload_successful",
            about,
            gauges.is_reloaded.clone(),
        );
        let about = "When what is in use was read, in seconds since 1970";
        names.seconds(
            "config_last_reload_success_timestamp",
            about,
            gauges.reloaded_at.clone(),
        );
        let about = "When the certificate ends, in seconds since 1970";
        names.seconds(
            "tls_cert_expiry_timestamp",
            about,
            gauges.certificate.clone(),
        );
        let build = Info::new(vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", REVISION),
        ]);
        names.plain("build", "Which broker this is", build);
        gauges
    }

    pub(super) fn stand(&self, standing: &Standing) {
        self.store_up.set(standing.is_store_up.into());
        self.draining.set(standing.is_draining.into());
        let open = [
            ("hold", standing.hold_streams),
            ("watch", standing.watch_streams),
        ];
        for (kind, count) in open {
            let label = vec![("kind", kind.to_owned())];
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.streams.get_or_create(&label).set(count);
        }
    }

    pub(super) fn reloaded(&self, file: File, is_good: bool) {
        let label = vec![("file", file.name().to_owned())];
        self.is_reloaded.get_or_create(&label).set(is_good.into());
        if is_good {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.unwrap_or_default().as_secs_f64();
            self.reloaded_at.get_or_create(&label).set(now);
        }
    }

    pub(super) fn certificate_ends(&self, at: i64) {
        let at = Duration::from_secs(u64::try_from(at).unwrap_or(0));
        self.certificate
            .get_or_create(&Vec::new())
            .set(at.as_secs_f64());
    }

    pub(super) fn connected(&self, listener: Listener, may: bool) -> Option<OpenConnection> {
        let label = vec![("listener", listener.name().to_owned())];
        if !may {
            self.refused.get_or_create(&label).inc();
            return None;
        }
        let open = self.connections.get_or_create_owned(&label);
        open.inc();
        Some(OpenConnection(open))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
