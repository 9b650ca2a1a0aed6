//! A TCP proxy between clients and one broker that knows HTTP/2 frames, so that it can lose exactly
//! the replies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Result};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// A kind of frame: messages.
pub const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// A kind of frame: a stream is broken off.
pub const RST_STREAM: u8 = 3;
/// A kind of frame.
pub const PING: u8 = 6;
/// A kind of frame: the connection is to end.
pub const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const KINDS: usize = 10;
/// Frames that the network holds; more wait at the broker.
const ON_THE_WAY: usize = 1_024;

/// What happens to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It passes.
    Forward,
    /// New connections are closed at once.
    Refuse,
    /// Each frame of the broker comes so much later.
    Delay(Duration),
    /// Requests pass, replies don't. Connections are to be cut afterwards.
    SwallowReplies,
    /// Nothing passes this way or these ways, connections stay open, and neither side hears of the
    /// other's end. Connections are to be cut afterwards.
    Swallow(Way),
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client.
    ToBroker,
    /// From the broker.
    ToClient,
    /// Both.
    Both,
}

impl Mode {
    fn swallows(self, way: Way) -> bool {
        matches!(self, Self::Swallow(swallowed) if swallowed == way || swallowed == Way::Both)
    }
}

/// Listens until dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl Proxy {
    /// Starts one before `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("bind a loopback port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            upstream,
            mode: watch::Sender::new(Mode::Forward),
            cuts: watch::Sender::new(0),
            opened: watch::Sender::new(0),
            closed: watch::Sender::new(0),
            requests: watch::Sender::new(0),
            swallowed: watch::Sender::new(0),
            lost: watch::Sender::new(0),
            from_broker: Default::default(),
        });
        let stop = CancellationToken::new();
        let task = accept(listener, Arc::clone(&shared));
        tokio::spawn(stop.clone().run_until_cancelled_owned(task));
        Self {
            addr,
            shared,
            _stop: stop.drop_guard(),
        }
    }

    /// Starts one before each.
    pub async fn start_many(upstreams: impl IntoIterator<Item = SocketAddr>) -> Vec<Self> {
        let mut proxies = Vec::new();
        for upstream in upstreams {
            proxies.push(Self::start(upstream).await);
        }
        proxies
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What happens to traffic from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Cuts every connection; returns once they are closed, with how many were open.
    pub async fn cut(&self) -> usize {
        let opened = *self.shared.opened.borrow();
        let closed = *self.shared.closed.borrow();
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        wait(&self.shared.closed, opened).await;
        opened - closed
    }

    /// How many requests have been forwarded so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        *self.shared.requests.borrow()
    }

    /// Waits until that many requests have been forwarded.
    pub async fn wait_for_requests(&self, count: usize) {
        wait(&self.shared.requests, count).await;
    }

    /// How many replies have been swallowed so far.
    #[must_use]
    pub fn swallowed(&self) -> usize {
        *self.shared.swallowed.borrow()
    }

    /// Waits until that many replies have been swallowed.
    pub async fn wait_for_swallowed(&self, count: usize) {
        wait(&self.shared.swallowed, count).await;
    }

    /// How many frames [`Mode::Swallow`] has swallowed so far.
    #[must_use]
    pub fn lost(&self) -> usize {
        *self.shared.lost.borrow()
    }

    /// Waits until that many frames have been swallowed.
    pub async fn wait_for_lost(&self, count: usize) {
        wait(&self.shared.lost, count).await;
    }

    /// How many connections are open.
    #[must_use]
    pub fn open(&self) -> usize {
        let closed = *self.shared.closed.borrow();
        self.opened().saturating_sub(closed)
    }

    /// How many connections have been opened so far.
    #[must_use]
    pub fn opened(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// How many frames of a kind the broker has sent so far.
    #[must_use]
    pub fn from_broker(&self, kind: u8) -> usize {
        self.shared.from_broker[usize::from(kind)].load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<usize>,
    opened: watch::Sender<usize>,
    closed: watch::Sender<usize>,
    requests: watch::Sender<usize>,
    swallowed: watch::Sender<usize>,
    lost: watch::Sender<usize>,
    from_broker: [AtomicUsize; KINDS],
}

impl Shared {
    /// Whether a frame that goes this way is swallowed now.
    fn swallows(&self, way: Way) -> bool {
        let swallows = self.mode.borrow().swallows(way);
        if swallows {
            self.lost.send_modify(|count| *count += 1);
        }
        swallows
    }
}

async fn wait(counter: &watch::Sender<usize>, count: usize) {
    let mut counter = counter.subscribe();
    counter
        .wait_for(|now| *now >= count)
        .await
        .expect("the proxy counts while it lives");
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if *shared.mode.borrow() != Mode::Refuse {
            tokio::spawn(serve(client, Arc::clone(&shared)));
        }
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(broker) = TcpStream::connect(shared.upstream).await else {
        return;
    };
    shared.opened.send_modify(|count| *count += 1);
    // Small frames both ways: without this the kernel would hold them back.
    if client.set_nodelay(true).is_ok() && broker.set_nodelay(true).is_ok() {
        let (client_in, client_out) = client.into_split();
        let (broker_in, broker_out) = broker.into_split();
        tokio::select! {
            () = requests(client_in, broker_out, &shared) => {}
            () = replies(broker_in, client_out, &shared) => {}
            _ = cuts.changed() => {}
        }
    }
    shared.closed.send_modify(|count| *count += 1);
}

async fn requests(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &Shared) {
    let _ended = pass_requests(input, &mut output, shared).await;
    silence(shared).await;
}

async fn replies(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &Shared) {
    pass_replies(input, &mut output, shared).await;
    silence(shared).await;
}

/// While packets are lost, the end of one side does not come to the other.
async fn silence(shared: &Shared) {
    let mut mode = shared.mode.subscribe();
    let heard = mode.wait_for(|mode| !matches!(mode, Mode::Swallow(_)));
    heard.await.expect("the proxy lives as long as this");
}

async fn pass_requests(
    input: OwnedReadHalf,
    output: &mut OwnedWriteHalf,
    shared: &Shared,
) -> Result<()> {
    let mut input = BufReader::new(input);
    let mut preface = [0; PREFACE_BYTES];
    input.read_exact(&mut preface).await?;
    if !shared.swallows(Way::ToBroker) {
        output.write_all(&preface).await?;
    }
    loop {
        let frame = frame(&mut input).await?;
        if shared.swallows(Way::ToBroker) {
            continue;
        }
        output.write_all(&frame).await?;
        if kind(&frame) == HEADERS {
            shared.requests.send_modify(|count| *count += 1);
        }
    }
}

async fn pass_replies(input: OwnedReadHalf, output: &mut OwnedWriteHalf, shared: &Shared) {
    let (frames, due) = mpsc::channel(ON_THE_WAY);
    // What was read has come, and is delivered in its order.
    let _ended = tokio::join!(read_replies(input, frames, shared), deliver(due, output));
}

async fn read_replies(
    input: OwnedReadHalf,
    frames: mpsc::Sender<(Instant, Vec<u8>)>,
    shared: &Shared,
) -> Result<()> {
    let mut input = BufReader::new(input);
    loop {
        let frame = frame(&mut input).await?;
        if let Some(count) = shared.from_broker.get(usize::from(kind(&frame))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if shared.swallows(Way::ToClient) {
            continue;
        }
        let mode = *shared.mode.borrow();
        let reply = matches!(kind(&frame), DATA | HEADERS | CONTINUATION);
        if mode == Mode::SwallowReplies && reply {
            // A reply ends with END_STREAM, on its trailers or, without a body, on its one head.
            if ends_stream(&frame) {
                shared.swallowed.send_modify(|count| *count += 1);
            }
            continue;
        }
        let late = if let Mode::Delay(time) = mode {
            time
        } else {
            Duration::ZERO
        };
        if frames.send((Instant::now() + late, frame)).await.is_err() {
            return Ok(());
        }
    }
}

async fn deliver(
    mut frames: mpsc::Receiver<(Instant, Vec<u8>)>,
    output: &mut OwnedWriteHalf,
) -> Result<()> {
    while let Some((at, frame)) = frames.recv().await {
        // A timer takes up to a millisecond even if its time has come.
        if at > Instant::now() {
            sleep_until(at).await;
        }
        output.write_all(&frame).await?;
    }
    Ok(())
}

async fn frame(input: &mut BufReader<OwnedReadHalf>) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEAD_BYTES];
    input.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
    let length = usize::try_from(length).expect("24 bits fit");
    frame.resize(HEAD_BYTES + length, 0);
    input.read_exact(&mut frame[HEAD_BYTES..]).await?;
    Ok(frame)
}

fn kind(frame: &[u8]) -> u8 {
    frame[3]
}

fn ends_stream(frame: &[u8]) -> bool {
    matches!(kind(frame), DATA | HEADERS) && frame[4] & 1 == 1
}
