//! The fixture of abuse tests: a broker whose latency for control clients and whose memory are
//! measured before, during and after an abuse.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold::ClientTlsConfig;
use rustix::process::setpriority_process;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::sleep,
};

use crate::{
    broker::process::{BrokerOptions, BrokerProcess},
    clock::boottime,
    load::control_clients::{CallStatistics, ControlClientOptions, ControlClients},
    net::raw_http2::RawHttp2Options,
    redis::server::RedisServer,
    scale::{print_figures, scaled_duration},
};

/// Time for which control clients are measured without abuse.
const BASELINE_DURATION: Duration = Duration::from_millis(800);
/// Duration of a repeated abuse at full scale, and its minimum.
const ABUSE_DURATION: Duration = Duration::from_secs(5);
const ABUSE_DURATION_MIN: Duration = Duration::from_secs(1);
/// Pause before an abuser that was disconnected reconnects.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Tolerance of a p99 for scheduling delays, because Redis, broker, abuser and control clients
/// share two cores. In a debug build all work of the broker takes several times as long, including
/// the thousand calls of a reset flood.
const P99_TOLERANCE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 30 } else { 3 });
/// Number of calls from which the p99 is compared. With fewer calls a single stall of the machine,
/// which delays all connections, determines the p99, so the p95 is compared. The stalls of a debug
/// build are longer.
const P99_CALLS_MIN: usize = if cfg!(debug_assertions) { 4_000 } else { 2_000 };
/// Maximum growth of the broker's memory during an abuse, in bytes.
const MEMORY_GROWTH_MAX: u64 = 64 << 20;
/// Maximum growth that may remain after [`MEMORY_FREED_WITHIN`], in bytes. The allocator keeps
/// pages that were freed recently (with `MIMALLOC_PURGE_DELAY=0` it does not, and 16 MiB are
/// enough).
const REMAINING_GROWTH_MAX: u64 = 24 << 20;
/// Time within which memory is freed. The broker drops a client that leaves without reading after a
/// reply was unread for 15 s.
const MEMORY_FREED_WITHIN: Duration = Duration::from_secs(20);
/// A p99 up to this value always passes.
const P99_ALWAYS_ACCEPTED: Duration = Duration::from_millis(20);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Nice value of the abuser's thread: the lowest priority, so that it does not delay the broker and
/// its clients.
const LOWEST_PRIORITY: i32 = 19;

/// Serializes the measurements of abuses.
static MEASUREMENT_LOCK: Mutex<()> = Mutex::const_new(());

/// A broker and its control clients.
pub struct AbuseFixture {
    pub broker: BrokerProcess,
    _redis: RedisServer,
    control_clients: ControlClients,
    memory: MemorySampler,
    /// Latency of the control clients without other callers, and beside the callers with which an
    /// abuse is compared.
    baseline: CallStatistics,
    reference: CallStatistics,
    _measurement: MutexGuard<'static, ()>,
}

/// One run of an abuse.
#[derive(Debug, Clone, Default)]
pub struct AbuseRun {
    /// Number of frames, calls, connections or bytes that the broker accepted.
    pub accepted: usize,
    /// Time after which the broker closed the connection.
    pub closed_after: Duration,
    /// Error code of the broker's GOAWAY frame, if it sent one.
    pub go_away: Option<u32>,
}

impl AbuseFixture {
    /// Starts a broker on its own Redis, and its control clients. Sets the calling thread,
    /// which runs the abuse, to the lowest priority, because an abuser elsewhere has a machine of
    /// its own.
    pub async fn start(options: BrokerOptions, tls: Option<ClientTlsConfig>) -> Self {
        Self::start_with(options, tls, None).await
    }

    /// Starts a broker that requires tokens, and control clients with this token.
    pub async fn start_with_token(options: BrokerOptions, token: &str) -> Self {
        Self::start_with(options, None, Some(token.to_owned())).await
    }

    async fn start_with(
        mut options: BrokerOptions,
        tls: Option<ClientTlsConfig>,
        token: Option<String>,
    ) -> Self {
        let turn = MEASUREMENT_LOCK.lock().await;
        let redis = RedisServer::start().await;
        options.store = redis.url();
        options.init_store().await;
        let broker = BrokerProcess::start(&options).await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", broker.addr());
        let control_clients =
            ControlClients::start(&ControlClientOptions { url, tls, token }).await;
        sleep(BASELINE_DURATION).await;
        let _warm_up = control_clients.measure().await;
        sleep(BASELINE_DURATION).await;
        let calm = control_clients.measure().await;
        let memory = MemorySampler::start(broker.process().pid());
        setpriority_process(None, LOWEST_PRIORITY).expect("anybody may yield");
        Self {
            broker,
            _redis: redis,
            control_clients,
            memory,
            reference: calm.clone(),
            baseline: calm,
            _measurement: turn,
        }
    }

    /// Returns the parameters for a raw HTTP/2 connection to the broker.
    #[must_use]
    pub fn connection_options(&self) -> RawHttp2Options {
        RawHttp2Options::new(self.broker.addr())
    }

    /// Measures the control clients beside an honest crowd, as the reference for later abuses.
    pub async fn measure_reference(&mut self, crowd: impl Future<Output = ()>) {
        self.control_clients.reset_calls();
        crowd.await;
        self.reference = self.control_clients.measure().await;
        sleep(BASELINE_DURATION).await;
        self.control_clients.reset_calls();
    }

    /// Waits until the memory of earlier abuses is freed, and restarts the measurement of the
    /// maximum.
    pub async fn wait_until_memory_freed(&mut self) {
        let started_at = boottime();
        while self.memory.current_growth() > REMAINING_GROWTH_MAX {
            let more = mib(self.memory.current_growth());
            assert!(
                boottime() - started_at < MEMORY_FREED_WITHIN,
                "{more:.1} MiB stay"
            );
            sleep(SAMPLE_INTERVAL).await;
        }
        self.memory.reset_max();
    }

    /// Repeats an abuse, reconnecting as fast as the broker permits.
    pub async fn repeat_abuse(&mut self, name: &str, mut abuse: impl AsyncFnMut() -> AbuseRun) {
        let (started_at, mut attempts) = (boottime(), Vec::new());
        while boottime() - started_at < scaled_duration(ABUSE_DURATION, ABUSE_DURATION_MIN) {
            attempts.push(abuse().await);
            sleep(RECONNECT_PAUSE).await;
        }
        self.check_abuse(name, &attempts).await;
    }

    /// Compares calls of control clients during the abuse with the reference of
    /// [`Self::measure_reference`], or else with calls before all abuse. Calls after the abuse are
    /// compared with calls before all abuse.
    pub async fn check_abuse(&mut self, name: &str, attempts: &[AbuseRun]) {
        let during = self.control_clients.measure().await;
        sleep(BASELINE_DURATION).await;
        let after = self.control_clients.measure().await;
        let grown = self.memory.max_growth();
        let taken: usize = attempts.iter().map(|attempt| attempt.accepted).sum();
        let slowest = attempts.iter().map(|attempt| attempt.closed_after).max();
        let go_away_codes: std::collections::BTreeSet<_> = attempts
            .iter()
            .filter_map(|attempt| attempt.go_away)
            .collect();
        let (before, compared) = (self.baseline.p99, self.reference.p99);
        print_figures(&format!(
            "abuse: {name}: {} times, {taken} taken, cut after at most {} ms, said {go_away_codes:?}; bystanders' p99 \
             {:.1} ms before, {:.1} beside honest ones, {:.1} during ({} calls, {:.0} at most), {:.1} after; memory +{:.1} MiB at most, +{:.1} now",
            attempts.len(),
            slowest.unwrap_or_default().as_millis(),
            ms(before),
            ms(compared),
            ms(during.p99),
            during.calls,
            ms(during.max),
            ms(after.p99),
            mib(grown),
            mib(self.memory.current_growth()),
        ));
        assert!(taken > 0, "{name}: nothing happened");
        for (when, served, than) in [("during", &during, compared), ("after", &after, before)] {
            assert!(served.failures.is_empty(), "{name}: {:?}", served.failures);
            let most = (than * 2 + P99_TOLERANCE).max(P99_ALWAYS_ACCEPTED);
            let slow = if served.calls < P99_CALLS_MIN {
                served.p95
            } else {
                served.p99
            };
            assert!(slow <= most, "{name}: {slow:?} instead of {most:?} {when}");
        }
        assert!(grown <= MEMORY_GROWTH_MAX, "{name}: {grown} bytes more");
    }

    /// Stops the control clients, and asserts that they still held all their leases.
    pub async fn finish(self) {
        let failures = self.control_clients.stop().await;
        assert!(failures.is_empty(), "{failures:?}");
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Sampled resident memory of a process: its growth and its maximum.
struct MemorySampler {
    pid: u32,
    initial: u64,
    max: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl MemorySampler {
    fn start(pid: u32) -> Self {
        let initial = resident_bytes(pid).expect("the broker runs");
        let (max, stop) = (
            Arc::new(AtomicU64::new(initial)),
            Arc::<AtomicBool>::default(),
        );
        let (highest, over) = (Arc::clone(&max), Arc::clone(&stop));
        std::thread::spawn(move || {
            while let Some(now) = resident_bytes(pid).filter(|_| !over.load(Ordering::Relaxed)) {
                highest.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self {
            pid,
            initial,
            max,
            stop,
        }
    }

    /// Restarts the measurement of the maximum.
    fn reset_max(&self) {
        let now = resident_bytes(self.pid).unwrap_or_default();
        self.max.store(now.max(self.initial), Ordering::Relaxed);
    }

    /// Returns the current growth since the start.
    fn current_growth(&self) -> u64 {
        resident_bytes(self.pid).map_or(0, |now| now.saturating_sub(self.initial))
    }

    fn max_growth(&self) -> u64 {
        self.max.load(Ordering::Relaxed) - self.initial
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}
