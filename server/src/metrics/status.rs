//! Gauges of the broker's status, which are set or read at a scrape.

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::{family::Family, gauge::Gauge, info::Info};

use super::{
    GaugeEntry, LabelCounters, Metrics, Registrar,
    labels::{File, Label, Listener},
};
use crate::{
    lock::{RecoveryCause, UNKNOWN_CAUSE},
    store::RecoveryState,
    time::unix_time,
};

const REVISION: &str = match option_env!("LEASEHOLD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// Status of the broker, read at each scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerStatus {
    /// True if the store is reachable.
    pub is_store_up: bool,
    pub recovery: RecoveryState,
    /// True if clients are asked to reconnect to other brokers.
    pub is_draining: bool,
    /// Number of open lease streams.
    pub hold_streams: usize,
    /// Number of open watches.
    pub watch_streams: usize,
}

type Gauges<G = Gauge> = Family<[Label; 1], G>;
type Time = Gauge<f64, AtomicU64>;

pub(super) struct StatusGauges {
    store_up: Gauge,
    recovery: Gauges<Time>,
    draining: Gauge,
    streams: Gauges,
    connections: Gauges,
    refused: LabelCounters,
    is_reloaded: Gauges,
    reloaded_at: Gauges<Time>,
    certificate: Family<[Label; 0], Time>,
}

impl StatusGauges {
    pub(super) fn new(registrar: &mut Registrar<'_>) -> Self {
        let gauges = Self {
            store_up: Gauge::default(),
            recovery: Family::default(),
            draining: Gauge::default(),
            streams: Family::default(),
            connections: Family::default(),
            refused: Family::default(),
            is_reloaded: Family::default(),
            reloaded_at: Family::default(),
            certificate: Family::default(),
        };
        let help = "1 if the store can be used, otherwise 0";
        registrar.plain("store_up", help, &gauges.store_up);
        let help = "Time until the store grants new locks, by the cause of its recovery";
        registrar.seconds("store_recovery", help, &gauges.recovery);
        let help = "1 if clients are asked to reconnect to other brokers, otherwise 0";
        registrar.plain("draining", help, &gauges.draining);
        let help = "Open lease streams and watches, by kind";
        registrar.plain("streams", help, &gauges.streams);
        let help = "Open connections, by listener";
        registrar.plain("connections", help, &gauges.connections);
        let help = "Connections rejected by a connection limit, by listener";
        registrar.plain("connections_refused", help, &gauges.refused);
        let help = "1 if the version of the file that was read last is in use, otherwise 0";
        registrar.plain("config_last_reload_successful", help, &gauges.is_reloaded);
        let help = "Time at which the version of the file in use was read, in seconds since 1970";
        registrar.seconds(
            "config_last_reload_success_timestamp",
            help,
            &gauges.reloaded_at,
        );
        let help = "Expiry of the broker's certificate, in seconds since 1970";
        registrar.seconds("tls_cert_expiry_timestamp", help, &gauges.certificate);
        let build = Info::new(vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", REVISION),
        ]);
        let help = "Version and revision of the broker";
        registrar.0.register("build", help, build);
        gauges
    }

    pub(super) fn set(&self, status: &BrokerStatus) {
        self.store_up.set(status.is_store_up.into());
        self.set_recovery(&status.recovery);
        self.draining.set(status.is_draining.into());
        let stream_counts = [
            ("hold", status.hold_streams),
            ("watch", status.watch_streams),
        ];
        for (kind, count) in stream_counts {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.streams.get_or_create(&[("kind", kind)]).set(count);
        }
    }
}

impl StatusGauges {
    /// Sets the series of the present cause to the remaining time, and all others to 0. There are
    /// no series if the recovery is unknown.
    fn set_recovery(&self, state: &RecoveryState) {
        let (current, remaining_ms) = match state {
            RecoveryState::Unknown => return self.recovery.clear(),
            RecoveryState::Granting => ("", 0),
            RecoveryState::Recovering { recovery, .. } => {
                (recovery.recovery.cause_name(), recovery.remaining_ms())
            }
        };
        for name in RecoveryCause::ALL
            .map(RecoveryCause::name)
            .into_iter()
            .chain([UNKNOWN_CAUSE])
        {
            let remaining_ms = if name == current { remaining_ms } else { 0 };
            let remaining = Duration::from_millis(remaining_ms).as_secs_f64();
            self.recovery
                .get_or_create(&[("cause", name)])
                .set(remaining);
        }
    }
}

impl Metrics {
    /// Records whether a file was reloaded successfully.
    pub fn reloaded(&self, file: File, is_good: bool) {
        let Some(inner) = &self.0 else {
            return;
        };
        let label = [("file", file.name())];
        let is_reloaded = inner.gauges.is_reloaded.get_or_create(&label);
        is_reloaded.set(is_good.into());
        if is_good {
            let now = unix_time(SystemTime::now()).as_secs_f64();
            inner.gauges.reloaded_at.get_or_create(&label).set(now);
        }
    }

    /// Sets the expiry of the certificate in use, in seconds since 1970.
    pub fn certificate_ends(&self, expires_at: i64) {
        if let Some(inner) = &self.0 {
            let expires_at = Duration::from_secs(u64::try_from(expires_at).unwrap_or(0));
            let certificate = inner.gauges.certificate.get_or_create(&[]);
            certificate.set(expires_at.as_secs_f64());
        }
    }

    /// Counts an open connection of a listener, or a rejected one if `is_allowed` is false.
    pub fn connected(&self, listener: Listener, is_allowed: bool) -> Option<GaugeEntry> {
        let gauges = &self.0.as_ref()?.gauges;
        let label = [("listener", listener.name())];
        if !is_allowed {
            gauges.refused.get_or_create(&label).inc();
            return None;
        }
        Some(GaugeEntry::new(&gauges.connections.get_or_create(&label)))
    }
}
