//! A TCP proxy between clients and one broker that knows HTTP/2 frames, so that it can lose exactly
//! the replies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Result};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// What happens to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It passes.
    Forward,
    /// New connections are closed at once.
    Refuse,
    /// Each frame of the broker comes later.
    Delay(Duration),
    /// Requests pass, replies don't. Connections are to be cut afterwards.
    SwallowReplies,
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
            _ = requests(client_in, broker_out, &shared) => {}
            _ = replies(broker_in, client_out, &shared) => {}
            _ = cuts.changed() => {}
        }
    }
    shared.closed.send_modify(|count| *count += 1);
}

async fn requests(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &Shared) -> Result<()> {
    let mut input = BufReader::new(input);
    let mut preface = [0; PREFACE_BYTES];
    input.read_exact(&mut preface).await?;
    output.write_all(&preface).await?;
    loop {
        let frame = frame(&mut input).await?;
        output.write_all(&frame).await?;
        if kind(&frame) == HEADERS {
            shared.requests.send_modify(|count| *count += 1);
        }
    }
}

async fn replies(input: OwnedReadHalf, mut output: OwnedWriteHalf, shared: &Shared) -> Result<()> {
    let mut input = BufReader::new(input);
    loop {
        let frame = frame(&mut input).await?;
        let mode = *shared.mode.borrow();
        let reply = matches!(kind(&frame), DATA | HEADERS | CONTINUATION);
        if mode == Mode::SwallowReplies && reply {
            // A reply ends with END_STREAM, on its trailers or, without a body, on its one head.
            if ends_stream(&frame) {
                shared.swallowed.send_modify(|count| *count += 1);
            }
            continue;
        }
        if let Mode::Delay(time) = mode {
            tokio::time::sleep(time).await;
        }
        output.write_all(&frame).await?;
    }
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
