//! A client connection, plain or encrypted. It is closed when its client does not read, floods the
//! broker with idle frames, or has a certificate that is no longer valid.

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
use tokio_util::either::Either;
use tonic::transport::server::Connected;

use super::{
    backlog::Backlog,
    budget::Budget,
    bursts::{Burst, BurstTooLong},
    connection_limit::ConnectionPermit,
    connection_load::ConnectionLoad,
    frame_monitor::{AllowedProtocol, FrameMonitor},
    tls::VerifiedClient,
};
use crate::access::Certificate;

/// Size of the reads before the client's first frame, which is short.
const PREREAD_CHUNK: usize = 64;
/// Time after which a blocked write closes the connection. HTTP/2 keepalive is not enough: on a
/// missing pong the server sends GOAWAY, which is queued behind the unread data.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of calls in progress before the first authenticated call. With more, the
/// connection is not read.
const UNADMITTED_CALLS_MAX: usize = 16;
/// Bytes after which the task yields to others. Otherwise a connection would read some megabytes
/// first.
const READ_BUDGET: usize = 16 << 10;
/// Interval at which a connection over its memory limit checks whether it may be read again.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which a connection that is not read checks whether its client has closed it.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Size of a read while the connection is crowded, or many calls of all connections are incomplete.
const SMALL_READ_BYTES: usize = 1 << 10;
/// Time in which a client that received GOAWAY may finish its calls.
const GO_AWAY_TIMEOUT: Duration = Duration::from_secs(3);
/// GOAWAY frame of stream 0 with the highest stream id and NO_ERROR (RFC 9113, section 6.8). The
/// client begins no new calls, and all calls that it has sent are served.
const GO_AWAY: [u8; 17] = [
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0,
];

/// Remote end of a connection, available to its calls.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Address of the client, or of a proxy in front of it.
    pub address: SocketAddr,
    /// Certificate of the client, if the listener requires one.
    pub certificate: Option<Certificate>,
    /// Memory and concurrency state of the connection's calls.
    pub load: Arc<ConnectionLoad>,
}

/// A client connection as tonic serves it.
pub struct Connection {
    io: Io,
    peer: Peer,
    frames: FrameMonitor,
    backlog: Backlog,
    burst: Burst,
    /// Timer of the next check, while the connection waits for room in the memory budget.
    next_room_check: Option<Pin<Box<Sleep>>>,
    /// Timer of the next check, while the connection is not read.
    next_closed_check: Option<Pin<Box<Sleep>>>,
    budget: Arc<Budget>,
    /// True if reads wait until fewer calls are in progress, or until the client reads responses.
    is_paused: bool,
    /// Bytes that were read before the connection was passed to the server. `passed_on` of them
    /// were returned to it.
    preread: Vec<u8>,
    preread_position: usize,
    /// Number of bytes read since the task last yielded.
    bytes_this_poll: usize,
    /// Timer of the write timeout, while writes are blocked.
    write_timer: Option<Pin<Box<Sleep>>>,
    lifetime: Lifetime,
    /// Number of bytes of [`GO_AWAY`] that were sent, or `None` if none has to be sent.
    go_away_sent: Option<usize>,
    permit: ConnectionPermit,
}

/// Limit of the connection's lifetime.
enum Lifetime {
    /// Without limit.
    Unbounded,
    /// Until the client's certificate is no longer valid.
    Certified(BoxFuture<'static, ()>),
    /// Until this timer ends, after GOAWAY was sent.
    Leaving(Pin<Box<Sleep>>),
}

/// Socket of a connection, plain or encrypted.
pub(super) type Io = Either<TcpStream, Box<TlsStream<TcpStream>>>;

impl Connection {
    /// Waits for the client's first frame (or HTTP/1.1), and returns the connection. Until then no
    /// state besides this future exists.
    pub(super) async fn call_started(
        mut io: Io,
        certified: Option<VerifiedClient>,
        address: SocketAddr,
        protocol: AllowedProtocol,
        mut permit: ConnectionPermit,
        budget: &Arc<Budget>,
    ) -> io::Result<Self> {
        let (certificate, lifetime) = match certified {
            None => (None, Lifetime::Unbounded),
            Some(client) => (
                Some(client.certificate),
                Lifetime::Certified(client.until_invalid),
            ),
        };
        let name = certificate
            .as_ref()
            .and_then(|certificate| certificate.name().ok());
        if name.is_some_and(|name| !permit.bind_identity(name)) {
            return Err(io::Error::other("too many connections of this identity"));
        }
        let (mut frames, mut preread) = (FrameMonitor::new(protocol), Vec::new());
        while !frames.has_started() {
            let mut piece = [0; PREREAD_CHUNK];
            let read = io.read(&mut piece).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            frames.read(&piece[..read])?;
            preread.extend(&piece[..read]);
        }
        let peer = Peer {
            address,
            certificate,
            load: Arc::new(ConnectionLoad::new(budget, Arc::clone(&permit.ticket))),
        };
        Ok(Self {
            io,
            peer,
            frames,
            backlog: Backlog::new(&budget.call_permits),
            burst: Burst::new(&budget.burst_permits),
            next_room_check: None,
            next_closed_check: None,
            budget: Arc::clone(budget),
            is_paused: false,
            preread,
            preread_position: 0,
            bytes_this_poll: 0,
            write_timer: None,
            lifetime,
            go_away_sent: None,
            permit,
        })
    }

    /// Returns false while nothing may be read: too many calls are in progress on a connection
    /// without an authenticated call, or the client does not read responses. Stops counting calls
    /// after the first authenticated call.
    fn may_read(&mut self) -> bool {
        let calls = match self.frames.calls() {
            None => 0,
            Some(calls) if !self.permit.ticket.is_admitted() => calls,
            Some(_) => {
                self.frames.stop_counting_calls();
                0
            }
        };
        self.is_paused = calls >= UNADMITTED_CALLS_MAX || self.write_timer.is_some();
        !self.is_paused
    }

    /// Waits until the connection may be read.
    fn poll_may_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.may_read() || self.poll_room(cx).is_pending() {
            self.backlog.release_permit();
            return Poll::Pending;
        }
        ready!(self.backlog.poll_below_limits(&self.peer.load, cx));
        let is_in_burst = self.peer.load.is_in_burst();
        match self.burst.poll_permit(is_in_burst, cx) {
            Poll::Ready(Ok(())) => self.backlog.poll_permit(cx).map(Ok),
            Poll::Ready(Err(BurstTooLong)) => {
                let message =
                    "request messages of the client are incomplete while other clients wait";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
            Poll::Pending => {
                self.backlog.release_permit();
                Poll::Pending
            }
        }
    }

    /// Returns an error once the connection must close. Sends [`GO_AWAY`] beforehand.
    fn check_lifetime(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Lifetime::Certified(ended) = &mut self.lifetime
            && ended.as_mut().poll(cx).is_ready()
        {
            self.lifetime = Lifetime::Leaving(Box::pin(sleep(GO_AWAY_TIMEOUT)));
            self.go_away_sent = Some(0);
            // Bytes that cannot be sent now are sent before the next response.
            let _ = self.go_away(cx);
        }
        if let Lifetime::Leaving(until) = &mut self.lifetime
            && until.as_mut().poll(cx).is_ready()
        {
            let message = "the client's certificate has expired or was withdrawn";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        Ok(())
    }

    /// Sends [`GO_AWAY`] between two frames of the server. tonic sends GOAWAY only to all clients
    /// of a listener or on connections of a certain age, not to a single client.
    fn go_away(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut sent) = self.go_away_sent else {
            return Poll::Ready(Ok(()));
        };
        if sent == 0 && !self.frames.is_between_frames() {
            return Poll::Ready(Ok(()));
        }
        while sent < GO_AWAY.len() {
            sent += ready!(Pin::new(&mut self.io).poll_write(cx, &GO_AWAY[sent..]))?;
            self.go_away_sent = Some(sent);
        }
        self.go_away_sent = None;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Waits while the connection uses much memory and the total is near its maximum.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.budget.has_room_for(self.peer.load.bytes()) {
            let check = || Box::pin(sleep(ROOM_CHECK_INTERVAL));
            let next = self.next_room_check.get_or_insert_with(check);
            ready!(next.as_mut().poll(cx));
            self.next_room_check = None;
        }
        self.next_room_check = None;
        Poll::Ready(())
    }

    /// Returns an error once the client has closed the connection, which otherwise only a read
    /// detects.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let check = || Box::pin(sleep(CLOSED_CHECK_INTERVAL));
            let next = self.next_closed_check.get_or_insert_with(check);
            ready!(next.as_mut().poll(cx));
            self.next_closed_check = None;
            if is_closed_by_peer(&self.io) {
                return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// Returns the result of a write, or an error once writes have been blocked for
    /// [`WRITE_TIMEOUT`].
    fn with_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            if self.write_timer.take().is_some() {
                self.peer.load.set_stalled(false);
            }
            if self.is_paused && self.may_read() {
                self.permit.ticket.control.task.wake();
            }
            return sent;
        }
        self.check_lifetime(cx)?;
        // The HTTP/2 server reads nothing while it cannot write.
        self.backlog.release_permit();
        let load = &self.peer.load;
        let deadline = self.write_timer.get_or_insert_with(|| {
            load.set_stalled(true);
            Box::pin(sleep(WRITE_TIMEOUT))
        });
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Reads from the socket: only a small piece while the connection is crowded, or many calls of
    /// all connections are incomplete, so that no connection adds many calls at once.
    fn poll_read_socket(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.backlog.is_crowded() && !self.budget.has_many_incomplete_calls() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let mut piece = [0; SMALL_READ_BYTES];
        let bytes_max = buffer.remaining().min(SMALL_READ_BYTES);
        let mut piece = ReadBuf::new(&mut piece[..bytes_max]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut piece))?;
        buffer.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

/// Returns true if the peer sends nothing further. Data sent before may be unread.
fn is_closed_by_peer(io: &Io) -> bool {
    let tcp = match io {
        Io::Left(tcp) => tcp,
        Io::Right(tls) => tls.get_ref().0,
    };
    let readiness = tcp.ready(Interest::READABLE).now_or_never();
    readiness.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
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
        let control = &self.permit.ticket.control;
        control.task.register(cx.waker());
        if control.is_close_requested() || self.peer.load.has_stale_response() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.preread_position < self.preread.len() {
            let rest = &self.preread[self.preread_position..];
            let count = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..count]);
            self.preread_position += count;
            if self.preread_position == self.preread.len() {
                (self.preread, self.preread_position) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        if self.bytes_this_poll > READ_BUDGET {
            self.bytes_this_poll = 0;
            self.check_lifetime(cx)?;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.poll_may_read(cx)?.is_pending() {
            self.check_lifetime(cx)?;
            return self.poll_closed(cx).map(Err);
        }
        let before = buffer.filled().len();
        let read = self.poll_read_socket(cx, buffer);
        if let Poll::Ready(Ok(())) = read {
            let new = &buffer.filled()[before..];
            self.frames.read(new)?;
            self.bytes_this_poll += new.len();
            let received = self.frames.take_received();
            self.backlog.read(received);
        } else {
            self.bytes_this_poll = 0;
            let this = self.as_mut().get_mut();
            this.backlog.read_all(&this.peer.load);
            self.check_lifetime(cx)?;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.go_away(cx)?.is_pending() {
            return self.with_write_timeout(cx, Poll::Pending);
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        if let Poll::Ready(Ok(mut remaining)) = written {
            for part in bytes {
                let count = remaining.min(part.len());
                self.frames.written(&part[..count]);
                remaining -= count;
            }
        }
        self.with_write_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.go_away(cx)?.is_pending() {
            return self.with_write_timeout(cx, Poll::Pending);
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.with_write_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.with_write_timeout(cx, shut)
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
            connection_limit::{ConnectionLimiter, ConnectionLimits},
        },
    };

    /// Number of bytes in one read.
    const AT_A_TIME: usize = 4 << 10;

    /// Returns a client and its connection.
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
        let limiter = ConnectionLimiter::new(limits, Listener::Api, Metrics::off());
        let permit = limiter.acquire(from.ip()).expect("a permit");
        let connection = Connection::call_started(
            Io::Left(tcp),
            None,
            from,
            AllowedProtocol::Either,
            permit,
            &Arc::default(),
        )
        .await;
        (client, connection.expect("it speaks"))
    }

    #[tokio::test]
    async fn other_connections_are_read_after_the_read_budget() {
        let (mut client, mut connection) = connected().await;
        let mut longest = 0;
        let read = poll_fn(|cx| {
            let mut bytes_this_poll = 0;
            loop {
                let mut piece = [0; AT_A_TIME];
                let mut buffer = ReadBuf::new(&mut piece);
                let read = Pin::new(&mut connection).poll_read(cx, &mut buffer);
                if read.is_pending() || buffer.filled().is_empty() {
                    return read;
                }
                bytes_this_poll += buffer.filled().len();
                longest = longest.max(bytes_this_poll);
            }
        });
        // The client writes while the connection yields, always as much as the socket accepts.
        let write = async move { client.write_all(&vec![b'x'; 16 * READ_BUDGET]).await };
        let (written, read) = tokio::join!(write, read);
        written.and(read).expect("all is read");
        assert!(
            longest <= READ_BUDGET + 2 * AT_A_TIME,
            "{longest} in one turn"
        );
    }

    #[tokio::test]
    async fn a_connection_that_is_not_read_ends_with_its_client() {
        let (mut client, mut connection) = connected().await;
        let mut beginning = [0; 3];
        let read = connection.read_exact(&mut beginning).await;
        read.expect("what it began with");
        let load = Arc::clone(&connection.peer.load);
        let _unread = load.count_paused();
        let bytes = u64::MAX / 4;
        connection.backlog.read(Received {
            header_count: 0,
            bytes,
        });
        client.write_all(b" /").await.expect("the socket has room");
        let mut piece = [0; AT_A_TIME];
        let while_open = timeout(2 * CLOSED_CHECK_INTERVAL, connection.read(&mut piece)).await;
        assert!(while_open.is_err(), "{while_open:?}: it is not read");
        drop(client);
        let closed = timeout(5 * CLOSED_CHECK_INTERVAL, connection.read(&mut piece)).await;
        let closed = closed.expect("it is noticed");
        let error = closed.expect_err("nothing is read");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_connection_whose_client_reads_nothing_releases_its_permit() {
        let (_client, mut connection) = connected().await;
        let permits = connection.budget.call_permits.clone();
        connection.backlog.read(Received {
            header_count: 16,
            bytes: 0,
        });
        let permit = poll_fn(|cx| Poll::Ready(connection.backlog.poll_permit(cx))).await;
        assert!(permit.is_ready());
        let before = permits.free();
        let sent: Poll<io::Result<()>> = poll_fn(|cx| {
            let sent = connection.with_write_timeout(cx, Poll::Pending);
            Poll::Ready(sent)
        })
        .await;
        assert!(sent.is_pending());
        assert_eq!(permits.free(), before + 1);
    }
}
