//! Process metrics, read at each scrape, under the names that Prometheus client libraries use.

use std::{fmt, fs, sync::atomic::AtomicU64, time::SystemTime};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use tokio::runtime::Handle;

use crate::time::unix_time;

/// Clock ticks per second, the unit in which Linux reports CPU time.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4_096;

/// Registers the process metrics.
pub(super) fn register(registry: &mut Registry) {
    let started: Gauge<f64, AtomicU64> = Gauge::default();
    started.set(unix_time(SystemTime::now()).as_secs_f64());
    let help = "Start time of the process, in seconds since 1970";
    let unit = Unit::Seconds;
    registry.register_with_unit("process_start_time", help, unit, started);
    registry.register_collector(Box::new(Process));
}

#[derive(Debug)]
struct Process;

/// Process statistics from `/proc`.
struct ProcessUsage {
    cpu_seconds: f64,
    resident_bytes: u64,
    threads: u64,
    open_fds: u64,
}

impl ProcessUsage {
    /// Reads the current statistics. Returns `None` if there is no `/proc`.
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The program's name may contain blanks. The fields after it contain none.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number)?.parse::<u32>().ok();
        let ticks = f64::from(field(11)?) + f64::from(field(12)?);
        let pages: u64 = fields.get(21)?.parse().ok()?;
        Some(Self {
            cpu_seconds: ticks / TICKS,
            resident_bytes: pages * PAGE,
            threads: field(17)?.into(),
            open_fds: fs::read_dir("/proc/self/fd")
                .ok()?
                .count()
                .try_into()
                .ok()?,
        })
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(usage) = ProcessUsage::read() {
            let cpu = ConstCounter::new(usage.cpu_seconds);
            let help = "CPU time of the process";
            let kind = cpu.metric_type();
            let metric_encoder =
                encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), kind)?;
            cpu.encode(metric_encoder)?;
            let help = "Resident memory of the process";
            let (name, unit) = ("process_resident_memory", Some(Unit::Bytes));
            gauge(&mut encoder, name, help, unit, usage.resident_bytes)?;
            let help = "Threads of the process";
            gauge(&mut encoder, "process_threads", help, None, usage.threads)?;
            let help = "Open files and connections of the process";
            gauge(&mut encoder, "process_open_fds", help, None, usage.open_fds)?;
        }
        if let Ok(runtime) = Handle::try_current() {
            let runtime = runtime.metrics();
            let help = "Running tasks of the broker";
            let tasks = runtime.num_alive_tasks() as u64;
            gauge(&mut encoder, "leasehold_runtime_tasks", help, None, tasks)?;
            let help = "Threads that run the broker's tasks";
            let workers = runtime.num_workers() as u64;
            let name = "leasehold_runtime_workers";
            gauge(&mut encoder, name, help, None, workers)?;
        }
        Ok(())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: u64,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let kind: MetricType = gauge.metric_type();
    gauge.encode(encoder.encode_descriptor(name, help, unit.as_ref(), kind)?)
}
