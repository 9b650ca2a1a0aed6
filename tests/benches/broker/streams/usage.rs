//! Resource usage of processes: memory and CPU time of the broker, of Redis and of this program.

use std::{fs, time::Duration};

use leasehold_tests::{broker::deployment::Deployment, redis::connection::RedisConnection};

/// Unit of times in /proc, which is independent of the kernel's timer frequency.
const TICK: Duration = Duration::from_millis(10);

/// One reading. The usage of a period is the difference of two readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) broker_bytes: u64,
    /// Memory that Redis has allocated.
    pub(crate) redis_bytes: u64,
    /// CPU time of the broker, of Redis and of this program.
    pub(crate) cpu: [Duration; 3],
    /// Number of scripts that Redis ran.
    pub(crate) scripts: u64,
    /// Total run time of the scripts.
    pub(crate) script_time: Duration,
}

impl Usage {
    /// Reads the usage of the first broker and its store.
    pub(crate) async fn read(deployment: &Deployment, redis: &mut RedisConnection) -> Self {
        let broker = deployment.brokers[0].process().pid();
        let server = deployment.redis.process().pid();
        let memory = redis.info("memory", "used_memory").await;
        let evalsha = redis.info("commandstats", "cmdstat_evalsha").await;
        // The entry does not exist before the first script.
        let evalsha = evalsha.unwrap_or_default();
        let of_scripts = |field| numbered(&evalsha, field).unwrap_or(0);
        Self {
            broker_bytes: resident_bytes(broker),
            redis_bytes: memory
                .and_then(|bytes| bytes.parse().ok())
                .expect("INFO has used_memory"),
            cpu: [broker, server, std::process::id()].map(cpu_time),
            scripts: of_scripts("calls"),
            script_time: Duration::from_micros(of_scripts("usec")),
        }
    }
}

/// Returns a number of a text such as `calls=1,usec=2`.
fn numbered(text: &str, field: &str) -> Option<u64> {
    let mut fields = text.split(',').filter_map(|field| field.split_once('='));
    let (_, number) = fields.find(|(name, _)| *name == field)?;
    number.parse().ok()
}

/// Returns the resident memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("status has VmRSS in KiB") * 1_024
}

/// Returns user and system time of all threads.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // Field 3 follows the command in parentheses. Fields 14 and 15 are utime and stime.
    let (_, fields) = stat.rsplit_once(") ").expect("a command in brackets");
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks = times.map(|ticks| ticks.parse::<u32>().expect("a count of ticks"));
    TICK * ticks.sum::<u32>()
}
