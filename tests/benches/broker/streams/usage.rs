//! What processes use: memory and CPU of the broker, of Redis and of this program.

use std::{fs, time::Duration};

use leasehold_tests::{deployment::Deployment, redis_connection::RedisConnection};

/// The unit of times in /proc, whatever the kernel's own tick is.
const TICK: Duration = Duration::from_millis(10);

/// One reading. Two of them make a difference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Resident memory of the broker.
    pub(crate) broker_bytes: u64,
    /// What Redis has allocated.
    pub(crate) redis_bytes: u64,
    /// CPU time of the broker, of Redis and of this program.
    pub(crate) cpu: [Duration; 3],
    /// Scripts that Redis ran.
    pub(crate) scripts: u64,
    /// How long it ran them.
    pub(crate) script_time: Duration,
}

impl Usage {
    /// Of the first broker and its store.
    pub(crate) async fn read(deployment: &Deployment, redis: &mut RedisConnection) -> Self {
        let broker = deployment.brokers[0].process().pid();
        let server = deployment.redis.process().pid();
        let memory = redis.info("memory", "used_memory").await;
        let evalsha = redis.info("commandstats", "cmdstat_evalsha").await;
        // Not there before the first script.
        let evalsha = evalsha.unwrap_or_default();
        let of_scripts = |field| numbered(&evalsha, field).unwrap_or(0);
        Self {
            broker_bytes: resident_bytes(broker),
            redis_bytes: memory
                .and_then(|bytes| bytes.parse().ok())
                .expect("INFO tells used_memory"),
            cpu: [broker, server, std::process::id()].map(cpu_time),
            scripts: of_scripts("calls"),
            script_time: Duration::from_micros(of_scripts("usec")),
        }
    }
}

/// A field of `calls=1,usec=2`.
fn numbered(text: &str, field: &str) -> Option<u64> {
    let mut fields = text.split(',').filter_map(|field| field.split_once('='));
    let (_, number) = fields.find(|(name, _)| *name == field)?;
    number.parse().ok()
}

/// Memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("status tells VmRSS in KiB") * 1_024
}

/// User and system time of all threads.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // Behind the command in brackets begins field 3; utime and stime are 14 and 15.
    let (_, fields) = stat.rsplit_once(") ").expect("a command in brackets");
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks = times.map(|ticks| ticks.parse::<u32>().expect("a count of ticks"));
    TICK * ticks.sum::<u32>()
}
