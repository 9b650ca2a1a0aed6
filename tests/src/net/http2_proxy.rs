//! A TCP proxy between clients and one broker, which parses HTTP/2 frames in order to drop replies
//! only.

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
/// Frame type of messages.
pub const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// Frame type that resets a stream.
pub const RST_STREAM: u8 = 3;
/// Frame type of keepalive checks.
pub const PING: u8 = 6;
/// Frame type that announces the end of the connection.
pub const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const FRAME_TYPES: usize = 10;
/// Maximum number of frames in transit. Further frames wait at the broker.
const FRAMES_IN_TRANSIT_MAX: usize = 1_024;

/// Treatment of traffic by a [`Http2Proxy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    Forward,
    /// Closes new connections immediately.
    RejectConnections,
    /// Delays each frame of the broker by this time.
    Delay(Duration),
    /// Forwards requests and drops replies. Call [`Http2Proxy::close_connections`] afterwards.
    DropReplies,
    /// Drops all frames in this direction. Connections stay open, and a close of one side is not
    /// forwarded to the other side. Call [`Http2Proxy::close_connections`] afterwards.
    DropFrames(Direction),
}

/// Direction in which traffic passes a [`Http2Proxy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the broker.
    ToBroker,
    /// From the broker to the client.
    ToClient,
    Both,
}

impl ProxyMode {
    fn drops(self, way: Direction) -> bool {
        matches!(self, Self::DropFrames(swallowed) if swallowed == way || swallowed == Direction::Both)
    }
}

/// A proxy, which listens until it is dropped.
#[derive(Debug)]
pub struct Http2Proxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    _stop: DropGuard,
}

impl Http2Proxy {
    /// Starts a proxy in front of `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("bind a loopback port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(ProxyState {
            upstream,
            mode: watch::Sender::new(ProxyMode::Forward),
            cuts: watch::Sender::new(0),
            opened: watch::Sender::new(0),
            closed: watch::Sender::new(0),
            requests: watch::Sender::new(0),
            dropped_replies: watch::Sender::new(0),
            dropped_frames: watch::Sender::new(0),
            frames_from_broker: Default::default(),
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

    /// Starts a proxy in front of each upstream.
    pub async fn start_many(upstreams: impl IntoIterator<Item = SocketAddr>) -> Vec<Self> {
        let mut proxies = Vec::new();
        for upstream in upstreams {
            proxies.push(Self::start(upstream).await);
        }
        proxies
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the treatment of traffic from now on.
    pub fn set_mode(&self, mode: ProxyMode) {
        self.shared.mode.send_replace(mode);
    }

    /// Cuts all connections, waits until they are closed, and returns their number.
    pub async fn close_connections(&self) -> usize {
        let opened = *self.shared.opened.borrow();
        let closed = *self.shared.closed.borrow();
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        wait(&self.shared.closed, opened).await;
        opened - closed
    }

    /// Returns the number of requests forwarded so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        *self.shared.requests.borrow()
    }

    /// Waits until at least `count` requests have been forwarded.
    pub async fn wait_for_requests(&self, count: usize) {
        wait(&self.shared.requests, count).await;
    }

    /// Returns the number of replies that [`ProxyMode::DropReplies`] has dropped so far.
    #[must_use]
    pub fn dropped_replies(&self) -> usize {
        *self.shared.dropped_replies.borrow()
    }

    /// Waits until [`ProxyMode::DropReplies`] has dropped at least `count` replies.
    pub async fn wait_for_dropped_replies(&self, count: usize) {
        wait(&self.shared.dropped_replies, count).await;
    }

    /// Returns the number of frames that [`ProxyMode::DropFrames`] has dropped so far.
    #[must_use]
    pub fn dropped_frames(&self) -> usize {
        *self.shared.dropped_frames.borrow()
    }

    /// Waits until [`ProxyMode::DropFrames`] has dropped at least `count` frames.
    pub async fn wait_for_dropped_frames(&self, count: usize) {
        wait(&self.shared.dropped_frames, count).await;
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        let closed = *self.shared.closed.borrow();
        self.opened_connections().saturating_sub(closed)
    }

    /// Returns the number of connections opened so far.
    #[must_use]
    pub fn opened_connections(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// Returns the number of frames of a type that the broker has sent so far.
    #[must_use]
    pub fn frames_from_broker(&self, kind: u8) -> usize {
        self.shared.frames_from_broker[usize::from(kind)].load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct ProxyState {
    upstream: SocketAddr,
    mode: watch::Sender<ProxyMode>,
    cuts: watch::Sender<usize>,
    opened: watch::Sender<usize>,
    closed: watch::Sender<usize>,
    requests: watch::Sender<usize>,
    dropped_replies: watch::Sender<usize>,
    dropped_frames: watch::Sender<usize>,
    frames_from_broker: [AtomicUsize; FRAME_TYPES],
}

impl ProxyState {
    /// Returns true if a frame in this direction is dropped now, and counts the frame then.
    fn drops_frame(&self, way: Direction) -> bool {
        let swallows = self.mode.borrow().drops(way);
        if swallows {
            self.dropped_frames.send_modify(|count| *count += 1);
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

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((client, _)) = listener.accept().await {
        if *shared.mode.borrow() != ProxyMode::RejectConnections {
            tokio::spawn(serve(client, Arc::clone(&shared)));
        }
    }
}

async fn serve(client: TcpStream, shared: Arc<ProxyState>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(broker) = TcpStream::connect(shared.upstream).await else {
        return;
    };
    shared.opened.send_modify(|count| *count += 1);
    // Nagle's algorithm would delay small frames.
    if client.set_nodelay(true).is_ok() && broker.set_nodelay(true).is_ok() {
        let (client_in, client_out) = client.into_split();
        let (broker_in, broker_out) = broker.into_split();
        tokio::select! {
            () = forward_requests(client_in, broker_out, &shared) => {}
            () = forward_replies(broker_in, client_out, &shared) => {}
            _ = cuts.changed() => {}
        }
    }
    shared.closed.send_modify(|count| *count += 1);
}

async fn forward_requests(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &ProxyState) {
    let _ended = pass_requests(input, &mut output, shared).await;
    wait_while_dropping(shared).await;
}

async fn forward_replies(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &ProxyState) {
    pass_replies(input, &mut output, shared).await;
    wait_while_dropping(shared).await;
}

/// Waits while frames are dropped, because a close of one side must not reach the other side then.
async fn wait_while_dropping(shared: &ProxyState) {
    let mut mode = shared.mode.subscribe();
    let forwarding = mode.wait_for(|mode| !matches!(mode, ProxyMode::DropFrames(_)));
    forwarding.await.expect("the proxy lives as long as this");
}

async fn pass_requests(
    input: OwnedReadHalf,
    output: &mut OwnedWriteHalf,
    shared: &ProxyState,
) -> Result<()> {
    let mut input = BufReader::new(input);
    let mut preface = [0; PREFACE_BYTES];
    input.read_exact(&mut preface).await?;
    if !shared.drops_frame(Direction::ToBroker) {
        output.write_all(&preface).await?;
    }
    loop {
        let frame = read_frame(&mut input).await?;
        if shared.drops_frame(Direction::ToBroker) {
            continue;
        }
        output.write_all(&frame).await?;
        if frame_type(&frame) == HEADERS {
            shared.requests.send_modify(|count| *count += 1);
        }
    }
}

async fn pass_replies(input: OwnedReadHalf, output: &mut OwnedWriteHalf, shared: &ProxyState) {
    let (frames, due) = mpsc::channel(FRAMES_IN_TRANSIT_MAX);
    // Frames are delivered in the order in which they were read, even after the broker has closed.
    let _ended = tokio::join!(
        read_replies(input, frames, shared),
        deliver_replies(due, output)
    );
}

async fn read_replies(
    input: OwnedReadHalf,
    frames: mpsc::Sender<(Instant, Vec<u8>)>,
    shared: &ProxyState,
) -> Result<()> {
    let mut input = BufReader::new(input);
    loop {
        let frame = read_frame(&mut input).await?;
        if let Some(count) = shared
            .frames_from_broker
            .get(usize::from(frame_type(&frame)))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if shared.drops_frame(Direction::ToClient) {
            continue;
        }
        let mode = *shared.mode.borrow();
        let reply = matches!(frame_type(&frame), DATA | HEADERS | CONTINUATION);
        if mode == ProxyMode::DropReplies && reply {
            // A reply ends with END_STREAM, on its trailers or, without a body, on its only HEADERS
            // frame.
            if ends_stream(&frame) {
                shared.dropped_replies.send_modify(|count| *count += 1);
            }
            continue;
        }
        let late = if let ProxyMode::Delay(time) = mode {
            time
        } else {
            Duration::ZERO
        };
        if frames.send((Instant::now() + late, frame)).await.is_err() {
            return Ok(());
        }
    }
}

async fn deliver_replies(
    mut frames: mpsc::Receiver<(Instant, Vec<u8>)>,
    output: &mut OwnedWriteHalf,
) -> Result<()> {
    while let Some((at, frame)) = frames.recv().await {
        // A timer takes up to a millisecond even if its deadline has passed.
        if at > Instant::now() {
            sleep_until(at).await;
        }
        output.write_all(&frame).await?;
    }
    Ok(())
}

async fn read_frame(input: &mut BufReader<OwnedReadHalf>) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEAD_BYTES];
    input.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
    let length = usize::try_from(length).expect("24 bits fit");
    frame.resize(HEAD_BYTES + length, 0);
    input.read_exact(&mut frame[HEAD_BYTES..]).await?;
    Ok(frame)
}

fn frame_type(frame: &[u8]) -> u8 {
    frame[3]
}

fn ends_stream(frame: &[u8]) -> bool {
    matches!(frame_type(frame), DATA | HEADERS) && frame[4] & 1 == 1
}
