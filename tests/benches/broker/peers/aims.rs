//! Aims of the figures, and whether the figures meet them.

use std::fmt;

use super::{
    Peers,
    driver::Run,
    systems::System,
    table::{MIB, median_of, ran},
};
use crate::report::verdict;

pub(super) const CALLERS: usize = 64;
const WAITERS: usize = 1_000;
const KEPT: usize = 100_000;
/// Minimum number of waiters for the aim of a constant number of commands for each hand-off.
const LINE: usize = 10;

/// A lower or upper bound of a ratio.
struct Aim {
    what: String,
    figure: Option<f64>,
    is_least: bool,
    aim: f64,
}

pub(super) fn aims(peers: &Peers, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "| aim | figure | to be | |")?;
    writeln!(f, "|---|--:|--:|---|")?;
    let mut all = pairs(peers);
    all.extend(hot(peers));
    all.extend(commands(peers));
    all.extend(kept(peers));
    for aim in all {
        let Some(figure) = aim.figure else {
            writeln!(f, "| {} | not measured | | |", aim.what)?;
            continue;
        };
        // Rounded as in the table.
        let figure = (figure * 100.0).round() / 100.0;
        let (sign, is_met) = match aim.is_least {
            true => ("at least", figure >= aim.aim),
            false => ("at most", figure <= aim.aim),
        };
        let (what, least) = (&aim.what, aim.aim);
        writeln!(
            f,
            "| {what} | {figure:.2} | {sign} {least} | {} |",
            verdict(is_met)
        )?;
    }
    writeln!(f)
}

fn pairs(peers: &Peers) -> Vec<Aim> {
    let of = |system| {
        let all = ran(peers.pairs.get(&(CALLERS, system))?)?;
        Some(median_of(&all, |run| peers.per_second(run)))
    };
    let aims = [
        (System::Stream, System::Etcd, 5.0),
        (System::Stream, System::Scripts, 1.0),
        (System::Stream, System::Redlock, 1.0),
        (System::Stream, System::Redisson, 3.0),
        (System::Unary, System::Etcd, 4.0),
        (System::Unary, System::Scripts, 0.7),
        (System::MemoryStream, System::EchoStream, 0.6),
    ];
    let ratio = |(one, other, aim): (System, System, f64)| {
        let figure = of(one).zip(of(other)).and_then(over);
        least(
            format!(
                "pairs/s, {CALLERS} callers: {} ÷ {}",
                one.name(),
                other.name()
            ),
            figure,
            aim,
        )
    };
    let mut all: Vec<_> = aims.map(ratio).into();
    let p50 = |system| {
        let all = ran(peers.pairs.get(&(1, system))?)?;
        Some(median_of(&all, |run| run.quantile_us(50) as f64))
    };
    let parts = p50(System::Echo).zip(p50(System::Scripts));
    let figure = p50(System::Unary)
        .zip(parts)
        .map(|(own, (echo, scripts))| own / (echo + scripts));
    all.push(most(
        "p50, 1 caller: unary ÷ (echo + scripts)".to_owned(),
        figure,
        1.2,
    ));
    all
}

fn hot(peers: &Peers) -> Vec<Aim> {
    let of = |system, of: &dyn Fn(&Run) -> f64| {
        let all = ran(peers.hot.get(&(WAITERS, system))?)?;
        Some(median_of(&all, of))
    };
    let rate = |run: &Run| peers.per_second(run);
    let mut all = Vec::new();
    for own in [System::Stream, System::Unary] {
        let what = |what: &str| format!("{WAITERS} waiters, {}: {what}", own.name());
        all.push(least(what("hand-offs/s"), of(own, &rate), 10_000.0));
        let p99 = of(own, &|run| run.quantile_us(99) as f64 / 1e3);
        all.push(most(what("p99 ms from release to grant"), p99, 2.0));
        all.push(least(what("Jain's index"), of(own, &Run::jain), 0.99));
        for other in [System::Etcd, System::RedissonFair] {
            let figure = of(own, &rate).zip(of(other, &rate)).and_then(over);
            all.push(least(what(&format!("÷ {}", other.name())), figure, 20.0));
        }
    }
    all
}

fn commands(peers: &Peers) -> Vec<Aim> {
    let lines = peers
        .hot
        .iter()
        .filter(|((count, system), _)| *count >= LINE && system.is_broker());
    let aim = lines.map(|((count, system), rounds)| {
        let figure = ran(rounds).map(|all| median_of(&all, Run::commands_each));
        let what = format!("commands a hand-off, {count} waiters, {}", system.name());
        most(what, figure, 2.0)
    });
    aim.collect()
}

/// Aims for the broker, which is the first of the servers.
fn kept(peers: &Peers) -> Vec<Aim> {
    let run = peers.idle.get(&(KEPT, System::Client));
    let run = run.and_then(|ran| ran.as_ref().ok());
    let mib = run.map(|run| run.bytes[1] as f64 / MIB);
    let cores = run.map(|run| run.cpu[1].as_secs_f64() / run.window.as_secs_f64());
    let what = |what: &str| format!("{KEPT} leases kept: {what} of the broker");
    vec![
        most(what("MiB"), mib, 600.0),
        most(what("cores"), cores, 1.0),
    ]
}

/// Returns `None` if the other system did nothing, because there is no ratio then.
fn over((own, other): (f64, f64)) -> Option<f64> {
    (other > 0.0).then(|| own / other)
}

fn least(what: String, figure: Option<f64>, aim: f64) -> Aim {
    let is_least = true;
    Aim {
        what,
        figure,
        is_least,
        aim,
    }
}

fn most(what: String, figure: Option<f64>, aim: f64) -> Aim {
    let is_least = false;
    Aim {
        what,
        figure,
        is_least,
        aim,
    }
}
