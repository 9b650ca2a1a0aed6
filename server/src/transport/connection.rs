//! One connection of a client: plain or encrypted, counted while it lives, and ended when it does not take
//! what is sent to it, floods the broker with frames that ask for nothing, or has a certificate that counts
//! no more.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::{
    backlog::Backlog,
    budget::Budget,
    bursts::{Burst, TooLong},
    control::Control,
    frames::{Frames, Speaks},
    load::Load,
    seats::Seat,
    tls::Certified,
};
use crate::access::Certificate;

/// The first words of a client are few.
const PIECE: usize = 64;
/// How long a client may take nothing of what is sent to it. One that does not answer whether it lives is
/// told that the connection ends, which would wait as long as all before it.
const TAKES_WITHIN: Duration = Duration::from_secs(15);
/// Calls in progress on a connection before its first admitted call; while there are more nothing is read.
const UNADMITTED_CALLS_MAX: usize = 16;
/// After so many bytes without a pause others have their turn: by itself a connection would read some
/// megabytes first.
const TURN: usize = 16 << 10;
/// How often a connection that keeps much checks whether it may be read again.
const CHECKS_ROOM_EVERY: Duration = Duration::from_millis(20);
/// How often a connection that is not read checks whether its client has closed it.
const CHECKS_CLOSED_EVERY: Duration = Duration::from_secs(1);
/// What is read at a time while calls come together, or many wait for their messages.
const SMALL_PIECE: usize = 1 << 10;
/// How long a client that was told to go elsewhere may finish what it has begun.
const LEAVES_WITHIN: Duration = Duration::from_secs(3);
/// A frame that tells the client to begin nothing new here, while all that it has sent counts
/// (RFC 9113, section 6.8): of stream 0, with the largest stream, and NO_ERROR.
const GO_AWAY: [u8; 17] = [
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0,
];

/// Who is at the other end, for calls to ask.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client, or a proxy before it.
    pub address: SocketAddr,
    /// Its certificate, if it had to show one.
    pub certificate: Option<Certificate>,
    /// What its calls keep in memory.
    pub load: Arc<Load>,
}

/// A connection.
pub struct Connection {
    io: Io,
    peer: Peer,
    frames: Frames,
    control: Arc<Control>,
    backlog: Backlog,
    burst: Burst,
    /// While the connection waits for room in the budget.
    next_room_check: Option<Pin<Box<Sleep>>>,
    /// Set while the connection is not read.
    next_closed_check: Option<Pin<Box<Sleep>>>,
    budget: Arc<Budget>,
    /// Nothing is read until there are fewer calls in progress, or the client takes its answers.
    is_paused: bool,
    /// The beginning, which was read already, and how much of it was passed on.
    heard: Vec<u8>,
    passed_on: usize,
    /// Bytes that were read in this turn.
    in_turn: usize,
    /// While the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    life: Life,
    /// How much of [`GO_AWAY`] was sent; `None`: it is not to be sent.
    gone_away: Option<usize>,
    seat: Seat,
}

/// How long the connection may last.
enum Life {
    /// As long as both sides want.
    Unbounded,
    /// Until the client's certificate counts no more.
    Certified(BoxFuture<'static, ()>),
    /// Until then, after that.
    Leaving(Pin<Box<Sleep>>),
}

pub(super) enum Io {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl Peer {
    /// Notes that a call of the connection was admitted.
    pub fn admitted(&self) {
        self.load.admitted();
    }
}

impl Connection {
    /// On which the client has begun to speak. Until it does nothing is kept for it but this future.
    pub(super) async fn begun(
        mut io: Io,
        certified: Option<Certified>,
        address: SocketAddr,
        speaks: Speaks,
        (mut seat, budget): (Seat, &Arc<Budget>),
    ) -> io::Result<Self> {
        let (certificate, life) = match certified {
            None => (None, Life::Unbounded),
            Some(Certified { certificate, ended }) => (Some(certificate), Life::Certified(ended)),
        };
        let name = certificate.as_ref().and_then(|one| one.name().ok());
        if name.is_some_and(|name| !seat.belongs_to(name)) {
            return Err(io::Error::other("too many connections of one identity"));
        }
        let (mut frames, mut heard) = (Frames::new(speaks), Vec::new());
        while !frames.have_begun() {
            let mut piece = [0; PIECE];
            let read = io.read(&mut piece).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            frames.read(&piece[..read])?;
            heard.extend(&piece[..read]);
        }
        let peer = Peer {
            address,
            certificate,
            load: Arc::new(Load::new(budget, seat.ticket())),
        };
        Ok(Self {
            io,
            peer,
            frames,
            control: Arc::clone(seat.ticket().control()),
            backlog: Backlog::new(&budget.call_turns),
            burst: Burst::new(&budget.bursts),
            next_room_check: None,
            next_closed_check: None,
            budget: Arc::clone(budget),
            is_paused: false,
            heard,
            passed_on: 0,
            in_turn: 0,
            stalled: None,
            life,
            gone_away: None,
            seat,
        })
    }

    /// Counts calls in progress until one is admitted, and returns false while nothing may be read: there
    /// are too many of those calls, or answers wait because the client takes none.
    fn may_read(&mut self) -> bool {
        let calls = match self.frames.calls() {
            None => 0,
            Some(calls) if !self.seat.is_admitted() => calls,
            Some(_) => {
                self.frames.stop_counting_calls();
                0
            }
        };
        self.is_paused = calls >= UNADMITTED_CALLS_MAX || self.stalled.is_some();
        !self.is_paused
    }

    /// Waits until the connection may read on.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.may_read() || self.poll_room(cx).is_pending() {
            self.backlog.leave_turn();
            return Poll::Pending;
        }
        ready!(self.backlog.poll_short(&self.peer.load, cx));
        let is_in_burst = self.peer.load.is_in_burst();
        match self.burst.poll_turn(is_in_burst, cx) {
            Poll::Ready(Ok(())) => self.backlog.poll_turn(cx).map(Ok),
            Poll::Ready(Err(TooLong)) => {
                let why =
                    "calls of the client wait for their messages, and other clients for their turn";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            Poll::Pending => {
                self.backlog.leave_turn();
                Poll::Pending
            }
        }
    }

    /// Returns an error once the connection may last no longer; tells the client before.
    fn outlives(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Life::Certified(ended) = &mut self.life {
            ready!(ended.as_mut().poll(cx));
            self.life = Life::Leaving(Box::pin(sleep(LEAVES_WITHIN)));
            self.gone_away = Some(0);
            // What it cannot take now it gets before the next answer.
            let _ = self.go_away(cx);
        }
        let Life::Leaving(until) = &mut self.life else {
            return Poll::Pending;
        };
        ready!(until.as_mut().poll(cx));
        let why = "the client's certificate has expired or was withdrawn";
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Sends [`GO_AWAY`], between two frames of the server: tonic can tell all clients of a listener to go,
    /// or those of an age, but not a single one.
    fn go_away(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut sent) = self.gone_away else {
            return Poll::Ready(Ok(()));
        };
        if sent == 0 && !self.frames.are_between() {
            return Poll::Ready(Ok(()));
        }
        while sent < GO_AWAY.len() {
            sent += ready!(Pin::new(&mut self.io).poll_write(cx, &GO_AWAY[sent..]))?;
            self.gone_away = Some(sent);
        }
        self.gone_away = None;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Waits while the connection keeps much, and all together do.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.budget.has_room_for(self.peer.load.bytes()) {
            let check = || Box::pin(sleep(CHECKS_ROOM_EVERY));
            let next = self.next_room_check.get_or_insert_with(check);
            ready!(next.as_mut().poll(cx));
            self.next_room_check = None;
        }
        self.next_room_check = None;
        Poll::Ready(())
    }

    /// Returns an error once the client has closed the connection, which is otherwise noticed only by reading.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let check = || Box::pin(sleep(CHECKS_CLOSED_EVERY));
            let next = self.next_closed_check.get_or_insert_with(check);
            ready!(next.as_mut().poll(cx));
            self.next_closed_check = None;
            if self.io.is_closed_by_peer() {
                return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// What came of sending, or an error if nothing has for too long.
    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            if self.stalled.take().is_some() {
                self.peer.load.stalled(false);
            }
            if self.is_paused && self.may_read() {
                self.control.wake();
            }
            return sent;
        }
        if let Poll::Ready(why) = self.outlives(cx) {
            return Poll::Ready(Err(why));
        }
        // HTTP/2 reads nothing while it cannot write.
        self.backlog.leave_turn();
        let load = &self.peer.load;
        let deadline = self.stalled.get_or_insert_with(|| {
            load.stalled(true);
            Box::pin(sleep(TAKES_WITHIN))
        });
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Reads a small piece while calls come together, or many of all connections wait for their messages, so that none
    /// adds many at once.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.backlog.is_crowded() && !self.budget.has_many_incomplete_calls() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let mut piece = [0; SMALL_PIECE];
        let most = buffer.remaining().min(SMALL_PIECE);
        let mut piece = ReadBuf::new(&mut piece[..most]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut piece))?;
        buffer.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl Io {
    /// Returns whether the peer sends nothing more. What it has sent before may be unread.
    fn is_closed_by_peer(&self) -> bool {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Encrypted(tls) => tls.get_ref().0,
        };
        let readiness = tcp.ready(Interest::READABLE).now_or_never();
        readiness.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Self::Encrypted(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Self::Encrypted(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bytes),
            Self::Encrypted(io) => Pin::new(io).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Encrypted(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Encrypted(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Encrypted(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.control.register(cx.waker());
        if self.control.is_cut() || self.peer.load.is_left_alone() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.passed_on < self.heard.len() {
            let rest = &self.heard[self.passed_on..];
            let taken = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..taken]);
            self.passed_on += taken;
            if self.passed_on == self.heard.len() {
                (self.heard, self.passed_on) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        if self.in_turn > TURN {
            self.in_turn = 0;
            if let Poll::Ready(why) = self.outlives(cx) {
                return Poll::Ready(Err(why));
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.poll_turn(cx)?.is_pending() {
            if let Poll::Ready(why) = self.outlives(cx) {
                return Poll::Ready(Err(why));
            }
            return self.poll_closed(cx).map(Err);
        }
        let before = buffer.filled().len();
        let read = self.poll_piece(cx, buffer);
        if let Poll::Ready(Ok(())) = read {
            let new = &buffer.filled()[before..];
            self.frames.read(new)?;
            self.in_turn += new.len();
            let received = self.frames.take_received();
            self.backlog.read(received);
        } else {
            self.in_turn = 0;
            let this = self.as_mut().get_mut();
            this.backlog.read_all(&this.peer.load);
            if let Poll::Ready(why) = self.outlives(cx) {
                return Poll::Ready(Err(why));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.go_away(cx)?.is_pending() {
            return self.in_time(cx, Poll::Pending);
        }
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.frames.written(&bytes[..count]);
        }
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.go_away(cx)?.is_pending() {
            return self.in_time(cx, Poll::Pending);
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        if let Poll::Ready(Ok(mut left)) = written {
            for part in bytes {
                let count = left.min(part.len());
                self.frames.written(&part[..count]);
                left -= count;
            }
        }
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.go_away(cx)?.is_pending() {
            return self.in_time(cx, Poll::Pending);
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.in_time(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{io::AsyncWriteExt as _, net::TcpListener, time::timeout};

    use super::*;
    use crate::{
        metrics::{Listener, Metrics},
        transport::{
            backlog::Received,
            seats::{ConnectionLimits, Connections, Seats},
        },
    };

    /// Bytes that a reader takes at once.
    const AT_A_TIME: usize = 4 << 10;

    /// A client, and its connection.
    async fn connected() -> (TcpStream, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(b"GET").await.expect("it reads");
        let (tcp, from) = listener.accept().await.expect("a connection");
        let limits = ConnectionLimits {
            total: 1,
            per_address: 1,
            per_identity: 1,
        };
        let counted = Connections {
            metrics: Metrics::off(),
            listener: Listener::Api,
        };
        let seat = Seats::new(limits, counted).take(from.ip());
        let place = (seat.expect("a place"), &Arc::default());
        let begun = Connection::begun(Io::Plain(tcp), None, from, Speaks::Either, place).await;
        (client, begun.expect("it speaks"))
    }

    #[tokio::test]
    async fn others_have_their_turn_after_so_many_bytes() {
        let (mut client, mut connection) = connected().await;
        let mut longest = 0;
        let read = poll_fn(|cx| {
            let mut in_turn = 0;
            loop {
                let mut piece = [0; AT_A_TIME];
                let mut buffer = ReadBuf::new(&mut piece);
                let read = Pin::new(&mut connection).poll_read(cx, &mut buffer);
                if read.is_pending() || buffer.filled().is_empty() {
                    return read;
                }
                in_turn += buffer.filled().len();
                longest = longest.max(in_turn);
            }
        });
        // The client writes while the connection gives way, and always as much as the socket takes.
        let write = async move { client.write_all(&vec![b'x'; 16 * TURN]).await };
        let (written, read) = tokio::join!(write, read);
        written.and(read).expect("all is read");
        assert!(longest <= TURN + 2 * AT_A_TIME, "{longest} in one turn");
    }

    #[tokio::test]
    async fn a_connection_that_is_not_read_ends_with_its_client() {
        let (mut client, mut connection) = connected().await;
        let mut beginning = [0; 3];
        let read = connection.read_exact(&mut beginning).await;
        read.expect("what it began with");
        let load = Arc::clone(&connection.peer.load);
        let _unread = load.paused();
        let bytes = u64::MAX / 4;
        connection.backlog.read(Received { heads: 0, bytes });
        client.write_all(b" /").await.expect("the socket has room");
        let mut piece = [0; AT_A_TIME];
        let while_open = timeout(2 * CHECKS_CLOSED_EVERY, connection.read(&mut piece)).await;
        assert!(while_open.is_err(), "{while_open:?}: it is not read");
        drop(client);
        let closed = timeout(5 * CHECKS_CLOSED_EVERY, connection.read(&mut piece)).await;
        let closed = closed.expect("it is noticed");
        let error = closed.expect_err("nothing is read");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_connection_whose_client_takes_nothing_leaves_its_turn() {
        let (_client, mut connection) = connected().await;
        let turns = connection.budget.call_turns.clone();
        connection.backlog.read(Received {
            heads: 16,
            bytes: 0,
        });
        let turn = poll_fn(|cx| Poll::Ready(connection.backlog.poll_turn(cx))).await;
        assert!(turn.is_ready());
        let before = turns.free();
        let sent: Poll<io::Result<()>> = poll_fn(|cx| {
            let sent = connection.in_time(cx, Poll::Pending);
            Poll::Ready(sent)
        })
        .await;
        assert!(sent.is_pending());
        assert_eq!(turns.free(), before + 1);
    }
}
