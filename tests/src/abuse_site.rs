//! A broker under abuse: who stands by is measured before, during and after, and so is its memory.

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
    broker_process::{BrokerOptions, BrokerProcess},
    bystanders::{Bystanders, Reach, Served},
    clock::boottime,
    raw_http2::Opening,
    redis_server::RedisServer,
    scale::{duration, figures},
};

/// How long bystanders are looked at while nobody does them harm.
const CALM: Duration = Duration::from_millis(800);
/// How long an abuse goes on, again and again, at full scale and at least.
const DURING: Duration = Duration::from_secs(5);
const DURING_LEAST: Duration = Duration::from_secs(1);
/// An abuser that was cut comes back after this.
const BACK: Duration = Duration::from_millis(20);
/// Two cores carry Redis, broker, abuser and bystanders: so much of a p99 is the scheduler's, which lets
/// somebody else go first. In a build that is hardly optimised all that the broker does takes several times
/// as long, the thousand calls of a flood of resets too.
const NOISE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 30 } else { 3 });
/// Of fewer calls one stall of the machine, which hits the calls of all connections, makes the p99: the
/// p95 is compared then. The stalls of a build that is hardly optimised are longer.
const MANY: usize = if cfg!(debug_assertions) { 4_000 } else { 2_000 };
/// What an abuse may cost in memory.
const GROWTH_MAX: u64 = 64 << 20;
/// What may be left of that after [`SETTLES_WITHIN`]: the allocator keeps pages that were free a moment ago (with
/// `MIMALLOC_PURGE_DELAY=0` it does not, and 16 MiB are enough).
const SETTLED: u64 = 24 << 20;
/// A client that leaves while it is not read is gone for the broker when an answer was unread for 15 s.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
/// A p99 that is never too slow.
const FLOOR: Duration = Duration::from_millis(20);
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Where nobody is in the way of the broker and its clients.
const LAST: i32 = 19;

/// Abuses are measured one after the other.
static TURN: Mutex<()> = Mutex::const_new(());

/// A broker and its bystanders.
pub struct Site {
    /// The broker.
    pub broker: BrokerProcess,
    _redis: RedisServer,
    bystanders: Bystanders,
    memory: Memory,
    /// How bystanders were served while nobody else called, and beside those whom an abuse is compared with.
    calm: Served,
    compared: Served,
    _turn: MutexGuard<'static, ()>,
}

/// One go of an abuse.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// Frames, calls, connections or bytes of it that the broker has taken.
    pub taken: usize,
    /// How long the broker took to cut it.
    pub cut_after: Duration,
    /// What the broker said.
    pub go_away: Option<u32>,
}

impl Site {
    /// Starts a broker on a Redis of its own, and its bystanders. From then on this thread, the abuser's, yields to everybody
    /// else: elsewhere it has a machine of its own.
    pub async fn start(options: BrokerOptions, tls: Option<ClientTlsConfig>) -> Self {
        Self::start_with(options, tls, None).await
    }

    /// Starts a broker whose callers show a token, and bystanders with this one.
    pub async fn start_guarded(options: BrokerOptions, token: &str) -> Self {
        Self::start_with(options, None, Some(token.to_owned())).await
    }

    async fn start_with(
        mut options: BrokerOptions,
        tls: Option<ClientTlsConfig>,
        token: Option<String>,
    ) -> Self {
        let turn = TURN.lock().await;
        let redis = RedisServer::start().await;
        options.store = redis.url();
        options.init_store().await;
        let broker = BrokerProcess::start(&options).await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", broker.addr());
        let bystanders = Bystanders::start(&Reach { url, tls, token }).await;
        sleep(CALM).await;
        let _warm_up = bystanders.served().await;
        sleep(CALM).await;
        let calm = bystanders.served().await;
        let memory = Memory::watch(broker.process().pid());
        setpriority_process(None, LAST).expect("anybody may yield");
        Self {
            broker,
            _redis: redis,
            bystanders,
            memory,
            compared: calm.clone(),
            calm,
            _turn: turn,
        }
    }

    /// How to reach the broker with frames.
    #[must_use]
    pub fn opening(&self) -> Opening {
        Opening::to(self.broker.addr())
    }

    /// Compares abuses from now on with what bystanders get beside an honest crowd.
    pub async fn works(&mut self, crowd: impl Future<Output = ()>) {
        self.bystanders.forget_calls();
        crowd.await;
        self.compared = self.bystanders.served().await;
        sleep(CALM).await;
        self.bystanders.forget_calls();
    }

    /// Waits until the broker has given back what earlier abuses cost, and measures memory from there.
    pub async fn settles(&mut self) {
        let began = boottime();
        while self.memory.now() > SETTLED {
            let more = mib(self.memory.now());
            assert!(boottime() - began < SETTLES_WITHIN, "{more:.1} MiB stay");
            sleep(SAMPLE_EVERY).await;
        }
        self.memory.forget_most();
    }

    /// Abuses the broker again and again, as fast as it lets the abuser come back.
    pub async fn suffers(&mut self, name: &str, mut abuse: impl AsyncFnMut() -> Attempt) {
        let (began, mut attempts) = (boottime(), Vec::new());
        while boottime() - began < duration(DURING, DURING_LEAST) {
            attempts.push(abuse().await);
            sleep(BACK).await;
        }
        self.suffered(name, &attempts).await;
    }

    /// Compares calls of bystanders during the abuse with those beside honest callers, where [`Self::works`] has measured
    /// them, and calls after it with those before all abuse.
    pub async fn suffered(&mut self, name: &str, attempts: &[Attempt]) {
        let during = self.bystanders.served().await;
        sleep(CALM).await;
        let after = self.bystanders.served().await;
        let grown = self.memory.grown();
        let taken: usize = attempts.iter().map(|attempt| attempt.taken).sum();
        let slowest = attempts.iter().map(|attempt| attempt.cut_after).max();
        let said: std::collections::BTreeSet<_> = attempts
            .iter()
            .filter_map(|attempt| attempt.go_away)
            .collect();
        let (before, compared) = (self.calm.p99, self.compared.p99);
        figures(&format!(
            "abuse: {name}: {} times, {taken} taken, cut after at most {} ms, said {said:?}; bystanders' p99 \
             {:.1} ms before, {:.1} beside honest ones, {:.1} during ({} calls, {:.0} at most), {:.1} after; memory +{:.1} MiB at most, +{:.1} now",
            attempts.len(),
            slowest.unwrap_or_default().as_millis(),
            ms(before),
            ms(compared),
            ms(during.p99),
            during.calls,
            ms(during.most),
            ms(after.p99),
            mib(grown),
            mib(self.memory.now()),
        ));
        assert!(taken > 0, "{name}: nothing happened");
        for (when, served, than) in [("during", &during, compared), ("after", &after, before)] {
            assert!(served.failures.is_empty(), "{name}: {:?}", served.failures);
            let most = (than * 2 + NOISE).max(FLOOR);
            let slow = if served.calls < MANY {
                served.p95
            } else {
                served.p99
            };
            assert!(slow <= most, "{name}: {slow:?} instead of {most:?} {when}");
        }
        assert!(grown <= GROWTH_MAX, "{name}: {grown} bytes more");
    }

    /// Sends the bystanders home, who still hold all that they held.
    pub async fn end(self) {
        let failures = self.bystanders.leave().await;
        assert!(failures.is_empty(), "{failures:?}");
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The resident memory of a process, sampled: how much more it is at most than at the beginning.
struct Memory {
    pid: u32,
    began: u64,
    most: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Memory {
    fn watch(pid: u32) -> Self {
        let began = resident(pid).expect("the broker runs");
        let (most, ends) = (
            Arc::new(AtomicU64::new(began)),
            Arc::<AtomicBool>::default(),
        );
        let (highest, over) = (Arc::clone(&most), Arc::clone(&ends));
        std::thread::spawn(move || {
            while let Some(now) = resident(pid).filter(|_| !over.load(Ordering::Relaxed)) {
                highest.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        Self {
            pid,
            began,
            most,
            ends,
        }
    }

    /// Measures the most from now on.
    fn forget_most(&self) {
        let now = resident(self.pid).unwrap_or_default();
        self.most.store(now.max(self.began), Ordering::Relaxed);
    }

    /// How much more it is now.
    fn now(&self) -> u64 {
        resident(self.pid).map_or(0, |now| now.saturating_sub(self.began))
    }

    fn grown(&self) -> u64 {
        self.most.load(Ordering::Relaxed) - self.began
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}
