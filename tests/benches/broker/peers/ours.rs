//! Peers as described in `tests/peers/README.md`, for Leasehold, for its scripts alone, and for a
//! bare echo server. The scenario `beside`, pairs beside held locks, exists only for Leasehold.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use leasehold::{Client, Guard};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{WARM_UP, driver::Measured};
use crate::{
    grpc::{self, CHANNELS, lock_name, named},
    hand_off::{self, Waiter},
    pairs::{self, Pair},
    scripts::{self, Scripts},
    sdk::callers,
    streams::calls::on_streams,
};

/// Argument that makes this program a peer.
pub(crate) const ARGUMENT: &str = "--peer";
/// Number of waiting calls that share a connection, as with etcd.
const WAITS_EACH: usize = 100;
/// Number of waiting calls that share a stream, as in the clients.
const LEASES_PER_STREAM: usize = 1_000;
/// Number of concurrent acquires of locks that are then held.
const CONCURRENT_CALLS: usize = 64;
/// Number of callers beside held locks.
const OTHER_CALLERS: usize = 64;
const CRASH: &str = "crash";
/// Disconnect grace, within which a live client has reconnected.
const GRACE: Duration = Duration::from_secs(1);
const KEPT: usize = 20_000;

/// Runs the scenario of the arguments and exits.
pub(crate) async fn run(args: impl Iterator<Item = String>) {
    let args: Vec<_> = args.skip_while(|arg| arg != ARGUMENT).skip(1).collect();
    let [system, endpoint, scenario, numbers @ ..] = &*args else {
        panic!("see tests/peers/README.md, not {args:?}");
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    let [count, warm_up_ms, measured_ms] = *numbers else {
        panic!("see tests/peers/README.md, not {args:?}");
    };
    let count = usize::try_from(count).expect("a count");
    let addr: SocketAddr = endpoint.parse().expect("an address");
    let measured = Duration::from_millis(measured_ms);
    let begin = Instant::now() + Duration::from_millis(warm_up_ms);
    let window = [begin, begin + measured];
    let output = match (&**scenario, &**system) {
        ("pairs", system) => all_pairs(system, addr, count, window).await,
        ("hot", "unary") => {
            let connections = count.div_ceil(WAITS_EACH).max(CHANNELS);
            hot(hand_off::unary_waiters(&[addr], connections, count), window).await
        }
        ("hot", "stream") => {
            let streams = count.div_ceil(LEASES_PER_STREAM).max(CHANNELS);
            let names = vec![String::new(); count];
            hot(on_streams(addr, &names, streams).await, window).await
        }
        ("hot", "client") => {
            let client = callers::connect(addr).await;
            let one = || ClientWaiter(client.clone(), None);
            hot((0..count).map(|_| one()).collect(), window).await
        }
        ("idle", "client") => idle(addr, count, measured).await,
        ("beside", "client") => beside(addr, count, measured).await,
        ("hold" | "wait", _) => return crash(system, addr, scenario == "hold").await,
        _ => panic!("{system} has no {scenario}"),
    };
    println!("{}", serde_json::to_string(&output).expect("numbers"));
    // Callers that still wait are not stopped.
    std::process::exit(0);
}

async fn all_pairs(system: &str, addr: SocketAddr, count: usize, window: [Instant; 2]) -> Measured {
    let names: Vec<_> = (0..count).map(lock_name).collect();
    match system {
        "unary" => {
            let callers = grpc::callers_on(addr, count, |at| named(&lock_name(at)));
            pairs_of(callers, window).await
        }
        "stream" => pairs_of(on_streams(addr, &names, CHANNELS).await, window).await,
        "client" => {
            let client = callers::connect(addr).await;
            pairs_of(callers::of(&client, count), window).await
        }
        "scripts" => {
            let scripts = Scripts::connect(addr).await;
            pairs_of(scripts::of(&scripts, count), window).await
        }
        _ => panic!("no such system: {system}"),
    }
}

async fn pairs_of<P: Pair>(callers: Vec<P>, window: [Instant; 2]) -> Measured {
    let (latencies, ()) = tokio::join!(
        pairs::latencies(callers, window),
        sleep_until_begin(window[0])
    );
    Measured {
        done: latencies.len(),
        latencies_us: sample(&latencies),
        ..Measured::default()
    }
}

async fn sleep_until_begin(begin: Instant) {
    sleep_until(begin).await;
    println!("begin");
}

/// State of the lock that all callers acquire.
struct Held {
    last: Option<usize>,
    released: Instant,
    latencies: Vec<Duration>,
    counts: Vec<u64>,
    longest: Duration,
}

/// Lets all callers acquire and release one lock until the end of the window.
async fn hot<W: Waiter>(waiters: Vec<W>, [begin, end]: [Instant; 2]) -> Measured {
    let held = Arc::new(Mutex::new(Held {
        last: None,
        released: begin,
        latencies: Vec::new(),
        counts: vec![0; waiters.len()],
        longest: Duration::ZERO,
    }));
    let mut running: JoinSet<()> = JoinSet::new();
    // The name differs from that of earlier runs, whose waiters may remain.
    let lock = format!("hot-{}", std::process::id());
    for (at, mut waiter) in waiters.into_iter().enumerate() {
        let (held, lock) = (Arc::clone(&held), lock.clone());
        running.spawn(async move {
            loop {
                let sent = Instant::now();
                waiter.acquire(&lock).await;
                granted(&held, at, sent, [begin, end]);
                waiter.release().await;
            }
        });
    }
    tokio::select! {
        ended = running.join_next() => panic!("a caller ended: {ended:?}"),
        () = async { sleep_until_begin(begin).await; sleep_until(end).await } => {}
    }
    let held = held.lock().unwrap_or_else(PoisonError::into_inner);
    Measured {
        done: held.latencies.len(),
        latencies_us: sample(&held.latencies),
        counts: held.counts.clone(),
        longest_wait_us: micros(held.longest),
    }
}

fn granted(held: &Mutex<Held>, at: usize, sent: Instant, [begin, end]: [Instant; 2]) {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if now >= begin && now < end {
        if held.last.is_some_and(|last| last != at) {
            let latency = now - held.released;
            held.latencies.push(latency);
        }
        held.counts[at] += 1;
        held.longest = held.longest.max(now - sent);
    }
    held.last = Some(at);
    held.released = Instant::now();
}

/// A caller of the Rust client.
struct ClientWaiter(Client, Option<Guard>);

impl Waiter for ClientWaiter {
    async fn acquire(&mut self, lock: &str) {
        let guard = self.0.lock(lock).acquire().await;
        self.1 = Some(guard.expect("the queue moves on"));
    }

    async fn release(&mut self) {
        let guard = self.1.take().expect("it holds the lock");
        guard.release().await.expect("a holder can release");
    }
}

/// Acquires locks, and holds them.
async fn idle(addr: SocketAddr, count: usize, measured: Duration) -> Measured {
    let guards = kept(addr, count).await;
    println!("begin");
    sleep(measured).await;
    Measured {
        done: guards.iter().filter(|guard| guard.is_valid()).count(),
        ..Measured::default()
    }
}

/// Measures pairs of other callers beside held locks.
async fn beside(addr: SocketAddr, count: usize, measured: Duration) -> Measured {
    let guards = kept(addr, count).await;
    let begin = Instant::now() + WARM_UP;
    let output = all_pairs("client", addr, OTHER_CALLERS, [begin, begin + measured]).await;
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    if valid < count {
        // The table displays this line as the reason of the failure.
        eprintln!("{valid} of {count} locks were kept");
        std::process::exit(1);
    }
    output
}

async fn kept(addr: SocketAddr, count: usize) -> Vec<Guard> {
    let client = callers::connect(addr).await;
    let taken = stream::iter(0..count)
        .map(|at| {
            let client = client.clone();
            async move { client.lock(format!("idle-{at}")).acquire().await }
        })
        .buffer_unordered(CONCURRENT_CALLS);
    taken.try_collect().await.expect("all are free")
}

async fn crash(system: &str, addr: SocketAddr, is_holder: bool) {
    if !is_holder {
        println!("waiting");
    }
    match system {
        "unary" => {
            let mut one = hand_off::unary_waiters(&[addr], 1, 1).pop().expect("one");
            one.acquire(CRASH).await;
            report_grant(is_holder).await;
        }
        "client" => {
            let client = callers::connect(addr).await;
            let lock = client.lock(CRASH).disconnect_grace(GRACE);
            let _guard = lock.acquire().await.expect("in the end");
            report_grant(is_holder).await;
        }
        _ => panic!("no such system: {system}"),
    }
}

async fn report_grant(is_holder: bool) {
    if is_holder {
        println!("held");
        std::future::pending::<()>().await;
    }
    println!("granted");
}

/// Returns at most [`KEPT`] latencies in microseconds, evenly chosen.
fn sample(all: &[Duration]) -> Vec<u64> {
    let kept = all.len().min(KEPT);
    (0..kept)
        .map(|at| micros(all[at * all.len() / kept]))
        .collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
