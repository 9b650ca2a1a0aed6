//! Idle leases on streams: their memory, and the cost of their renewal.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::stream::{self, StreamExt as _};
use leasehold_proto::v1::{
    HeartbeatAck, HoldAcquire, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{Status, Streaming, transport::Channel};

use super::{
    heartbeats::HeartbeatTimes,
    usage::Usage,
    wire::{connection, open_lean, request},
};
use crate::{
    grpc::{acquire_request, named},
    pairs::Sample,
    site::Site,
};

/// Number of heartbeats in a ttl.
pub(crate) const HEARTBEATS_PER_TTL: u32 = 3;
/// Number of pending acquires. A stream sends all its acquires at once.
const CONCURRENT_CALLS: usize = 128;
/// Time after which no more leases are acquired, because the broker is overloaded.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(90);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time after the last acquire, beside a heartbeat interval, until every stream has sent a heartbeat.
const SETTLE: Duration = Duration::from_secs(1);

/// Streams and their leases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) streams: usize,
    /// Number of leases of each stream.
    pub(crate) leases_each: usize,
    /// Number of streams that share a connection. The server allows at most 1,000.
    pub(crate) streams_per_connection: usize,
    pub(crate) ttl: Duration,
}

/// Results of one shape.
pub(crate) struct HeldStreams {
    pub(crate) shape: Shape,
    /// Time in which all leases were acquired.
    pub(crate) taken_in: Duration,
    /// Usage without streams, at the start of the window and at its end.
    pub(crate) usage: [Usage; 3],
    pub(crate) window: Duration,
    /// Rate of confirmed leases in the window, and latency from sending the heartbeat to the
    /// confirmation. `None` for streams without leases.
    pub(crate) renewals: Option<Sample>,
    /// Reasons for which leases were not acquired.
    pub(crate) refused: Vec<String>,
    /// Number of leases that ended, whose stream broke, or whose validity ended at any time.
    pub(crate) lost: usize,
}

impl Shape {
    pub(crate) fn leases(self) -> usize {
        self.streams * self.leases_each
    }

    pub(crate) fn connections(self) -> usize {
        self.streams.div_ceil(self.streams_per_connection)
    }

    pub(crate) fn heartbeat_interval(self) -> Duration {
        self.ttl / HEARTBEATS_PER_TTL
    }
}

/// State that all streams of a run share.
struct Run {
    epoch: Instant,
    shape: Shape,
    /// End of the validity of each lease, in nanoseconds after the epoch.
    valid_until: Box<[AtomicU64]>,
    /// Reason for each lease that was not acquired.
    refused: Mutex<Vec<String>>,
    lost: Box<[AtomicBool]>,
    /// Latency of each confirmation of a lease. `None` before the window.
    latencies: Mutex<Option<Vec<Duration>>>,
}

/// Receiver of one stream.
struct Holder {
    run: Arc<Run>,
    /// Number of calls without a response.
    unanswered: usize,
    responses: Streaming<HoldResponse>,
    heartbeat_times: Arc<HeartbeatTimes>,
    /// Index of each lease in `valid_until`.
    leases: HashMap<String, usize>,
}

/// Acquires the leases, renews them during the window, and measures the resources used.
pub(crate) async fn measure(mut site: Site, shape: Shape, window: Duration) -> HeldStreams {
    let run = Arc::new(Run::new(shape));
    let empty = site.usage().await;
    let mut holding = JoinSet::new();
    acquire_all(&run, site.addr, &mut holding).await;
    let taken_in = run.epoch.elapsed();
    sleep(shape.heartbeat_interval() + SETTLE).await;
    run.measure();
    let began = Instant::now();
    let begin = site.usage().await;
    sleep(window).await;
    let window = began.elapsed();
    let latencies = run.measured();
    let end = site.usage().await;
    HeldStreams {
        shape,
        taken_in,
        usage: [empty, begin, end],
        window,
        renewals: (shape.leases_each > 0).then(|| Sample::of(latencies, window)),
        refused: std::mem::take(&mut *locked(&run.refused)),
        lost: run.lost(),
    }
}

/// Opens the streams, a limited number at a time, and runs those with leases in `holding`.
async fn acquire_all(run: &Arc<Run>, addr: SocketAddr, holding: &mut JoinSet<()>) {
    let shape = run.shape;
    let connections: Vec<_> = (0..shape.connections()).map(|_| connection(addr)).collect();
    let mut opening = JoinSet::new();
    for at in 0..shape.streams {
        if run.epoch.elapsed() > ACQUIRE_TIMEOUT {
            let left = (shape.streams - at) * shape.leases_each;
            run.refuse(left, &format!("not asked for within {ACQUIRE_TIMEOUT:?}"));
            break;
        }
        if opening.len() * shape.leases_each.max(1) >= CONCURRENT_CALLS
            && let Some(opened) = opening.join_next().await
        {
            holding.spawn(hold(opened.expect("a stream opens or not")));
        }
        // Consecutive streams use different connections, as if each process had its own.
        let connection = connections[at % connections.len()].clone();
        opening.spawn(Holder::open(Arc::clone(run), at, connection));
    }
    while let Some(opened) = opening.join_next().await {
        holding.spawn(hold(opened.expect("a stream opens or not")));
    }
}

impl Run {
    fn new(shape: Shape) -> Self {
        Self {
            epoch: Instant::now(),
            shape,
            valid_until: (0..shape.leases()).map(|_| AtomicU64::new(0)).collect(),
            refused: Mutex::default(),
            lost: (0..shape.leases())
                .map(|_| AtomicBool::new(false))
                .collect(),
            latencies: Mutex::new(None),
        }
    }

    /// Returns the time of a stream's first heartbeat. The heartbeats of all streams are spread
    /// evenly.
    fn first_heartbeat_at(&self, at: usize) -> Instant {
        let now = Instant::now();
        let interval = self.shape.heartbeat_interval();
        let phase = interval.mul_f64(at as f64 / self.shape.streams as f64);
        let mut first = self.epoch + phase;
        while first < now {
            first += interval;
        }
        first
    }

    /// Extends the validity of a lease. A lease whose validity had ended before is lost.
    fn valid_from(&self, lease: usize, sent: Duration) {
        let until = u64::try_from((sent + self.shape.ttl).as_nanos()).expect("a short run");
        let before = self.valid_until[lease].fetch_max(until, Ordering::Relaxed);
        if before != 0 && Duration::from_nanos(before) < self.epoch.elapsed() {
            self.lose(lease);
        }
    }

    /// Returns the number of leases that were lost at any time or are not valid now.
    fn lost(&self) -> usize {
        let now = self.epoch.elapsed();
        let is_over = |until: &AtomicU64| {
            let until = Duration::from_nanos(until.load(Ordering::Relaxed));
            !until.is_zero() && until < now
        };
        let leases = self.lost.iter().zip(&self.valid_until);
        leases
            .filter(|(lost, until)| lost.load(Ordering::Relaxed) || is_over(until))
            .count()
    }

    fn refuse(&self, leases: usize, reason: &str) {
        locked(&self.refused).extend(std::iter::repeat_n(reason.to_owned(), leases));
    }

    fn lose(&self, lease: usize) {
        self.lost[lease].store(true, Ordering::Relaxed);
    }

    fn measure(&self) {
        *locked(&self.latencies) = Some(Vec::new());
    }

    fn measured(&self) -> Vec<Duration> {
        let latencies = locked(&self.latencies).take();
        latencies.expect("the window was begun")
    }

    fn acknowledged(&self, leases: usize, latency: Duration) {
        if let Some(latencies) = locked(&self.latencies).as_mut() {
            latencies.extend(std::iter::repeat_n(latency, leases));
        }
    }
}

impl Holder {
    /// Opens a stream and acquires its leases. Leases may be rejected.
    async fn open(run: Arc<Run>, at: usize, connection: Channel) -> Option<Self> {
        let leases_each = run.shape.leases_each;
        let leases = at * leases_each..(at + 1) * leases_each;
        let heartbeat_times = HeartbeatTimes::of_new_stream(run.epoch);
        let heartbeats = Arc::clone(&heartbeat_times)
            .at_intervals(run.shape.heartbeat_interval(), run.first_heartbeat_at(at));
        let ttl = run.shape.ttl;
        let calls = stream::iter(leases.map(move |lease| request(acquire(lease, ttl))));
        let opened = timeout(ANSWER_LIMIT, open_lean(connection, calls.chain(heartbeats))).await;
        let responses = match opened.unwrap_or_else(|_| Err(unanswered())) {
            Ok(responses) => responses,
            Err(status) => {
                run.refuse(leases_each, status.message());
                return None;
            }
        };
        let mut holder = Self {
            unanswered: leases_each,
            responses,
            heartbeat_times,
            leases: HashMap::new(),
            run,
        };
        let taken = timeout(ANSWER_LIMIT, holder.take()).await;
        if let Err(status) = taken.unwrap_or_else(|_| Err(unanswered())) {
            holder.run.refuse(holder.unanswered, status.message());
        }
        Some(holder)
    }

    async fn take(&mut self) -> Result<(), Status> {
        while self.unanswered > 0 {
            let response = self.responses.message().await?;
            self.handle_response(response.ok_or_else(|| Status::aborted("the stream ended"))?);
        }
        Ok(())
    }

    fn handle_response(&mut self, response: HoldResponse) {
        match response.message {
            Some(Response::Ack(ack)) => self.acknowledged(&ack),
            Some(Response::Granted(granted)) => {
                let lease = usize::try_from(granted.call_id).expect("a call of this stream");
                match self.heartbeat_times.sent_at(granted.as_of_sequence) {
                    Some(sent) => self.run.valid_from(lease, sent),
                    None => self.run.lose(lease),
                }
                let granted = granted.lease.expect("a lease");
                self.leases.insert(granted.lease_id, lease);
                // A response after the time limit was counted as missing.
                self.unanswered = self.unanswered.saturating_sub(1);
            }
            Some(Response::Refused(refused)) => {
                if self.unanswered > 0 {
                    self.run.refuse(1, &refused.message);
                    self.unanswered -= 1;
                }
            }
            Some(Response::Ended(ended)) => {
                let lease = self.leases.get(&ended.lease_id);
                self.run.lose(*lease.expect("granted before"));
            }
            Some(
                Response::Queued(_)
                | Response::Attached(_)
                | Response::Released(_)
                | Response::ReleaseRequested(_)
                | Response::Reconnect(_)
                | Response::Done(_),
            )
            | None => {}
        }
    }

    fn acknowledged(&self, ack: &HeartbeatAck) {
        // The heartbeat is so old that its validity has ended, which is detected later.
        let Some(sent) = self.heartbeat_times.sent_at(ack.sequence) else {
            return;
        };
        for extended in &ack.leases {
            let lease = self.leases.get(&extended.lease_id);
            self.run.valid_from(*lease.expect("granted before"), sent);
        }
        let latency = self.run.epoch.elapsed() - sent;
        self.run.acknowledged(ack.leases.len(), latency);
    }
}

/// Reads messages until the stream ends.
async fn hold(holder: Option<Holder>) {
    let Some(mut holder) = holder else {
        return;
    };
    while let Ok(Some(response)) = holder.responses.message().await {
        holder.handle_response(response);
    }
    let leases = holder.leases.values();
    leases.for_each(|lease| holder.run.lose(*lease));
}

fn unanswered() -> Status {
    Status::deadline_exceeded(format!("not answered within {ANSWER_LIMIT:?}"))
}

fn locked<T>(of_all: &Mutex<T>) -> MutexGuard<'_, T> {
    of_all.lock().unwrap_or_else(PoisonError::into_inner)
}

fn acquire(lease: usize, ttl: Duration) -> Request {
    let mut acquire = acquire_request(named(&format!("bench/lease/{lease}")));
    acquire.ttl = Some(ttl.try_into().expect("a ttl of seconds"));
    Request::Acquire(HoldAcquire {
        call_id: i64::try_from(lease).expect("few leases"),
        request: Some(acquire),
        attach_number: 1,
        ..HoldAcquire::default()
    })
}
