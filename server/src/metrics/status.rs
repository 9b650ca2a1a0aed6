//! Gauges of the broker's status, which are set or read at a scrape.

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::{family::Family, gauge::Gauge, info::Info};

use super::{
    Counters, Registrar,
    labels::{File, Labels, Listener},
};
use crate::time::unix_time;

const REVISION: &str = match option_env!("LEASEHOLD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// Status of the broker, read at each scrape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BrokerStatus {
    /// True if the store is reachable.
    pub is_store_up: bool,
    /// True if clients are asked to reconnect to other brokers.
    pub is_draining: bool,
    /// Number of open lease streams.
    pub hold_streams: usize,
    /// Number of open watches.
    pub watch_streams: usize,
}

/// Gauge entry of an open connection, removed when dropped.
#[derive(Debug)]
pub struct OpenConnection(Gauge);

type Time = Gauge<f64, AtomicU64>;

pub(super) struct StatusGauges {
    store_up: Gauge,
    draining: Gauge,
    streams: Family<Labels, Gauge>,
    connections: Family<Labels, Gauge>,
    refused: Counters,
    is_reloaded: Family<Labels, Gauge>,
    reloaded_at: Family<Labels, Time>,
    certificate: Family<Labels, Time>,
}

impl StatusGauges {
    pub(super) fn new(registrar: &mut Registrar<'_>) -> Self {
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
        let help = "1 if the store can be used, otherwise 0";
        registrar.plain("store_up", help, gauges.store_up.clone());
        let help = "1 if clients are asked to reconnect to other brokers, otherwise 0";
        registrar.plain("draining", help, gauges.draining.clone());
        registrar.plain(
            "streams",
            "Open lease streams and watches, by kind",
            gauges.streams.clone(),
        );
        let help = "Open connections, by listener";
        registrar.plain("connections", help, gauges.connections.clone());
        let help = "Connections rejected by a connection limit, by listener";
        registrar.plain("connections_refused", help, gauges.refused.clone());
        let help = "1 if the version of the file that was read last is in use, otherwise 0";
        registrar.plain(
            "config_last_reload_successful",
            help,
            gauges.is_reloaded.clone(),
        );
        let help = "Time at which the version of the file in use was read, in seconds since 1970";
        registrar.seconds(
            "config_last_reload_success_timestamp",
            help,
            gauges.reloaded_at.clone(),
        );
        let help = "Expiry of the broker's certificate, in seconds since 1970";
        registrar.seconds(
            "tls_cert_expiry_timestamp",
            help,
            gauges.certificate.clone(),
        );
        let build = Info::new(vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", REVISION),
        ]);
        registrar.plain("build", "Version and revision of the broker", build);
        gauges
    }

    pub(super) fn set(&self, status: &BrokerStatus) {
        self.store_up.set(status.is_store_up.into());
        self.draining.set(status.is_draining.into());
        let stream_counts = [
            ("hold", status.hold_streams),
            ("watch", status.watch_streams),
        ];
        for (kind, count) in stream_counts {
            let label = vec![("kind", kind.to_owned())];
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.streams.get_or_create(&label).set(count);
        }
    }

    pub(super) fn reloaded(&self, file: File, is_good: bool) {
        let label = vec![("file", file.name().to_owned())];
        self.is_reloaded.get_or_create(&label).set(is_good.into());
        if is_good {
            let now = unix_time(SystemTime::now()).as_secs_f64();
            self.reloaded_at.get_or_create(&label).set(now);
        }
    }

    pub(super) fn certificate_ends(&self, expires_at: i64) {
        let expires_at = Duration::from_secs(u64::try_from(expires_at).unwrap_or(0));
        self.certificate
            .get_or_create(&Vec::new())
            .set(expires_at.as_secs_f64());
    }

    pub(super) fn connected(&self, listener: Listener, is_allowed: bool) -> Option<OpenConnection> {
        let label = vec![("listener", listener.name().to_owned())];
        if !is_allowed {
            self.refused.get_or_create(&label).inc();
            return None;
        }
        let gauge = self.connections.get_or_create_owned(&label);
        gauge.inc();
        Some(OpenConnection(gauge))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
