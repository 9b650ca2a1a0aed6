//! What the process takes of its machine, looked at when somebody asks, under the names that client
//! libraries of Prometheus use.

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

/// Of a second, in which Linux counts a process's time.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4_096;

/// Has the process's own figures shown.
pub(super) fn register(registry: &mut Registry) {
    let started: Gauge<f64, AtomicU64> = Gauge::default();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    started.set(now.unwrap_or_default().as_secs_f64());
    let about = "When the process began to count, in seconds since 1970";
    let unit = Unit::Seconds;
    registry.register_with_unit("process_start_time", about, unit, started);
    registry.register_collector(Box::new(Process));
}

#[derive(Debug)]
struct Process;

/// What Linux says of this process.
struct Seen {
    cpu_seconds: f64,
    resident_bytes: u64,
    threads: u64,
    open_fds: u64,
}

impl Seen {
    /// `None` where there is no `/proc`.
    fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program may have blanks; the fields behind it have none.
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
        if let Some(seen) = Seen::now() {
            let cpu = ConstCounter::new(seen.cpu_seconds);
            let about = "Time that the process has computed";
            let kind = cpu.metric_type();
            let named =
                encoder.encode_descriptor("process_cpu", about, Some(&Unit::Seconds), kind)?;
            cpu.encode(named)?;
            let about = "Memory that the process has in use";
            let resident = ("process_resident_memory", about, Some(Unit::Bytes));
            gauge(&mut encoder, resident, seen.resident_bytes)?;
            let about = "Threads of the process";
            gauge(&mut encoder, ("process_threads", about, None), seen.threads)?;
            let about = "Files and connections that the process has open";
            gauge(
                &mut encoder,
                ("process_open_fds", about, None),
                seen.open_fds,
            )?;
        }
        if let Ok(runtime) = Handle::try_current() {
            let runtime = runtime.metrics();
            let about = "Tasks that the broker runs";
            let tasks = runtime.num_alive_tasks() as u64;
            gauge(
                &mut encoder,
                ("leasehold_runtime_tasks", about, None),
                tasks,
            )?;
            let about = "Threads that run them";
            let workers = runtime.num_workers() as u64;
            gauge(
                &mut encoder,
                ("leasehold_runtime_workers", about, None),
                workers,
            )?;
        }
        Ok(())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    (name, about, unit): (&str, &str, Option<Unit>),
    value: u64,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let kind: MetricType = gauge.metric_type();
    gauge.encode(encoder.encode_descriptor(name, about, unit.as_ref(), kind)?)
}
