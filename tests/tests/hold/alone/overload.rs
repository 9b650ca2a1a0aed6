//! More acquires than the store can execute, beside leases that are renewed: acquires are rejected,
//! renewals are not, and the queue of a lock keeps its order.

use std::{collections::HashMap, future::pending, net::SocketAddr, time::Duration};

use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::{
        session::{SessionClient, SessionLease},
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    process::child::TestProcess,
    scale::{is_full_scale, print_figures, scaled_count, scaled_duration},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, interval, sleep},
};

/// Number of clients with leases, and of leases of each.
const HOLDERS: usize = 100;
const LEASES_EACH: usize = 1_000;
const TTL: Duration = Duration::from_secs(10);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(3_333);
/// Number of streams whose calls acquire and release free locks.
const CALLERS: usize = 8;
/// Number of calls in flight on each of them while the capacity is measured.
const CALLS_EACH: usize = 16;
const CAPACITY_WINDOW: Duration = Duration::from_secs(3);
/// Acquires that are sent for each that was served.
const OVERLOAD: usize = 3;
/// Time of the overload, which is longer than the validity of a lease also at a small scale.
const OVERLOADED_FOR: Duration = Duration::from_secs(25);
const OVERLOADED_FOR_MIN: Duration = Duration::from_secs(12);
const TICK: Duration = Duration::from_millis(2);
/// Times for which a slow store is stopped and then runs.
const STOPPED_FOR: Duration = Duration::from_millis(30);
const RUNS_FOR: Duration = Duration::from_millis(10);
const QUEUED_LOCK: &str = "queued";
const WAITERS: usize = 50;
const WAIT: Duration = Duration::from_secs(120);
/// Maximum time until an acquire is rejected.
const REJECTED_WITHIN: Duration = Duration::from_secs(1);

/// Way in which callers send acquires.
#[derive(Debug, Clone, Copy)]
enum Pace {
    /// The next one when one is done, with a number of calls in flight.
    InFlight(usize),
    /// A number per second, independent of those that are done.
    PerSecond(usize),
}

/// Counts of calls.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    sent: usize,
    granted: usize,
    /// Number of acquires that were rejected as overload.
    rejected: usize,
    slowest_rejection: Duration,
    /// Number of acquires and releases without a reply of the store in time.
    timed_out: usize,
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            granted: self.granted + other.granted,
            rejected: self.rejected + other.rejected,
            slowest_rejection: self.slowest_rejection.max(other.slowest_rejection),
            timed_out: self.timed_out + other.timed_out,
        }
    }
}

/// Runs alone: it measures what the store can execute.
#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_store_rejects_acquires_and_loses_no_lease() {
    let options = BrokerOptions {
        env: vec![(
            "LEASEHOLD__QUOTAS__LOCKS_PER_NAMESPACE".into(),
            "1000000".into(),
        )],
        ..BrokerOptions::default()
    };
    let deployment = Deployment::start_single(options).await;
    let addr = deployment.addrs()[0];
    let mut holders = Vec::new();
    for index in 0..scaled_count(HOLDERS, 2) {
        holders.push(Holder::acquire(addr, index).await);
    }
    let waiters = Waiters::join(addr).await;
    // Without all leases of the full scale, the machine may have less capacity than the store.
    let is_slow = !is_full_scale();
    let server = deployment.redis.process();
    let slow = async || match is_slow {
        true => slow_down(server).await,
        false => pending().await,
    };
    let window = scaled_duration(OVERLOADED_FOR, OVERLOADED_FOR_MIN);
    let run = async {
        let served = run_callers(addr, Pace::InFlight(CALLS_EACH), CAPACITY_WINDOW).await;
        let capacity = served.granted / CAPACITY_WINDOW.as_secs() as usize;
        let pace = Pace::PerSecond(OVERLOAD * capacity / CALLERS);
        let overload = run_callers(addr, pace, window);
        let (overload, order) = tokio::join!(overload, waiters.serve());
        (capacity, overload, order)
    };
    let (capacity, overload, order) = tokio::select! {
        result = run => result,
        () = slow() => unreachable!("it does not end"),
    };
    server.resume();
    let lost: usize = holders.iter().map(Holder::lost).sum();
    print_figures(&format!(
        "hold_overload: leases={} capacity={capacity}/s overload={overload:?} lost={lost}",
        holders.len() * LEASES_EACH,
    ));
    assert_eq!(lost, 0, "leases that are renewed are kept");
    assert_eq!(
        order,
        (0..WAITERS).collect::<Vec<_>>(),
        "order of the queue"
    );
    assert!(
        overload.timed_out < overload.granted / 4,
        "most of what is sent is executed in time"
    );
    assert!(
        overload.rejected > overload.granted / 2,
        "it was an overload"
    );
    let granted = overload.granted / window.as_secs() as usize;
    assert!(granted > capacity / 2, "the store executes what it can");
    assert!(
        overload.slowest_rejection <= REJECTED_WITHIN,
        "{overload:?}"
    );
}

/// A client with leases, which it renews.
struct Holder {
    _client: SessionClient,
    leases: Vec<SessionLease>,
}

impl Holder {
    async fn acquire(addr: SocketAddr, index: usize) -> Self {
        let client = SessionClient::without_silence_timeout(&format!("holder-{index}"), addr);
        let acquires = (0..LEASES_EACH).map(|lock| {
            let call = AcquireCall::new(&format!("held-{index}-{lock}"), TTL, Duration::ZERO);
            client.start_acquire(&call)
        });
        let acquires: Vec<_> = acquires.collect();
        let mut leases = Vec::with_capacity(acquires.len());
        for acquire in acquires {
            let result = acquire.await.expect("the client runs");
            leases.push(result.expect("the lock is free"));
        }
        Self {
            _client: client,
            leases,
        }
    }

    /// Returns the number of leases that ended, or whose trusted validity ended at any time.
    fn lost(&self) -> usize {
        let ended = self.leases.iter();
        let ended = ended.filter(|lease| lease.state().end.is_some() || !lease.is_trusted());
        ended.count()
    }
}

/// Runs the callers for the window and for what is then in flight.
async fn run_callers(addr: SocketAddr, pace: Pace, window: Duration) -> Counts {
    let mut callers = JoinSet::new();
    for index in 0..CALLERS {
        let caller = Caller::open(addr, format!("{pace:?}-{index}")).await;
        callers.spawn(caller.run(pace, window));
    }
    let counts = callers.join_all().await;
    counts.into_iter().fold(Counts::default(), Counts::plus)
}

/// A stream whose calls acquire and release free locks.
struct Caller {
    stream: StreamClient,
    /// Prefix of the names of its locks, which no other stream uses.
    prefix: String,
    /// Times at which the acquires without a response were sent.
    sent_at: HashMap<i64, Instant>,
    counts: Counts,
}

impl Caller {
    async fn open(addr: SocketAddr, prefix: String) -> Self {
        let mut stream = StreamClient::open(addr).await;
        stream.start_heartbeats(HEARTBEAT_INTERVAL);
        Self {
            stream,
            prefix,
            sent_at: HashMap::new(),
            counts: Counts::default(),
        }
    }

    async fn run(mut self, pace: Pace, window: Duration) -> Counts {
        let began = Instant::now();
        let mut tick = interval(TICK);
        while began.elapsed() < window {
            let due = match pace {
                Pace::InFlight(calls) => calls.saturating_sub(self.sent_at.len()),
                Pace::PerSecond(calls) => {
                    let due = began.elapsed().as_millis() * calls as u128 / 1_000;
                    usize::try_from(due).expect("few calls") - self.counts.sent
                }
            };
            for _ in 0..due {
                self.acquire().await;
            }
            tokio::select! {
                message = self.stream.wait_for(Some) => self.handle(message).await,
                _ = tick.tick() => {}
            }
        }
        while !self.sent_at.is_empty() {
            let message = self.stream.wait_for(Some).await;
            self.handle(message).await;
        }
        self.counts
    }

    async fn acquire(&mut self) {
        let name = format!("{}-{}", self.prefix, self.counts.sent);
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        let call_id = self.stream.acquire(&call, 1).await;
        self.sent_at.insert(call_id, Instant::now());
        self.counts.sent += 1;
    }

    async fn handle(&mut self, message: Response) {
        match message {
            Response::Granted(granted) => {
                self.sent_at.remove(&granted.call_id);
                self.counts.granted += 1;
                let lease = granted.lease.expect("a lease");
                self.stream.release(&lease.lease_id).await;
            }
            Response::Refused(refused) => {
                let acquire = self.sent_at.remove(&refused.call_id);
                match acquire.filter(|_| refused.reason() == ErrorReason::Overloaded) {
                    Some(sent_at) => {
                        assert!(refused.retry_after.is_some(), "{refused:?}");
                        self.counts.rejected += 1;
                        let slowest = &mut self.counts.slowest_rejection;
                        *slowest = sent_at.elapsed().max(*slowest);
                    }
                    None if refused.reason() == ErrorReason::StoreUnavailable => {
                        self.counts.timed_out += 1;
                    }
                    None => panic!("{refused:?}"),
                }
            }
            Response::Queued(_)
            | Response::Attached(_)
            | Response::Ack(_)
            | Response::Released(_)
            | Response::Ended(_)
            | Response::ReleaseRequested(_)
            | Response::Reconnect(_)
            | Response::Done(_) => {}
        }
    }
}

/// Calls that wait for one lock, in their order.
struct Waiters {
    holder: StreamClient,
    lease_id: String,
    /// Streams, one for each call, and the id of the call.
    waiting: Vec<(StreamClient, i64)>,
}

impl Waiters {
    async fn join(addr: SocketAddr) -> Self {
        let observer = Client::new("observer", &[addr], 0);
        let mut holder = StreamClient::open(addr).await;
        holder.start_heartbeats(HEARTBEAT_INTERVAL);
        let call = AcquireCall::new(QUEUED_LOCK, TTL, Duration::ZERO);
        let call_id = holder.acquire(&call, 1).await;
        let lease_id = holder.expect_granted(call_id).await.lease_id;
        let mut waiting = Vec::new();
        for count in 1..=WAITERS {
            let mut stream = StreamClient::open(addr).await;
            stream.start_heartbeats(HEARTBEAT_INTERVAL);
            let call = AcquireCall::new(QUEUED_LOCK, TTL, WAIT);
            let call_id = stream.acquire(&call, 1).await;
            observer
                .wait_for_queue_length_at(0, QUEUED_LOCK, count)
                .await;
            waiting.push((stream, call_id));
        }
        Self {
            holder,
            lease_id,
            waiting,
        }
    }

    /// Releases the lock once for each waiter, and returns the waiters in the order of their grants.
    async fn serve(self) -> Vec<usize> {
        let (granted, mut grants) = mpsc::unbounded_channel();
        let mut waiters = JoinSet::new();
        for (index, (mut stream, call_id)) in self.waiting.into_iter().enumerate() {
            let granted = granted.clone();
            waiters.spawn(async move {
                let lease = stream.wait_for_grant(call_id).await.expect("its turn");
                granted.send(index).expect("the test waits");
                let lease_id = lease.lease.expect("a lease").lease_id;
                stream.release(&lease_id).await;
                stream.close_and_drain().await;
            });
        }
        drop(granted);
        let mut holder = self.holder;
        holder.release(&self.lease_id).await;
        let mut order = Vec::new();
        while let Some(index) = grants.recv().await {
            order.push(index);
        }
        waiters.join_all().await;
        order
    }
}

/// Stops the server for most of the time, as a host without CPU time for it would.
async fn slow_down(process: &TestProcess) {
    loop {
        process.pause().await;
        sleep(STOPPED_FOR).await;
        process.resume();
        sleep(RUNS_FOR).await;
    }
}
