//! Memory of held guards of one client in a separate process, and CPU time of their heartbeats.

use std::{fs, net::SocketAddr, time::Duration};

use futures::stream::{self, StreamExt as _};
use leasehold::Guard;
use leasehold_tests::process::{child::TestProcess, temp_dir::TempDir};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::callers::connect;
use crate::streams::usage::{cpu_time, resident_bytes};

/// Argument that makes this program hold guards. The broker's address, the number of guards and the
/// number of seconds follow.
pub(crate) const ARGUMENT: &str = "--guards";
/// Text that the process prints when it holds all guards.
const HELD: &str = "held";
const TTL: Duration = Duration::from_secs(15);
/// Number of concurrent acquires.
const CONCURRENT_CALLS: usize = 128;
/// Time until each stream has sent a heartbeat for all of its leases.
const SETTLE: Duration = Duration::from_secs(6);
/// Time for which the process holds its guards after the measured window.
const SPARE: Duration = Duration::from_secs(3);

/// Resources that one process used.
pub(super) struct HeldGuards {
    pub(super) guards: usize,
    /// Number of connections to the broker.
    pub(super) connections: usize,
    pub(super) bytes: u64,
    pub(super) window: Duration,
    /// CPU time in the window.
    pub(super) cpu: Duration,
}

/// Measures a process with `guards` guards for the time `window`. Every guard is valid to the end.
pub(super) async fn measure(broker: SocketAddr, guards: usize, window: Duration) -> HeldGuards {
    let dir = TempDir::new("guards");
    let seconds = (SETTLE + window + SPARE).as_secs();
    let mut command = Command::new(std::env::current_exe().expect("a program knows its path"));
    let (broker_arg, guards_arg) = (broker.to_string(), guards.to_string());
    command.args([ARGUMENT, &broker_arg, &guards_arg, &seconds.to_string()]);
    let log = dir.path().join("stderr.log");
    let (mut process, _) = TestProcess::start(command, &log, &[HELD]).await;
    sleep(SETTLE).await;
    let (pid, began) = (process.pid(), Instant::now());
    let before = cpu_time(pid);
    sleep(window).await;
    let kept = HeldGuards {
        guards,
        connections: connections_to(broker),
        bytes: resident_bytes(pid),
        cpu: cpu_time(pid) - before,
        window: began.elapsed(),
    };
    assert_eq!(
        process.wait_for_exit().await,
        Some(0),
        "every guard is kept"
    );
    kept
}

/// Runs the measured process. `arguments` are those of the program.
pub(crate) async fn hold_guards(arguments: impl Iterator<Item = String>) {
    let mut arguments = arguments
        .skip_while(|argument| argument != ARGUMENT)
        .skip(1);
    let mut next = || arguments.next().expect("broker, guards and seconds");
    let broker = next().parse().expect("an address");
    let guards: usize = next().parse().expect("a count");
    let seconds = Duration::from_secs(next().parse().expect("a count of seconds"));
    let client = connect(broker).await;
    let taken = stream::iter(0..guards).map(|at| {
        let lock = client.lock(format!("bench/guard/{at}"));
        lock.ttl(TTL).acquire()
    });
    let taken: Vec<_> = taken.buffer_unordered(CONCURRENT_CALLS).collect().await;
    let taken: Result<Vec<Guard>, _> = taken.into_iter().collect();
    let taken = taken.expect("the lock is free");
    println!("{HELD}");
    sleep(seconds).await;
    for guard in &taken {
        guard.check().expect("its heartbeats keep it");
    }
    client.shutdown().await;
}

/// Returns the number of established connections to a local address.
fn connections_to(broker: SocketAddr) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let port = format!(":{:04X}", broker.port());
    let is_one = |line: &&str| {
        // Fields: number, local address, remote address, state; 01 is established.
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.ends_with(&port)) && fields.next() == Some("01")
    };
    table.lines().filter(is_one).count()
}
