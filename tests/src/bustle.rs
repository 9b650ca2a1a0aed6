//! Programs at work while brokers are replaced: they hold leases, wait in lines and call, and know
//! nothing but a balancer. In the end: what must be true of it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::Client;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    balancer::Balancer,
    clock::boottime,
    fault_report::{locks_are_free_at, report},
    faults::Window,
    load::{Kind, Load},
    scale::figures,
    sdk_guards::Guards,
    sdk_line::{self, Served, serve_all},
    sdk_site::connect,
    witness::Witness,
};

const TTL: Duration = Duration::from_secs(10);
/// How much earlier than its validity ends a client gives a lock up.
const MARGIN: Duration = Duration::from_secs(1);
/// Programs that hold, and as many that wait.
pub const PROGRAMS: usize = 10;
const GUARDS_EACH: usize = 100;
const LINES: usize = 10;
const IN_LINE: usize = 20;
/// Callers, and the locks for which they contend.
const CALLERS: usize = 64;
const LOCKS: usize = 10;

/// All of them.
#[derive(Debug)]
pub struct Bustle {
    _programs: Vec<Client>,
    guards: Guards,
    least_left: AbortOnDropHandle<Duration>,
    served: Vec<AbortOnDropHandle<Served>>,
    witness: Arc<Witness>,
    load: Load,
    stop: CancellationToken,
    begun: Duration,
}

impl Bustle {
    /// Starts them. Streams go through the first balancer, calls through the second. The lines are
    /// served evenly over about this time.
    pub async fn start([streams, calls]: [&Balancer; 2], time: Duration) -> Self {
        let (holding, waiting) = (programs("holding", streams), programs("waiting", streams));
        let (holding, waiting) = tokio::join!(holding, waiting);
        let holders: Vec<_> = holding.iter().collect();
        let waiters: Vec<_> = waiting.iter().collect();
        let guards = Guards::take(&holders, GUARDS_EACH, TTL).await;
        let (lines, _) = sdk_line::start_all(&holders, &waiters, (LINES, IN_LINE), TTL).await;
        let witness = Arc::new(Witness::new(LOCKS));
        let load = Load::start(CALLERS, &[calls.addr()], &witness, |_| Kind::Exclusive);
        let stop = CancellationToken::new();
        let pace = time / u32::try_from(IN_LINE + 1).expect("few");
        Self {
            least_left: guards.watch_remaining(&stop),
            guards,
            begun: boottime(),
            served: serve_all(lines, pace),
            witness,
            load,
            stop,
            _programs: [holding, waiting].into_iter().flatten().collect(),
        }
    }

    /// Stops them, and judges: no lease was lost or changed, or stayed without an acknowledgement for
    /// all of its validity; lines were served to the end, in order; nobody overlapped.
    pub async fn end(self, setting: &str, windows: &[Window], brokers: &[SocketAddr]) {
        let ended = boottime();
        let calls = self.load.stop().await;
        let served = join_all(self.served).await.into_iter();
        let served: Vec<Served> = served.map(|line| line.expect("no panic")).collect();
        self.stop.cancel();
        let least = self.least_left.await.expect("no panic");
        let (lost, changed) = self.guards.lost_or_changed(brokers).await;
        let longest = (TTL - MARGIN).saturating_sub(least);
        let leases = self.guards.all().count();
        figures(&format!(
            "{setting}: leases={leases} lost={lost} changed={changed} longest_without_ack={}ms of {}ms",
            longest.as_millis(),
            (TTL - MARGIN).as_millis(),
        ));
        assert_eq!((lost, changed), (0, 0), "leases lost, leases changed");
        assert_eq!(leases, PROGRAMS * GUARDS_EACH);
        assert!(longest < TTL - MARGIN, "{longest:?}");
        sdk_line::report(setting, &served, IN_LINE, |at| {
            windows.iter().any(|window| window.contains(at))
        });
        let setting = format!("{setting}: callers={CALLERS} locks={LOCKS}");
        let verdict = self.witness.verdict();
        report(&setting, &verdict, windows, &calls, (self.begun, ended));
        locks_are_free_at(brokers, LOCKS).await;
    }
}

/// Clients that know the balancer and nothing else.
async fn programs(name: &str, balancer: &Balancer) -> Vec<Client> {
    let started = (0..PROGRAMS)
        .map(|index| async move { connect(&format!("{name}-{index}"), &[balancer.addr()]).await });
    join_all(started).await
}
