//! Tables of the results.

use std::{fmt, time::Duration};

use super::{KEPT_FOR, Peers, RunResult, driver::Run};
use crate::report::machine;

const MIB: f64 = 1_048_576.0;

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}.\n", machine())?;
        let versions = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"));
        writeln!(f, "{}.\n", versions.collect::<Vec<_>>().join(", "))?;
        writeln!(
            f,
            "Medians of {} interleaved rounds of {:?}. CPU is that of the peer and of its servers.\n",
            self.rounds, self.measured
        )?;
        self.pairs_table(f)?;
        self.hot_table(f)?;
        self.crash_table(f)?;
        self.idle_table(f)?;
        self.beside_table(f)
    }
}

impl Peers {
    fn pairs_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| callers | system | pairs/s | p50 ms | p99 ms | CPU µs a pair | of it the peer |"
        )?;
        writeln!(f, "| -: | -- | -: | -: | -: | -: | -: |")?;
        for ((count, system), rounds) in &self.pairs {
            write!(f, "| {count} | {} |", system.name())?;
            let Some(all) = ran(rounds) else {
                writeln!(f, " {} |  |  |  |  |", failure_reason(rounds))?;
                continue;
            };
            writeln!(
                f,
                " {:.0} | {} | {} | {:.0} | {:.0} |",
                median_of(&all, |run| self.per_second(run)),
                ms(median_of(&all, |run| run.quantile_us(50) as f64)),
                ms(median_of(&all, |run| run.quantile_us(99) as f64)),
                median_of(&all, Run::cpu_us_each),
                median_of(&all, |run| each(run.cpu[0], run)),
            )?;
        }
        writeln!(f)
    }

    fn hot_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| waiters | system | hand-offs/s | p50 ms | p99 ms | longest wait ms | Jain | CPU µs a hand-off | commands a hand-off |"
        )?;
        writeln!(f, "| -: | -- | -: | -: | -: | -: | -: | -: | -: |")?;
        for ((count, system), rounds) in &self.hot {
            write!(f, "| {count} | {} |", system.name())?;
            let Some(all) = ran(rounds) else {
                writeln!(f, " {} |  |  |  |  |  |  |", failure_reason(rounds))?;
                continue;
            };
            let commands = match system.is_broker() {
                true => format!("{:.2}", median_of(&all, Run::commands_each)),
                false => String::new(),
            };
            writeln!(
                f,
                " {:.0} | {} | {} | {} | {:.3} | {:.0} | {commands} |",
                median_of(&all, |run| self.per_second(run)),
                ms(median_of(&all, |run| run.quantile_us(50) as f64)),
                ms(median_of(&all, |run| run.quantile_us(99) as f64)),
                ms(median_of(&all, |run| run.output.longest_wait_us as f64)),
                median_of(&all, Run::jain),
                median_of(&all, Run::cpu_us_each),
            )?;
        }
        writeln!(f)
    }

    fn crash_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| system | from the holder's end to the next grant |")?;
        writeln!(f, "| -- | -: |")?;
        for (system, rounds) in &self.crash {
            let mut took: Vec<Duration> = rounds.iter().flatten().copied().collect();
            took.sort_unstable();
            let cell = match took.get(took.len() / 2) {
                Some(took) => format!("{:.3} s", took.as_secs_f64()),
                None => rounds
                    .iter()
                    .find_map(|one| one.clone().err())
                    .unwrap_or_default(),
            };
            writeln!(f, "| {} | {cell} |", system.name())?;
        }
        writeln!(f)
    }

    fn idle_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| locks kept | system | peer MiB | servers MiB | peer's cores | servers' cores |"
        )?;
        writeln!(f, "| -: | -- | -: | -: | -: | -: |")?;
        for ((count, system), ran) in &self.idle {
            write!(f, "| {count} | {} |", system.name())?;
            match ran {
                Err(reason) => writeln!(f, " {reason} |  |  |  |")?,
                Ok(run) => {
                    let mib = |bytes: &u64| format!("{:.0}", *bytes as f64 / MIB);
                    let of = run.bytes[1..].iter().map(mib).collect::<Vec<_>>();
                    let (own, of) = (mib(&run.bytes[0]), of.join(" + "));
                    writeln!(f, " {own} | {of} | {} |", cores(run))?;
                }
            }
        }
        writeln!(f)
    }

    fn beside_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| locks kept beside | pairs/s of 64 callers of Leasehold's Rust client | p50 ms | p99 ms | CPU µs a pair | peer's cores | servers' cores |"
        )?;
        writeln!(f, "| -: | -: | -: | -: | -: | -: | -: |")?;
        for (count, ran) in &self.beside {
            match ran {
                Err(reason) => writeln!(f, "| {count} | {reason} |  |  |  |  |  |")?,
                Ok(run) => writeln!(
                    f,
                    "| {count} | {:.0} | {} | {} | {:.0} | {} |",
                    run.output.done as f64 / KEPT_FOR.as_secs_f64(),
                    ms(run.quantile_us(50) as f64),
                    ms(run.quantile_us(99) as f64),
                    run.cpu_us_each(),
                    cores(run),
                )?,
            }
        }
        writeln!(f)
    }

    pub(super) fn per_second(&self, run: &Run) -> f64 {
        run.output.done as f64 / self.measured.as_secs_f64()
    }
}

/// Returns the rounds if all succeeded.
pub(super) fn ran(rounds: &[RunResult]) -> Option<Vec<&Run>> {
    let all: Result<Vec<_>, _> = rounds.iter().map(Result::as_ref).collect();
    all.ok()
}

fn failure_reason(rounds: &[RunResult]) -> &str {
    let reason = rounds.iter().find_map(|ran| ran.as_ref().err());
    reason.map_or("", String::as_str)
}

/// Returns the CPU use of the peer and of each of its servers, as two cells.
fn cores(run: &Run) -> String {
    let used = |cpu: &Duration| format!("{:.2}", cpu.as_secs_f64() / run.window.as_secs_f64());
    let servers: Vec<_> = run.cpu[1..].iter().map(used).collect();
    format!("{} | {}", used(&run.cpu[0]), servers.join(" + "))
}

fn each(cpu: Duration, run: &Run) -> f64 {
    cpu.as_secs_f64() * 1e6 / run.output.done.max(1) as f64
}

pub(super) fn median_of(rounds: &[&Run], of: impl Fn(&Run) -> f64) -> f64 {
    median(rounds.iter().map(|run| of(run)).collect())
}

pub(super) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn ms(micros: f64) -> String {
    format!("{:.3}", micros / 1e3)
}
