//! Two brokers that are stopped and killed in turn under programs with the Rust client. No guard is
//! lost while one broker is alive, and queues keep their order.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold::{Client, Guard, LostReason};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary,
    clock::boottime,
    load::{
        grant_rate::GrantRate,
        store_expiry::{format_spread, read_expiry, store_expiry},
    },
    scale::{print_figures, scaled_duration},
    sdk::{
        callers::{self, Call},
        held_guards::{HeldGuards, lock_name},
        proxied_client::{ProxiedClient, acquire_all, connect},
        queue::{self, HeldQueue, QueueGrants, Waiter, serve_queues},
    },
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(10);
/// Safety margin by which the validity of a lease is shorter than the TTL.
const MARGIN: Duration = Duration::from_secs(1);
const SITES: usize = 10;
const GUARDS_EACH: usize = 50;
const QUEUES: usize = 10;
const WAITERS: usize = 20;
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(1);
/// Maximum duration of a graceful stop. It is half of the time after which a draining broker
/// disconnects clients that have not moved.
const RECONNECT_REQUESTED_WITHIN: Duration = Duration::from_secs(5);
const SETTLED_WITHIN: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Clients of the run, with their guards and waiters.
struct Fleet {
    holding: Vec<ProxiedClient>,
    guards: HeldGuards,
    waiting: Vec<ProxiedClient>,
    waiters: Vec<Waiter>,
}

/// A graceful stop or a kill of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Stopped,
    Killed,
}

/// Period in which a broker was down and its clients moved to the other broker.
#[derive(Debug)]
struct Downtime {
    from: Duration,
    to: Duration,
    /// Number of clients that were connected to the broker.
    moved: usize,
}

impl Downtime {
    fn contains(&self, moment: Duration) -> bool {
        (self.from..self.to).contains(&moment)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_and_queues_survive_brokers_that_stop_in_turn() {
    let mut deployment = Deployment::start(2).await;
    let (fleet, lines) = Fleet::start(&deployment).await;
    let stop = CancellationToken::new();
    let callers = callers::start_callers(&deployment.addrs(), &stop).await;
    let least = fleet.guards.track_min_remaining(&stop);
    let (started_at, time) = (
        boottime(),
        scaled_duration(Duration::from_secs(300), Duration::from_secs(20)),
    );
    let release_interval = time.mul_f64(0.95) / u32::try_from(WAITERS + 1).expect("few");
    let served = serve_queues(lines, release_interval);

    let mut windows = Vec::new();
    let turns = [
        (0, Fault::Stopped),
        (1, Fault::Killed),
        (0, Fault::Killed),
        (1, Fault::Stopped),
    ];
    let mut turns = turns.into_iter().cycle();
    while boottime() < started_at + time {
        sleep(QUIET_PERIOD).await;
        let (broker, fault) = turns.next().expect("a cycle");
        windows.push(fleet.run_fault(&mut deployment, broker, fault).await);
    }
    let ended = boottime();
    let served = join_all(served).await.into_iter();
    let served: Vec<QueueGrants> = served.map(|line| line.expect("no panic")).collect();
    stop.cancel();
    let calls = join_all(callers).await.into_iter();
    let calls: Vec<Call> = calls.flat_map(|calls| calls.expect("no panic")).collect();
    let least = least.await.expect("no panic");
    let wrong = fleet
        .guards
        .count_lost_and_changed(&deployment.addrs())
        .await;

    report_faults(&fleet, &windows, least, wrong);
    queue::report_queues("sdk_rolling", &served, WAITERS, |at| {
        windows.iter().any(|window| window.contains(at))
    });
    report_calls(&calls, &windows, (started_at, ended));
}

fn report_faults(
    fleet: &Fleet,
    windows: &[Downtime],
    least: Duration,
    (lost, changed): (usize, usize),
) {
    let fixtures = || fleet.holding.iter().chain(&fleet.waiting);
    let moves: usize = fixtures().map(ProxiedClient::reconnects).sum();
    let gone: usize = windows.iter().map(|window| window.moved).sum();
    let settled = windows
        .iter()
        .map(|window| window.to - window.from)
        .collect();
    let guards = fleet.guards.iter().count();
    print_figures(&format!(
        "sdk_rolling: faults={} clients={} clients_hit={gone} moves={moves} guards={guards} \
         lost={lost} changed={changed} least_remaining={}ms of {}ms settled_after: {}",
        windows.len(),
        fixtures().count(),
        least.as_millis(),
        (TTL - MARGIN).as_millis(),
        format_spread(settled)
    ));
    assert_eq!((guards, lost, changed), (SITES * GUARDS_EACH, 0, 0));
    assert!(windows.len() >= 4, "each broker stopped and killed");
    assert!(moves >= gone, "who was on a broker that went has moved");
}

fn report_calls(calls: &[Call], windows: &[Downtime], (started_at, ended): (Duration, Duration)) {
    let is_in_fault = |call: &&Call| windows.iter().any(|window| window.contains(call.ended_at));
    let in_run = calls
        .iter()
        .filter(|call| (started_at..ended).contains(&call.ended_at));
    let in_run: Vec<_> = in_run.collect();
    let granted = in_run.iter().copied().filter(|call| call.is_granted);
    let in_faults = granted.clone().filter(is_in_fault).count();
    let granted = granted.count();
    let faulty: Duration = windows.iter().map(|window| window.to - window.from).sum();
    let per_second = GrantRate::new(granted - in_faults, ended - started_at - faulty);
    let unavailable = in_run.len() - granted;
    print_figures(&format!(
        "sdk_rolling: seconds={} calls={} calm_grants_per_s={per_second} granted_in_faults={in_faults} \
         unavailable={unavailable}",
        (ended - started_at).as_secs(),
        in_run.len()
    ));
    per_second.assert_sufficient();
    assert!(in_faults * 5 >= granted, "too little happened in faults");
}

impl Fleet {
    /// Starts clients with guards, and clients with complete queues.
    async fn start(deployment: &Deployment) -> (Self, Vec<HeldQueue>) {
        let addrs = deployment.addrs();
        let (holding, waiting) = (
            fixtures("holding", &addrs).await,
            fixtures("waiting", &addrs).await,
        );
        let (holders, waits) = (clients(&holding), clients(&waiting));
        let guards = HeldGuards::acquire(&holders, GUARDS_EACH, TTL).await;
        let (lines, waiters) = queue::start_queues(&holders, &waits, (QUEUES, WAITERS), TTL).await;
        let fleet = Self {
            holding,
            guards,
            waiting,
            waiters,
        };
        (fleet, lines)
    }

    /// Stops or kills a broker, and restarts it. Waits until all of its clients have moved to the
    /// other broker.
    async fn run_fault(&self, deployment: &mut Deployment, at: usize, fault: Fault) -> Downtime {
        let fixtures = || self.holding.iter().chain(&self.waiting);
        let hit: Vec<_> = fixtures()
            .map(|fixture| fixture.is_connected_to(at))
            .collect();
        let moved = hit.iter().filter(|is_on| **is_on).count();
        assert!(moved > 0, "no stream is on the broker that goes");
        let grants: Vec<_> = self.waiters.iter().map(Waiter::position_updates).collect();
        let broker = &mut deployment.brokers[at];
        let from = boottime();
        match fault {
            Fault::Stopped => {
                broker.terminate();
                assert_eq!(broker.wait_for_exit().await, Some(0), "in good order");
                let took = boottime() - from;
                assert!(
                    took < RECONNECT_REQUESTED_WITHIN,
                    "clients move when they are asked: {took:?}"
                );
            }
            Fault::Killed => broker.kill().await,
        }
        let refused = TcpStream::connect(broker.addr()).await;
        assert!(refused.is_err(), "a broker that is gone refuses");
        sleep(DOWN).await;
        broker.restart().await;
        let settling = async {
            let is_moved = |(fixture, was_on): (&ProxiedClient, &bool)| {
                !was_on || fixture.is_connected_to(1 - at) && !fixture.is_connected_to(at)
            };
            let is_heard = |guard: &Guard| boottime() + guard.remaining() > from + TTL - MARGIN;
            let is_told = |(waiter, grants): (&Waiter, &Option<usize>)| {
                !hit[SITES + waiter.client_index]
                    || waiter.position_updates().is_none()
                    || waiter.position_updates() > *grants
            };
            while !(fixtures().zip(&hit).all(is_moved)
                && self.guards.iter().all(is_heard)
                && self.waiters.iter().zip(&grants).all(is_told))
            {
                sleep(POLL_INTERVAL).await;
            }
        };
        let settled = timeout(SETTLED_WITHIN, settling).await;
        let to = boottime();
        print_figures(&format!(
            "fault {fault:?} broker {at}: refused, clients_hit={moved} settled={}ms",
            (to - from).as_millis()
        ));
        settled.expect("all are settled in time");
        Downtime { from, to, moved }
    }
}

fn clients(fixtures: &[ProxiedClient]) -> Vec<&Client> {
    fixtures.iter().map(|fixture| &fixture.client).collect()
}

async fn fixtures(name: &str, brokers: &[SocketAddr]) -> Vec<ProxiedClient> {
    let fixtures = (0..SITES).map(|index| async move {
        ProxiedClient::start(&format!("{name}-{index}"), brokers, index % 2).await
    });
    join_all(fixtures).await
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_are_lost_with_the_only_broker_that_their_client_knows() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let locks = |fixture| {
        (0..GUARDS_EACH)
            .map(|lock| lock_name(fixture, lock))
            .collect::<Vec<_>>()
    };
    let (alone, both) = (
        connect("alone", &addrs[..1]).await,
        connect("both", &addrs).await,
    );
    let (lost, kept) = (
        acquire_all(&alone, &locks(0), TTL).await,
        acquire_all(&both, &locks(1), TTL).await,
    );
    let observer = unary::Client::new("observer", &addrs[1..], 0);
    let killed_at = boottime();
    deployment.brokers[0].kill().await;
    let ends = lost
        .iter()
        .map(async |guard| (guard.lost().await, boottime()));
    let ends = timeout(TTL, join_all(ends)).await.expect("lost in time");
    let held = read_expiry(&observer, 0, &lock_name(0, 0))
        .await
        .expect("the store waits for longer");
    assert!(
        ends.iter()
            .all(|(reason, _)| *reason == LostReason::Expired),
        "{ends:?}"
    );
    let after: Vec<_> = ends.iter().map(|(_, at)| *at - killed_at).collect();
    let still = kept.iter().filter(|guard| guard.is_valid()).count();
    print_figures(&format!(
        "sdk_rolling: only endpoint killed: guards={} lost={} lost_after_kill: {} before_E={}ms; \
         beside them with two endpoints: guards={} valid={still}",
        lost.len(),
        ends.len(),
        format_spread(after.clone()),
        held.remaining.as_millis(),
        kept.len()
    ));
    assert_eq!(held.lease_id, lost[0].lease_id());
    assert!(held.remaining < store_expiry(TTL));
    assert!(after.iter().all(|after| *after < TTL), "{after:?}");
    assert_eq!(still, GUARDS_EACH, "a broker lives for them");
}
