//! A closed loop of callers, each of which acquires and releases its own lock.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

const WARM_UP: Duration = Duration::from_millis(300);
/// Default measured time of a round.
const MEASURED: Duration = Duration::from_millis(1_500);

/// A caller in a closed loop.
pub(crate) trait Pair: Send + 'static {
    /// Acquires and releases the lock.
    fn pair(&mut self) -> impl Future<Output = ()> + Send;
}

/// Results of one round of one target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Sample {
    /// Creates a sample from the `latencies` of calls that were sent within `window`.
    pub(crate) fn of(mut latencies: Vec<Duration>, window: Duration) -> Self {
        assert!(!latencies.is_empty(), "nothing happened in {window:?}");
        latencies.sort_unstable();
        let quantile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
        let per_second = latencies.len() as f64 / window.as_secs_f64();
        Self {
            per_second,
            p50: quantile(50),
            p99: quantile(99),
        }
    }
}

/// Runs all callers at once, each one pair after another. Returns the latencies of pairs that began
/// between `begin` and `end`.
pub(crate) async fn latencies<P: Pair>(
    callers: Vec<P>,
    [begin, end]: [Instant; 2],
) -> Vec<Duration> {
    let mut tasks: JoinSet<_> = callers
        .into_iter()
        .map(|caller| one_caller(caller, begin, end))
        .collect();
    let mut latencies = Vec::new();
    while let Some(of_one) = tasks.join_next().await {
        latencies.extend(of_one.expect("a caller ends"));
    }
    latencies
}

/// Runs one round of the default length.
pub(crate) async fn run<P: Pair>(callers: Vec<P>) -> Sample {
    run_for(callers, MEASURED).await
}

/// Runs one round of the length `measured`.
pub(crate) async fn run_for<P: Pair>(callers: Vec<P>, measured: Duration) -> Sample {
    let begin = Instant::now() + WARM_UP;
    let latencies = latencies(callers, [begin, begin + measured]).await;
    Sample::of(latencies, measured)
}

async fn one_caller<P: Pair>(mut caller: P, begin: Instant, end: Instant) -> Vec<Duration> {
    let mut latencies = Vec::new();
    loop {
        let sent = Instant::now();
        if sent >= end {
            return latencies;
        }
        caller.pair().await;
        if sent >= begin {
            latencies.push(sent.elapsed());
        }
    }
}
