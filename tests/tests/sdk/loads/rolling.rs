//! Two brokers stopped and killed in turn under programs that use the Rust client: no guard is lost
//! while one broker lives, and lines keep their order.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold::{Client, Guard, LostReason};
use leasehold_tests::{
    client,
    clock::boottime,
    deployment::Deployment,
    scale::{duration, figures},
    sdk_callers::{self, Call},
    sdk_guards::{Guards, guarded},
    sdk_line::{self, Line, Served, Waiter, serve_all},
    sdk_site::{Site, connect, hold},
    time_left::{expiry, look, spread},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(10);
/// How much earlier than its validity ends a client gives a lock up.
const MARGIN: Duration = Duration::from_secs(1);
const SITES: usize = 10;
const GUARDS_EACH: usize = 50;
const LINES: usize = 10;
const IN_LINE: usize = 20;
const CALM: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(1);
/// Half of the time after which a broker that is stopped cuts off who has not moved.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
const SETTLED_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The programs of the run.
struct Fleet {
    holding: Vec<Site>,
    guards: Guards,
    waiting: Vec<Site>,
    waiters: Vec<Waiter>,
}

/// How a broker goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Stopped,
    Killed,
}

/// A time in which a broker was away and its clients moved.
#[derive(Debug)]
struct Window {
    from: Duration,
    to: Duration,
    /// Clients that were on the broker.
    moved: usize,
}

impl Window {
    fn contains(&self, moment: Duration) -> bool {
        (self.from..self.to).contains(&moment)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_and_lines_outlive_brokers_that_go_in_turn() {
    let mut deployment = Deployment::start(2).await;
    let (fleet, lines) = Fleet::start(&deployment).await;
    let stop = CancellationToken::new();
    let callers = sdk_callers::start(&deployment.addrs(), &stop).await;
    let least = fleet.guards.watch_remaining(&stop);
    let (begun, time) = (
        boottime(),
        duration(Duration::from_secs(300), Duration::from_secs(20)),
    );
    let pace = time.mul_f64(0.95) / u32::try_from(IN_LINE + 1).expect("few");
    let served = serve_all(lines, pace);

    let mut windows = Vec::new();
    let turns = [
        (0, Fault::Stopped),
        (1, Fault::Killed),
        (0, Fault::Killed),
        (1, Fault::Stopped),
    ];
    let mut turns = turns.into_iter().cycle();
    while boottime() < begun + time {
        sleep(CALM).await;
        let (broker, fault) = turns.next().expect("a cycle");
        windows.push(fleet.suffer(&mut deployment, broker, fault).await);
    }
    let ended = boottime();
    let served = join_all(served).await.into_iter();
    let served: Vec<Served> = served.map(|line| line.expect("no panic")).collect();
    stop.cancel();
    let calls = join_all(callers).await.into_iter();
    let calls: Vec<Call> = calls.flat_map(|calls| calls.expect("no panic")).collect();
    let least = least.await.expect("no panic");
    let wrong = fleet.guards.lost_or_changed(&deployment.addrs()).await;

    report_faults(&fleet, &windows, least, wrong);
    sdk_line::report("sdk_rolling", &served, IN_LINE, |at| {
        windows.iter().any(|window| window.contains(at))
    });
    report_calls(&calls, &windows, (begun, ended));
}

fn report_faults(
    fleet: &Fleet,
    windows: &[Window],
    least: Duration,
    (lost, changed): (usize, usize),
) {
    let sites = || fleet.holding.iter().chain(&fleet.waiting);
    let moves: usize = sites().map(Site::moves).sum();
    let gone: usize = windows.iter().map(|window| window.moved).sum();
    let settled = windows
        .iter()
        .map(|window| window.to - window.from)
        .collect();
    let guards = fleet.guards.all().count();
    figures(&format!(
        "sdk_rolling: faults={} clients={} clients_hit={gone} moves={moves} guards={guards} \
         lost={lost} changed={changed} least_remaining={}ms of {}ms settled_after: {}",
        windows.len(),
        sites().count(),
        least.as_millis(),
        (TTL - MARGIN).as_millis(),
        spread(settled)
    ));
    assert_eq!((guards, lost, changed), (SITES * GUARDS_EACH, 0, 0));
    assert!(windows.len() >= 4, "each broker stopped and killed");
    assert!(moves >= gone, "who was on a broker that went has moved");
}

fn report_calls(calls: &[Call], windows: &[Window], (begun, ended): (Duration, Duration)) {
    let is_in_fault = |call: &&Call| windows.iter().any(|window| window.contains(call.ended));
    let in_run = calls
        .iter()
        .filter(|call| (begun..ended).contains(&call.ended));
    let in_run: Vec<_> = in_run.collect();
    let granted = in_run.iter().copied().filter(|call| call.is_granted);
    let in_faults = granted.clone().filter(is_in_fault).count();
    let granted = granted.count();
    let faulty: Duration = windows.iter().map(|window| window.to - window.from).sum();
    let calm = (ended - begun).saturating_sub(faulty).as_secs().max(1);
    let per_second = (granted - in_faults) / usize::try_from(calm).expect("seconds");
    let unavailable = in_run.len() - granted;
    figures(&format!(
        "sdk_rolling: seconds={} calls={} calm_grants_per_s={per_second} granted_in_faults={in_faults} \
         unavailable={unavailable}",
        (ended - begun).as_secs(),
        in_run.len()
    ));
    assert!(per_second >= 100, "too little happened: {per_second}/s");
    assert!(in_faults * 5 >= granted, "too little happened in faults");
}

impl Fleet {
    /// Guards, and lines that are complete.
    async fn start(deployment: &Deployment) -> (Self, Vec<Line>) {
        let addrs = deployment.addrs();
        let (holding, waiting) = (
            sites("holding", &addrs).await,
            sites("waiting", &addrs).await,
        );
        let (holders, waits) = (clients(&holding), clients(&waiting));
        let guards = Guards::take(&holders, GUARDS_EACH, TTL).await;
        let (lines, waiters) = sdk_line::start_all(&holders, &waits, (LINES, IN_LINE), TTL).await;
        let fleet = Self {
            holding,
            guards,
            waiting,
            waiters,
        };
        (fleet, lines)
    }

    /// A broker goes and comes back; until all who were on it are settled on the other one.
    async fn suffer(&self, deployment: &mut Deployment, at: usize, fault: Fault) -> Window {
        let sites = || self.holding.iter().chain(&self.waiting);
        let hit: Vec<_> = sites().map(|site| site.is_on(at)).collect();
        let moved = hit.iter().filter(|is_on| **is_on).count();
        assert!(moved > 0, "nobody is on the broker that goes");
        let told: Vec<_> = self.waiters.iter().map(Waiter::told).collect();
        let broker = &mut deployment.brokers[at];
        let from = boottime();
        match fault {
            Fault::Stopped => {
                broker.terminate();
                assert_eq!(broker.ended().await, Some(0), "in good order");
                let took = boottime() - from;
                assert!(
                    took < ASKED_WITHIN,
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
            let is_moved =
                |(site, was_on): (&Site, &bool)| !was_on || site.is_on(1 - at) && !site.is_on(at);
            let is_heard = |guard: &Guard| boottime() + guard.remaining() > from + TTL - MARGIN;
            let is_told = |(waiter, told): (&Waiter, &Option<usize>)| {
                !hit[SITES + waiter.site] || waiter.told().is_none() || waiter.told() > *told
            };
            while !(sites().zip(&hit).all(is_moved)
                && self.guards.all().all(is_heard)
                && self.waiters.iter().zip(&told).all(is_told))
            {
                sleep(LOOK_EVERY).await;
            }
        };
        let settled = timeout(SETTLED_WITHIN, settling).await;
        let to = boottime();
        figures(&format!(
            "fault {fault:?} broker {at}: refused, clients_hit={moved} settled={}ms",
            (to - from).as_millis()
        ));
        settled.expect("all are settled in time");
        Window { from, to, moved }
    }
}

fn clients(sites: &[Site]) -> Vec<&Client> {
    sites.iter().map(|site| &site.client).collect()
}

async fn sites(name: &str, brokers: &[SocketAddr]) -> Vec<Site> {
    let sites = (0..SITES).map(|index| async move {
        Site::start(&format!("{name}-{index}"), brokers, index % 2).await
    });
    join_all(sites).await
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_are_lost_with_the_only_broker_that_their_client_knows() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let locks = |site| {
        (0..GUARDS_EACH)
            .map(|lock| guarded(site, lock))
            .collect::<Vec<_>>()
    };
    let (alone, both) = (
        connect("alone", &addrs[..1]).await,
        connect("both", &addrs).await,
    );
    let (lost, kept) = (
        hold(&alone, &locks(0), TTL).await,
        hold(&both, &locks(1), TTL).await,
    );
    let observer = client::Client::new("observer", &addrs[1..], 0);
    let killed_at = boottime();
    deployment.brokers[0].kill().await;
    let ends = lost
        .iter()
        .map(async |guard| (guard.lost().await, boottime()));
    let ends = timeout(TTL, join_all(ends)).await.expect("lost in time");
    let held = look(&observer, 0, &guarded(0, 0))
        .await
        .expect("the store waits for longer");
    assert!(
        ends.iter().all(|(why, _)| *why == LostReason::Expired),
        "{ends:?}"
    );
    let after: Vec<_> = ends.iter().map(|(_, at)| *at - killed_at).collect();
    let still = kept.iter().filter(|guard| guard.is_valid()).count();
    figures(&format!(
        "sdk_rolling: only endpoint killed: guards={} lost={} lost_after_kill: {} before_E={}ms; \
         beside them with two endpoints: guards={} valid={still}",
        lost.len(),
        ends.len(),
        spread(after.clone()),
        held.remaining.as_millis(),
        kept.len()
    ));
    assert_eq!(held.lease_id, lost[0].lease_id());
    assert!(held.remaining < expiry(TTL));
    assert!(after.iter().all(|after| *after < TTL), "{after:?}");
    assert_eq!(still, GUARDS_EACH, "a broker lives for them");
}
