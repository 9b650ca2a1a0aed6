//! Background load while brokers are replaced: programs hold leases, wait in queues and call, with
//! a load balancer as their only address. Its end checks the invariants.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::Client;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    clock::boottime,
    load::{
        callers::{Load, LoadOptions, LockKind},
        fault_report::{assert_locks_become_free_at, report_run},
        faults::FaultWindow,
        mutual_exclusion_oracle::Oracle,
    },
    net::balancer::Balancer,
    scale::print_figures,
    sdk::{
        held_guards::HeldGuards,
        proxied_client::connect,
        queue::{self, QueueGrants, serve_queues},
    },
};

const TTL: Duration = Duration::from_secs(10);
/// Time by which a client stops before the end of a validity.
const SAFETY_MARGIN: Duration = Duration::from_secs(1);
/// Number of programs that hold leases, and number of programs that wait.
pub const CLIENTS_PER_ROLE: usize = 10;
const GUARDS_PER_CLIENT: usize = 100;
const QUEUES: usize = 10;
const WAITERS_PER_QUEUE: usize = 20;
/// Number of callers, and number of the locks for which they contend.
const CALLERS: usize = 64;
const LOCKS: usize = 10;

#[derive(Debug)]
pub struct BackgroundLoad {
    _clients: Vec<Client>,
    guards: HeldGuards,
    min_remaining: AbortOnDropHandle<Duration>,
    queues: Vec<AbortOnDropHandle<QueueGrants>>,
    oracle: Arc<Oracle>,
    load: Load,
    stop: CancellationToken,
    started_at: Duration,
}

impl BackgroundLoad {
    /// Starts the load. Streams connect to the first balancer, unary calls to the second. The
    /// queues are served evenly over about `time`.
    pub async fn start([streams, calls]: [&Balancer; 2], time: Duration) -> Self {
        let (holding, waiting) = (
            connect_clients("holding", streams),
            connect_clients("waiting", streams),
        );
        let (holding, waiting) = tokio::join!(holding, waiting);
        let holders: Vec<_> = holding.iter().collect();
        let waiters: Vec<_> = waiting.iter().collect();
        let guards = HeldGuards::acquire(&holders, GUARDS_PER_CLIENT, TTL).await;
        let (lines, _) =
            queue::start_queues(&holders, &waiters, (QUEUES, WAITERS_PER_QUEUE), TTL).await;
        let oracle = Arc::new(Oracle::new(LOCKS));
        let options = LoadOptions::plain(CALLERS, |_| LockKind::Exclusive);
        let load = Load::start(options, &[calls.addr()], &oracle);
        let stop = CancellationToken::new();
        let release_interval = time / u32::try_from(WAITERS_PER_QUEUE + 1).expect("few");
        Self {
            min_remaining: guards.track_min_remaining(&stop),
            guards,
            started_at: boottime(),
            queues: serve_queues(lines, release_interval),
            oracle,
            load,
            stop,
            _clients: [holding, waiting].into_iter().flatten().collect(),
        }
    }

    /// Stops the load, and checks the invariants. No lease was lost or changed, or was without an
    /// acknowledgement for its whole validity. All queues were served to the end in order, and no
    /// holds overlapped.
    pub async fn finish(self, setting: &str, windows: &[FaultWindow], brokers: &[SocketAddr]) {
        let ended = boottime();
        let record = self.load.stop().await;
        let served = join_all(self.queues).await.into_iter();
        let served: Vec<QueueGrants> = served.map(|line| line.expect("no panic")).collect();
        self.stop.cancel();
        let least_remaining = self.min_remaining.await.expect("no panic");
        let (lost, changed) = self.guards.count_lost_and_changed(brokers).await;
        let longest = (TTL - SAFETY_MARGIN).saturating_sub(least_remaining);
        let leases = self.guards.iter().count();
        print_figures(&format!(
            "{setting}: leases={leases} lost={lost} changed={changed} longest_without_ack={}ms of {}ms",
            longest.as_millis(),
            (TTL - SAFETY_MARGIN).as_millis(),
        ));
        assert_eq!((lost, changed), (0, 0), "leases lost, leases changed");
        assert_eq!(leases, CLIENTS_PER_ROLE * GUARDS_PER_CLIENT);
        assert!(longest < TTL - SAFETY_MARGIN, "{longest:?}");
        queue::report_queues(setting, &served, WAITERS_PER_QUEUE, |at| {
            windows.iter().any(|window| window.contains(at))
        });
        let setting = format!("{setting}: callers={CALLERS} locks={LOCKS}");
        let verdict = self.oracle.verdict();
        report_run(
            &setting,
            &verdict,
            windows,
            &record.calls,
            (self.started_at, ended),
        );
        record.assert_losses_have_causes(&setting, &[]);
        assert_locks_become_free_at(brokers, LOCKS).await;
    }
}

/// Connects clients whose only address is the balancer.
async fn connect_clients(name: &str, balancer: &Balancer) -> Vec<Client> {
    let started = (0..CLIENTS_PER_ROLE)
        .map(|index| async move { connect(&format!("{name}-{index}"), &[balancer.addr()]).await });
    join_all(started).await
}
