//! Standing leases on streams: what they occupy, and what keeping them costs.

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
use leasehold_tests::{client::Client, deployment::Deployment};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{Status, Streaming, transport::Channel};

use super::{
    beats::Beats,
    usage::Usage,
    wire::{connection, open_lean, request},
};
use crate::{
    grpc::{acquire_request, named},
    pairs::Sample,
};

const TTL: Duration = Duration::from_secs(15);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// As many as the server allows.
const STREAMS_PER_CONNECTION: usize = 1_000;
/// Acquires under way while the leases are taken; a stream sends all of its own at once.
const UNDER_WAY: usize = 128;
/// What was not taken by then is not asked for: the broker has enough to do.
const TAKING_LIMIT: Duration = Duration::from_secs(90);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Until every stream has sent a heartbeat after the last lease was taken.
const SETTLE: Duration = Duration::from_secs(6);

/// How many streams, with how many leases each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) streams: usize,
    pub(crate) leases_each: usize,
}

/// What was measured.
pub(crate) struct Standing {
    pub(crate) shape: Shape,
    /// How long it took to take all leases.
    pub(crate) taken_in: Duration,
    /// Without a stream; at the beginning and at the end of the window.
    pub(crate) usage: [Usage; 3],
    pub(crate) window: Duration,
    /// Leases acknowledged in the window, and from the sending of the heartbeat to the receipt.
    pub(crate) renewals: Sample,
    /// Why leases were not taken.
    pub(crate) refused: Vec<String>,
    /// Leases that ended, whose stream broke, or that were out of their validity for a while.
    pub(crate) lost: usize,
}

impl Shape {
    pub(crate) fn leases(self) -> usize {
        self.streams * self.leases_each
    }

    pub(crate) fn connections(self) -> usize {
        self.streams.div_ceil(STREAMS_PER_CONNECTION)
    }
}

/// What all streams of a run share.
struct Run {
    epoch: Instant,
    shape: Shape,
    /// When the validity of each lease ends, in nanoseconds after the epoch.
    valid_until: Box<[AtomicU64]>,
    /// One reason for each lease that was not taken.
    refused: Mutex<Vec<String>>,
    lost: Box<[AtomicBool]>,
    /// One for each lease that was acknowledged; nothing before the window.
    latencies: Mutex<Option<Vec<Duration>>>,
}

/// The receiving end of one stream.
struct Holder {
    run: Arc<Run>,
    /// Calls.
    unanswered: usize,
    responses: Streaming<HoldResponse>,
    beats: Arc<Beats>,
    /// The place of each lease in `valid_until`.
    leases: HashMap<String, usize>,
}

/// Takes the leases, keeps them for the window, and tells what was used meanwhile.
pub(crate) async fn measure(shape: Shape, window: Duration) -> Standing {
    let deployment = Deployment::start(1).await;
    let mut redis = deployment.redis.connect().await;
    let run = Arc::new(Run::new(shape));
    // What the broker allocates for its connections to the store is there after its first answer.
    let probe = Client::new("probe", &deployment.addrs(), 0);
    let nobody = probe.get_lock("nobody-s").await;
    assert_eq!(nobody.expect("the store answers"), None);
    let empty = Usage::read(&deployment, &mut redis).await;
    let addr = deployment.brokers[0].addr();
    let mut holding = JoinSet::new();
    take_all(&run, addr, &mut holding).await;
    let taken_in = run.epoch.elapsed();
    sleep(SETTLE).await;
    run.measure();
    let began = Instant::now();
    let begin = Usage::read(&deployment, &mut redis).await;
    sleep(window).await;
    let window = began.elapsed();
    let latencies = run.measured();
    let end = Usage::read(&deployment, &mut redis).await;
    Standing {
        shape,
        taken_in,
        usage: [empty, begin, end],
        window,
        renewals: Sample::of(latencies, window),
        refused: std::mem::take(&mut *locked(&run.refused)),
        lost: run.lost(),
    }
}

/// Opens the streams, not many at a time, and leaves those with leases in `holding`.
async fn take_all(run: &Arc<Run>, addr: SocketAddr, holding: &mut JoinSet<()>) {
    let shape = run.shape;
    let connections: Vec<_> = (0..shape.connections()).map(|_| connection(addr)).collect();
    let mut opening = JoinSet::new();
    for at in 0..shape.streams {
        if run.epoch.elapsed() > TAKING_LIMIT {
            let left = (shape.streams - at) * shape.leases_each;
            run.refuse(left, &format!("not asked for within {TAKING_LIMIT:?}"));
            break;
        }
        if opening.len() * shape.leases_each >= UNDER_WAY
            && let Some(opened) = opening.join_next().await
        {
            holding.spawn(hold(opened.expect("a stream opens or not")));
        }
        // Neighbours in time go by different connections, as if each process had its own.
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

    /// The first heartbeat of a stream, so that those of all streams are spread evenly.
    fn first_beat(&self, at: usize) -> Instant {
        let now = Instant::now();
        let phase = HEARTBEAT_EVERY.mul_f64(at as f64 / self.shape.streams as f64);
        let mut first = self.epoch + phase;
        while first < now {
            first += HEARTBEAT_EVERY;
        }
        first
    }

    /// The validity of a lease counts anew. A lease without validity meanwhile is lost.
    fn valid_from(&self, lease: usize, sent: Duration) {
        let until = u64::try_from((sent + TTL).as_nanos()).expect("a short run");
        let before = self.valid_until[lease].fetch_max(until, Ordering::Relaxed);
        if before != 0 && Duration::from_nanos(before) < self.epoch.elapsed() {
            self.lose(lease);
        }
    }

    /// How many leases were lost at any time, or are without validity now.
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

    fn refuse(&self, leases: usize, why: &str) {
        locked(&self.refused).extend(std::iter::repeat_n(why.to_owned(), leases));
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
    /// Opens a stream and takes its leases, as far as they are granted.
    async fn open(run: Arc<Run>, at: usize, connection: Channel) -> Option<Self> {
        let leases_each = run.shape.leases_each;
        let leases = at * leases_each..(at + 1) * leases_each;
        let beats = Beats::of_new_stream(run.epoch);
        let heartbeats = Arc::clone(&beats).every(HEARTBEAT_EVERY, run.first_beat(at));
        let calls = stream::iter(leases.map(|lease| request(acquire(lease))));
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
            beats,
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
            self.hear(response.ok_or_else(|| Status::aborted("the stream ended"))?);
        }
        Ok(())
    }

    fn hear(&mut self, response: HoldResponse) {
        match response.message {
            Some(Response::Ack(ack)) => self.acknowledged(&ack),
            Some(Response::Granted(granted)) => {
                let lease = usize::try_from(granted.call_id).expect("a call of this stream");
                match self.beats.sent(granted.as_of_sequence) {
                    Some(sent) => self.run.valid_from(lease, sent),
                    None => self.run.lose(lease),
                }
                let granted = granted.lease.expect("a lease");
                self.leases.insert(granted.lease_id, lease);
                // An answer after the limit has been given up.
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
        // Validity that counts from so long ago has passed, and is found so later.
        let Some(sent) = self.beats.sent(ack.sequence) else {
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

/// Listens as long as the stream lives.
async fn hold(holder: Option<Holder>) {
    let Some(mut holder) = holder else {
        return;
    };
    while let Ok(Some(response)) = holder.responses.message().await {
        holder.hear(response);
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

fn acquire(lease: usize) -> Request {
    let mut acquire = acquire_request(named(&format!("bench/lease/{lease}")));
    acquire.ttl = Some(TTL.try_into().expect("a ttl of seconds"));
    Request::Acquire(HoldAcquire {
        call_id: i64::try_from(lease).expect("few leases"),
        request: Some(acquire),
        attach_number: 1,
        ..HoldAcquire::default()
    })
}
