//! Figures of the first sentences and the charts of the page.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    Peers, Rounds, RunResult,
    driver::Run,
    systems::System,
    table::{median, median_of, ran},
};
use crate::report::thousands;

pub(super) const CALLERS: usize = 64;
pub(super) const WAITERS: usize = 1_000;
pub(super) const KEPT: usize = 100_000;
/// Client whose figures the sentences compare with those of other systems.
const OURS: System = System::Client;

/// One figure of each system.
pub(super) type Figures = BTreeMap<System, f64>;

/// Medians of the systems that can queue or poll for a lock. Systems whose runs failed have none.
pub(super) struct Summary {
    /// Latency of a pair of one caller.
    pub(super) p50_ms: Figures,
    /// Pairs a second of [`CALLERS`] callers.
    pub(super) pairs: Figures,
    /// Hand-offs a second with [`WAITERS`] waiters.
    pub(super) hand_offs: Figures,
    pub(super) jain: Figures,
    pub(super) longest_wait_ms: Figures,
    /// Time from the death of a holder to the next grant.
    pub(super) takeover_s: Figures,
    /// Cores that servers and client use for [`KEPT`] leases.
    pub(super) kept_cores: Figures,
}

impl Peers {
    pub(super) fn summary(&self) -> Summary {
        let rate = |run: &Run| self.per_second(run);
        let p50_ms = |run: &Run| run.quantile_us(50) as f64 / 1e3;
        let longest_wait_ms = |run: &Run| run.output.longest_wait_us as f64 / 1e3;
        let seconds = |took: &Duration| took.as_secs_f64();
        let takeover = |(system, rounds): (&System, &Vec<Result<Duration, String>>)| {
            let took: Vec<_> = rounds.iter().flatten().map(seconds).collect();
            (!took.is_empty()).then(|| (*system, median(took)))
        };
        let cores = |((count, system), run): (&(usize, System), &RunResult)| {
            let run = run.as_ref().ok().filter(|_| *count == KEPT)?;
            let used: Duration = run.cpu.iter().sum();
            Some((*system, used.as_secs_f64() / run.window.as_secs_f64()))
        };
        Summary {
            p50_ms: medians(&self.pairs, 1, p50_ms),
            pairs: medians(&self.pairs, CALLERS, rate),
            hand_offs: medians(&self.hot, WAITERS, rate),
            jain: medians(&self.hot, WAITERS, Run::jain),
            longest_wait_ms: medians(&self.hot, WAITERS, longest_wait_ms),
            takeover_s: self.crash.iter().filter_map(takeover).collect(),
            kept_cores: self.idle.iter().filter_map(cores).collect(),
        }
    }
}

fn medians(rounds: &Rounds, count: usize, figure: impl Fn(&Run) -> f64) -> Figures {
    let those = rounds
        .iter()
        .filter(|((of, system), _)| *of == count && system.waits());
    let medians = those
        .filter_map(|((_, system), rounds)| Some((*system, median_of(&ran(rounds)?, &figure))));
    medians.collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentences = [
            self.latency(),
            self.throughput(),
            self.fairness(),
            self.takeover(),
            self.cost(),
        ];
        sentences
            .into_iter()
            .flatten()
            .try_for_each(|sentence| writeln!(f, "- {sentence}"))
    }
}

/// Sentences about Leasehold's Rust client and the other systems. There is none without a figure of
/// the client; other systems without a figure are left out.
impl Summary {
    fn latency(&self) -> Option<String> {
        let ms = |_, ms: f64| format!("{ms:.3} ms");
        let own = self.p50_ms.get(&OURS)?;
        let (less, more) = sides(&self.p50_ms)?;
        let reason = match less.keys().all(|system| system.has_no_server()) {
            true => ", which send their commands to Redis themselves",
            false => "",
        };
        Some(format!(
            "**Latency of one caller**: to acquire and release a free lock takes {} (p50) with Leasehold's Rust \
             client{}{}.",
            ms(OURS, *own),
            clause(", more with ", &listed(&more, ms), ""),
            clause(", less with ", &listed(&less, ms), reason),
        ))
    }

    fn throughput(&self) -> Option<String> {
        let rate = |_, rate: f64| thousands(rate);
        let own = self.pairs.get(&OURS)?;
        let (less, more) = sides(&self.pairs)?;
        let reason = match more.keys().all(|system| system.sets_one_key()) {
            true => ", which have neither a queue nor a rising token",
            false => "",
        };
        Some(format!(
            "**Throughput of {CALLERS} callers**: Leasehold's Rust client handles {} pairs/s{}{}.",
            rate(OURS, *own),
            clause(", more than ", &listed(&less, rate), ""),
            clause(", less than ", &listed(&more, rate), reason),
        ))
    }

    fn fairness(&self) -> Option<String> {
        let figures = |system, rate: f64| {
            let jain = self.jain.get(&system).copied().unwrap_or_default();
            format!("{}, index {jain:.3}", thousands(rate))
        };
        let own = self.hand_offs.get(&OURS)?;
        let (less, more) = sides(&self.hand_offs)?;
        let longest_s = self.longest_wait_ms.get(&OURS)? / 1e3;
        Some(format!(
            "**Fairness of a hot lock with {} waiters**: Leasehold's Rust client has {} hand-offs/s, a Jain's index of \
             {:.3} and a longest wait of {longest_s:.1} s{}{}.",
            thousands(WAITERS as f64),
            thousands(*own),
            self.jain.get(&OURS)?,
            clause("; fewer hand-offs/s have ", &listed(&less, figures), ""),
            clause("; more have ", &listed(&more, figures), ""),
        ))
    }

    fn takeover(&self) -> Option<String> {
        let seconds = |_, seconds: f64| format!("{seconds:.1} s");
        let own = self.takeover_s.get(&OURS)?;
        let (less, more) = sides(&self.takeover_s)?;
        let unary = self.takeover_s.get(&System::Unary);
        let unary = unary.map_or_else(String::new, |took| seconds(System::Unary, *took));
        Some(format!(
            "**After the death of a holder** the next caller has the lock within {} with Leasehold's Rust client{}{}{}.",
            seconds(OURS, *own),
            clause(
                " (",
                &unary,
                " with unary calls, which have no stream that breaks)"
            ),
            clause(", later with ", &listed(&more, seconds), ""),
            clause(", earlier with ", &listed(&less, seconds), ""),
        ))
    }

    fn cost(&self) -> Option<String> {
        let cores = |_, cores: f64| format!("{cores:.2}");
        let own = self.kept_cores.get(&OURS)?;
        let (less, more) = sides(&self.kept_cores)?;
        Some(format!(
            "**Cost of {} kept leases**: servers and client use {} cores with Leasehold's Rust client{}{}.",
            thousands(KEPT as f64),
            cores(OURS, *own),
            clause(", more with ", &listed(&more, cores), ""),
            clause(", fewer with ", &listed(&less, cores), ""),
        ))
    }
}

/// Returns the other systems whose figures are less than that of Leasehold's client, and those
/// whose figures are not. Returns `None` without a figure of the client.
fn sides(figures: &Figures) -> Option<(Figures, Figures)> {
    let own = *figures.get(&OURS)?;
    let others = figures.iter().filter(|(system, _)| !system.is_ours());
    Some(others.partition(|(_, figure)| **figure < own))
}

/// Returns the systems and their figures as a list in a sentence. A long list consists of the systems
/// with the smallest and the largest figure.
fn listed(figures: &Figures, shown: impl Fn(System, f64) -> String) -> String {
    let mut ascending: Vec<_> = figures.iter().collect();
    ascending.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let one = |(system, figure): (&System, &f64)| {
        format!("{} ({})", system.name(), shown(*system, *figure))
    };
    let all: Vec<_> = ascending.into_iter().map(one).collect();
    match &*all {
        [] => String::new(),
        [one] => one.clone(),
        [one, other] => format!("{one} and {other}"),
        [one, middle, other] => format!("{one}, {middle} and {other}"),
        [first, .., last] => format!("{} systems, from {first} to {last}", all.len()),
    }
}

/// Returns a part of a sentence, or nothing if its list is empty.
fn clause(before: &str, list: &str, after: &str) -> String {
    match list {
        "" => String::new(),
        _ => format!("{before}{list}{after}"),
    }
}
