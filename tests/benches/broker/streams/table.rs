//! Tables of the lease streams: medians, ratios, memory of a lease, and cost of its renewal.

use std::fmt;

use super::{CallPath, Leases, Streams, leases::HeldStreams};
use crate::{
    pairs::Sample,
    report::{machine, median, ms},
};

impl fmt::Display for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        writeln!(
            f,
            "Medians of {} interleaved rounds, broker on Redis. Callers share 4 streams; each waiter of a\n\
             hand-off has its own stream with a heartbeat every 2 s. An echo answers each message with one.\n",
            self.rounds
        )?;
        writeln!(
            f,
            "| {:36} | {:>7} | {:>8} | {:>7} | {:>7} | {:>7} | {:>6} |",
            "what", "callers", "per s", "p50 ms", "p99 ms", "÷ unary", "÷ echo"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        for (&(callers, by), rounds) in &self.pairs {
            let share = |of| ratio(rounds, &self.pairs[&(callers, of)]);
            let (unary, echo) = (share(CallPath::Unary), share(CallPath::Echo));
            let what = match by {
                CallPath::Unary => "pairs: unary calls",
                CallPath::Echo => "pairs: bare echo stream",
                CallPath::Stream => "pairs: streams",
            };
            row(
                f,
                (what, callers),
                &median(rounds),
                &[cell(unary), cell(echo)],
            )?;
        }
        for (&(waiters, by), rounds) in &self.hand_offs {
            let unary = ratio(rounds, &self.hand_offs[&(waiters, CallPath::Unary)]);
            let what = match by {
                CallPath::Unary => "hand-offs: unary calls",
                CallPath::Stream | CallPath::Echo => "hand-offs: streams",
            };
            let rest = [cell(unary), String::new()];
            row(f, (what, waiters), &median(rounds), &rest)?;
        }
        Ok(())
    }
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        self.show_occupied(f)?;
        writeln!(f)?;
        self.show_kept(f)
    }
}

impl Leases {
    /// Writes the table of memory.
    fn show_occupied(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Idle leases: one broker, ttl 15 s, a heartbeat every 5 s, those of all streams spread evenly; each\n\
             table row with a new broker and a new Redis. Bytes are what broker (resident) and Redis (used_memory)\n\
             have grown by, per lease.\n"
        )?;
        writeln!(
            f,
            "| streams x leases | connections | acquired in s | broker MiB before | after | Redis MiB before | after | broker B/lease | Redis B/lease | all-in |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
        for held in &self.0 {
            let [empty, _, full] = &held.usage;
            let per_lease = |from: u64, to: u64| {
                let taken = held.shape.leases() - held.refused.len();
                to.saturating_sub(from) as f64 / taken as f64
            };
            let broker = per_lease(empty.broker_bytes, full.broker_bytes);
            let redis = per_lease(empty.redis_bytes, full.redis_bytes);
            writeln!(
                f,
                "| {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {broker:.0} | {redis:.0} | {:.0} |",
                shape(held),
                held.shape.connections(),
                held.taken_in.as_secs_f64(),
                mib(empty.broker_bytes),
                mib(full.broker_bytes),
                mib(empty.redis_bytes),
                mib(full.redis_bytes),
                broker + redis,
            )?;
        }
        Ok(())
    }

    /// Writes the table of CPU time and renewals.
    fn show_kept(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "CPU in seconds per second; a renewal is one lease acknowledged to the client. The latency is from the\n\
             sending of the heartbeat to the receipt of the acknowledgement. Lost: ended, or once out of validity.\n"
        )?;
        writeln!(
            f,
            "| streams x leases | window s | CPU broker | Redis | client | renewals/s | scripts/s | broker µs/renewal | Redis µs/renewal | µs/script | p50 ms | p99 ms | not acquired | lost |"
        )?;
        writeln!(
            f,
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        for held in &self.0 {
            let [_, begin, end] = &held.usage;
            let seconds = held.window.as_secs_f64();
            let [broker, redis, client] =
                [0, 1, 2].map(|at| (end.cpu[at] - begin.cpu[at]).as_secs_f64() / seconds);
            let Sample {
                per_second,
                p50,
                p99,
            } = held.renewals.expect("every stream has leases");
            let scripts = (end.scripts - begin.scripts) as f64;
            let in_scripts = (end.script_time - begin.script_time).as_secs_f64();
            let micros = |cpu: f64| cpu * 1e6 / per_second;
            writeln!(
                f,
                "| {} | {seconds:.1} | {broker:.2} | {redis:.2} | {client:.2} | {per_second:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {} | {} | {} | {} |",
                shape(held),
                scripts / seconds,
                micros(broker),
                micros(redis),
                in_scripts * 1e6 / scripts,
                ms(p50),
                ms(p99),
                held.refused.len(),
                held.lost,
            )?;
        }
        for held in &self.0 {
            if let Some(first) = held.refused.first() {
                writeln!(f, "\n{}: not acquired at first: {first}", shape(held))?;
            }
        }
        Ok(())
    }
}

fn row(
    f: &mut fmt::Formatter<'_>,
    (what, callers): (&str, usize),
    sample: &Sample,
    [unary, echo]: &[String; 2],
) -> fmt::Result {
    writeln!(
        f,
        "| {what:36} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {unary:>7} | {echo:>6} |",
        sample.per_second,
        ms(sample.p50),
        ms(sample.p99),
    )
}

fn ratio(rounds: &[Sample], to: &[Sample]) -> f64 {
    median(rounds).per_second / median(to).per_second
}

fn cell(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn shape(held: &HeldStreams) -> String {
    let shape = held.shape;
    format!("{} x {}", shape.streams, shape.leases_each)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
