//! Resource usage of processes: memory and CPU time of the broker, of Redis and of this program.

use std::{fs, time::Duration};

use crate::site::MeasuredServer;

/// Unit of times in /proc, which is independent of the kernel's timer frequency.
const TICK: Duration = Duration::from_millis(10);

/// One reading. The usage of a period is the difference of two readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) broker_bytes: u64,
    /// Memory that the Redis servers have allocated.
    pub(crate) redis_bytes: u64,
    /// CPU time of the broker, of the Redis servers and of this program.
    pub(crate) cpu: [Duration; 3],
    /// Number of scripts that Redis ran.
    pub(crate) scripts: u64,
    /// Total run time of the scripts.
    pub(crate) script_time: Duration,
}

impl Usage {
    /// Reads the usage of a broker, and the sums of the Redis servers.
    pub(crate) async fn read(broker: u32, servers: &mut [MeasuredServer]) -> Self {
        let mut usage = Self {
            broker_bytes: resident_bytes(broker),
            redis_bytes: 0,
            cpu: [
                cpu_time(broker),
                Duration::ZERO,
                cpu_time(std::process::id()),
            ],
            scripts: 0,
            script_time: Duration::ZERO,
        };
        for MeasuredServer { pid, connection } in servers {
            usage.cpu[1] += cpu_time(*pid);
            let memory = connection.info("memory", "used_memory").await;
            let bytes: Option<u64> = memory.and_then(|bytes| bytes.parse().ok());
            usage.redis_bytes += bytes.expect("INFO has used_memory");
            let evalsha = connection.info("commandstats", "cmdstat_evalsha").await;
            // The entry does not exist before the first script.
            let evalsha = evalsha.unwrap_or_default();
            let of_scripts = |field| numbered(&evalsha, field).unwrap_or(0);
            usage.scripts += of_scripts("calls");
            usage.script_time += Duration::from_micros(of_scripts("usec"));
        }
        usage
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
