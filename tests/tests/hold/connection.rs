//! One connection under heavy use: thousands of cycles, closed streams, waits and leases. The
//! broker never closes the connection.

#![expect(clippy::disallowed_methods, reason = "streams are tasks of the test")]

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{
    ReleaseRequest, hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, channel},
    },
    clock::boottime,
    net::http2_proxy::{GOAWAY, Http2Proxy, RST_STREAM},
    scale::{print_figures, scaled_count},
};
use tokio::{
    sync::{Barrier, Semaphore, watch},
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::transport::Channel;

const TTL: Duration = Duration::from_secs(20);
const WAIT: Duration = Duration::from_secs(60);
const HEARTBEATS: Duration = Duration::from_secs(2);
const AT_ONCE: Duration = Duration::from_secs(1);
const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// Number of cycles of which one uses a separate stream.
const OWN_STREAM: usize = 5;

/// One connection to a broker, through a proxy that counts its HTTP/2 frames.
struct CountedConnection {
    channel: Channel,
    proxy: Http2Proxy,
    deployment: Deployment,
}

impl CountedConnection {
    async fn start() -> Self {
        let deployment = Deployment::start(1).await;
        let proxy = Http2Proxy::start(deployment.addrs()[0]).await;
        Self {
            channel: channel(proxy.addr()),
            proxy,
            deployment,
        }
    }

    fn broker(&self) -> SocketAddr {
        self.deployment.addrs()[0]
    }

    /// Asserts that no second connection was opened and that the broker has not sent GOAWAY.
    fn assert_intact(&self) {
        let seen = (
            self.proxy.opened_connections(),
            self.proxy.frames_from_broker(GOAWAY),
        );
        assert_eq!(seen, (1, 0), "connections, GOAWAY frames");
    }
}

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, WAIT)
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_cycles_and_ended_streams_on_one_connection() {
    const WORKERS: usize = 10;
    /// Maximum number of streams that are closed by the client, but not yet ended by the broker.
    const CLOSING: usize = 200;
    let line = CountedConnection::start().await;
    let cycles = scaled_count(10_000, 1_000) / WORKERS;
    let stop = CancellationToken::new();
    let beating = tokio::spawn(send_heartbeats(line.channel.clone(), stop.clone()));
    let started_at = boottime();
    let closing = Arc::new(Semaphore::new(CLOSING));
    let workers = (0..WORKERS).map(|worker| {
        let work = cycle(line.channel.clone(), worker, cycles, Arc::clone(&closing));
        AbortOnDropHandle::new(tokio::spawn(work))
    });
    let workers: Vec<_> = workers.collect();
    let all = timeout(TEST_TIMEOUT, join_all(workers)).await;
    for worker in all.expect("every cycle is done") {
        worker.expect("no stream broke");
    }
    let took = boottime() - started_at;
    stop.cancel();
    let heartbeat_count = beating.await.expect("the stream that beats lives");
    let resets = line.proxy.frames_from_broker(RST_STREAM);
    print_figures(&format!(
        "hold_connection: cycles={} streams_closed={} resets={resets} acknowledged={heartbeat_count} \
         goaways={} connections={} took={}ms",
        cycles * WORKERS,
        cycles * WORKERS / OWN_STREAM,
        line.proxy.frames_from_broker(GOAWAY),
        line.proxy.opened_connections(),
        took.as_millis()
    ));
    assert!(
        heartbeat_count > 0,
        "heartbeats were acknowledged meanwhile"
    );
    line.assert_intact();
}

/// Acquires and releases locks. One in `OWN_STREAM` cycles uses a separate stream and closes it
/// while it has a lease.
async fn cycle(channel: Channel, worker: usize, cycles: usize, closing: Arc<Semaphore>) {
    let mut stream = StreamClient::open_on(channel.clone()).await;
    let mut closed = JoinSet::new();
    for cycle in 0..cycles {
        let lock = format!("lock-{worker}-{cycle}");
        if cycle % OWN_STREAM > 0 {
            acquire_and_release(&mut stream, &lock).await;
            continue;
        }
        let slot = Arc::clone(&closing).acquire_owned().await;
        let slot = slot.expect("no caller closes it");
        let mut own = StreamClient::open_on(channel.clone()).await;
        acquire_and_release(&mut own, &lock).await;
        let call = own.acquire(&immediate_call(&lock), 1).await;
        own.expect_granted(call).await;
        closed.spawn(async move {
            close_in_the_middle(own).await;
            drop(slot);
        });
    }
    while let Some(closed) = closed.join_next().await {
        closed.expect("no stream broke");
    }
}

/// Holds a lease and sends many heartbeats until cancelled. Returns the number of acknowledged
/// renewals.
async fn send_heartbeats(channel: Channel, stop: CancellationToken) -> usize {
    let mut stream = StreamClient::open_on(channel).await;
    let call = stream.acquire(&immediate_call("beating"), 1).await;
    stream.expect_granted(call).await;
    let mut every = interval(Duration::from_millis(50));
    let mut acknowledged = 0;
    while !stop.is_cancelled() {
        tokio::select! {
            _ = every.tick() => { stream.heartbeat().await; }
            leases = stream.wait_for(acknowledged_leases) => acknowledged += leases.len(),
        }
    }
    acknowledged
}

fn acknowledged_leases(message: Response) -> Option<Vec<String>> {
    match message {
        Response::Ack(ack) => Some(ack.leases.into_iter().map(|lease| lease.lease_id).collect()),
        Response::Ended(ended) => panic!("{ended:?}"),
        Response::Queued(_)
        | Response::Granted(_)
        | Response::Refused(_)
        | Response::Attached(_)
        | Response::Released(_)
        | Response::ReleaseRequested(_)
        | Response::Reconnect(_)
        | Response::Done(_) => None,
    }
}

async fn acquire_and_release(stream: &mut StreamClient, lock: &str) {
    let call = stream.acquire(&immediate_call(lock), 1).await;
    let lease = stream.expect_granted(call).await;
    stream.heartbeat().await;
    let call = stream.release(&lease.lease_id).await;
    stream.heartbeat().await;
    let Response::Released(released) = stream.next_event().await else {
        panic!("not released");
    };
    assert_eq!((released.call_id, released.already_released), (call, false));
}

/// Sends Close, then heartbeats until the broker has ended the stream, and three more after that.
async fn close_in_the_middle(mut stream: StreamClient) {
    stream.heartbeat().await;
    stream.close().await;
    let mut every = interval(Duration::from_millis(60));
    let end = async {
        loop {
            tokio::select! {
                () = stream.read_to_end() => return,
                _ = every.tick() => stream.try_heartbeat().await,
            }
        }
    };
    timeout(TEST_TIMEOUT, end)
        .await
        .expect("the broker ends it");
    for _ in 0..3 {
        stream.try_heartbeat().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_full_of_waits_still_releases() {
    const STREAM_WAITS: usize = 990;
    const UNARY_WAITS: usize = 700;
    const BUSY: usize = 10;
    const STEP: usize = 90;
    let line = CountedConnection::start().await;
    let owner = Client::new("owner", &[line.broker()], 0);
    for busy in 0..BUSY {
        let held = owner.acquire_at(0, &long(&busy_name(busy))).await;
        held.expect("it is free");
    }
    let mut stream = StreamClient::open_on(line.channel.clone()).await;
    let call = stream.acquire(&long("on-stream"), 1).await;
    let on_stream = stream.expect_granted(call).await;
    let mut locks = LockServiceClient::new(line.channel.clone());
    let by_call = locks.acquire(owner.acquire_request(&long("by-call"))).await;
    let by_call = by_call.expect("it is free").into_inner().lease;
    let mut next = Vec::new();
    for lock in ["on-stream", "by-call"] {
        next.push(stream.acquire(&waiting_call(lock), 1).await);
        owner.wait_for_queue_length_at(0, lock, 1).await;
    }
    // Waiters are added in steps, because a command has a limit of 800 ms in the store, on cores
    // that other tests also use.
    let queued = async |waits: usize| {
        for busy in 0..BUSY {
            owner
                .wait_for_queue_length_at(0, &busy_name(busy), waits / BUSY)
                .await;
        }
    };
    for index in 0..STREAM_WAITS {
        stream
            .acquire(&waiting_call(&busy_name(index % BUSY)), 1)
            .await;
        if (index + 1).is_multiple_of(STEP) {
            stream.heartbeat().await;
            queued(index + 1).await;
        }
    }
    let mut unary = Vec::new();
    for index in 0..UNARY_WAITS {
        let call = owner.acquire_request(&waiting_call(&busy_name(index % BUSY)));
        let mut locks = locks.clone();
        unary.push(AbortOnDropHandle::new(tokio::spawn(async move {
            locks.acquire(call).await
        })));
        if (STREAM_WAITS + index + 1).is_multiple_of(STEP) {
            queued(STREAM_WAITS + index + 1).await;
        }
    }
    queued(STREAM_WAITS + UNARY_WAITS).await;
    stream.heartbeat().await;

    let started_at = boottime();
    let call = stream.release(&on_stream.lease_id).await;
    done(&mut stream, call).await;
    let by_stream_took = boottime() - started_at;
    done(&mut stream, next[0]).await;
    let started_at = boottime();
    let release = ReleaseRequest {
        lease: by_call,
        ..ReleaseRequest::default()
    };
    locks.release(release).await.expect("the holder");
    let by_call_took = boottime() - started_at;
    done(&mut stream, next[1]).await;
    print_figures(&format!(
        "hold_connection: waits on one stream={STREAM_WAITS} unary={UNARY_WAITS} \
         release_on_stream={}ms unary_release={}ms goaways={}",
        by_stream_took.as_millis(),
        by_call_took.as_millis(),
        line.proxy.frames_from_broker(GOAWAY)
    ));
    assert!(by_stream_took < AT_ONCE && by_call_took < AT_ONCE);
    assert!(unary.iter().all(|wait| !wait.is_finished()), "they wait");
    line.assert_intact();
}

fn long(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, 3 * TTL, Duration::ZERO)
}

fn busy_name(busy: usize) -> String {
    format!("busy-{busy}")
}

/// Waits until a call is released or granted.
async fn done(stream: &mut StreamClient, call: i64) {
    let done = stream.wait_for(|message| match message {
        Response::Released(released) => (released.call_id == call).then_some(()),
        Response::Granted(granted) => (granted.call_id == call).then_some(()),
        Response::Refused(refused) => panic!("{refused:?}"),
        Response::Ended(ended) => panic!("{ended:?}"),
        Response::Queued(_)
        | Response::Attached(_)
        | Response::Ack(_)
        | Response::ReleaseRequested(_)
        | Response::Reconnect(_)
        | Response::Done(_) => None,
    });
    timeout(TEST_TIMEOUT, done).await.expect("it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_leases_on_one_connection_outlive_a_stopped_store() {
    const STREAMS: usize = 5;
    const STOPPED: Duration = Duration::from_secs(10);
    let line = CountedConnection::start().await;
    let each = scaled_count(1_000, 100);
    let back = watch::Sender::new(None);
    let all_taken = Arc::new(Barrier::new(STREAMS + 1));
    let streams = (0..STREAMS).map(|index| {
        let locks = (0..each).map(|lock| format!("lock-{index}-{lock}"));
        let (channel, locks) = (line.channel.clone(), locks.collect());
        let stream = many_leases(channel, locks, Arc::clone(&all_taken), back.subscribe());
        AbortOnDropHandle::new(tokio::spawn(stream))
    });
    let streams: Vec<_> = streams.collect();
    all_taken.wait().await;
    sleep(HEARTBEATS).await;
    let redis = line.deployment.redis.process();
    let mut raw = line.deployment.redis.connect().await;
    redis.pause().await;
    let stopped_at = boottime();
    let ping = timeout(AT_ONCE, raw.command(&["PING"])).await;
    assert!(ping.is_err(), "a stopped Redis answers nothing");
    sleep((stopped_at + STOPPED).saturating_sub(boottime())).await;
    redis.resume();
    let back_at = boottime();
    back.send_replace(Some(back_at));
    let all = timeout(TEST_TIMEOUT, join_all(streams)).await;
    let all = all.expect("every lease is acknowledged again");
    let again = all
        .into_iter()
        .map(|stream| stream.expect("no stream broke"));
    let (leases, last): (Vec<_>, Vec<_>) = again.unzip();
    let leases: usize = leases.iter().sum();
    let last = last.into_iter().max().expect("streams") - back_at;
    print_figures(&format!(
        "hold_connection: leases={leases} streams={STREAMS} stopped={STOPPED:?} lost=0 \
         all_acknowledged_again_after={}ms goaways={}",
        last.as_millis(),
        line.proxy.frames_from_broker(GOAWAY)
    ));
    assert_eq!(leases, STREAMS * each);
    line.assert_intact();
}

/// Keeps many leases on one stream until all leases were acknowledged after the store came back.
/// Returns the number of leases and the time.
async fn many_leases(
    channel: Channel,
    locks: Vec<String>,
    all_taken: Arc<Barrier>,
    back: watch::Receiver<Option<Duration>>,
) -> (usize, Duration) {
    let mut stream = StreamClient::open_on(channel).await;
    for lock in &locks {
        stream.acquire(&immediate_call(lock), 1).await;
    }
    let mut acknowledged_at = HashMap::new();
    while acknowledged_at.len() < locks.len() {
        let Response::Granted(granted) = stream.next_event().await else {
            panic!("not granted");
        };
        let lease = granted.lease.expect("a lease");
        acknowledged_at.insert(lease.lease_id, Duration::ZERO);
    }
    all_taken.wait().await;
    let mut every = interval(HEARTBEATS);
    loop {
        tokio::select! {
            _ = every.tick() => { stream.heartbeat().await; }
            named = stream.wait_for(acknowledged_leases) => for lease_id in named {
                if let Some(at) = acknowledged_at.get_mut(&lease_id) {
                    *at = boottime();
                }
            },
        }
        let last = acknowledged_at.values().min().copied().unwrap_or_default();
        if back.borrow().is_some_and(|back_at| last > back_at) {
            return (locks.len(), boottime());
        }
    }
}
