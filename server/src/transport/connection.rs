//! One connection of a client: plain or encrypted, counted while it lives, and ended when it does not take
//! what is sent to it, or floods the broker with frames that ask for nothing.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use webpki::EndEntityCert;

use super::{
    budget::{Account, Budget},
    control::Control,
    frames::{Frames, Speaks},
    load::Load,
    seats::Seat,
};

/// The first words of a client are few.
const PIECE: usize = 64;
/// How long a client may take nothing of what is sent to it. One that does not answer whether it lives is
/// told that the connection ends, which would wait as long as all before it.
const TAKES_WITHIN: Duration = Duration::from_secs(15);
/// Calls in progress on a connection before its first admitted call; while there are more nothing is read.
const UNADMITTED_CALLS_MAX: usize = 16;
/// After so many bytes without a pause others have their turn: by itself a connection would read some
/// megabytes first.
const TURN: usize = 64 << 10;

/// Who is at the other end, for calls to ask.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client, or a proxy before it.
    pub address: SocketAddr,
    /// Whom its certificate names: a URI (SPIFFE), else `dns:` and a name. Never its CN.
    pub identity: Option<Arc<str>>,
    /// What its calls keep in memory.
    pub load: Arc<Load>,
}

/// A connection.
pub struct Connection {
    io: Io,
    peer: Peer,
    frames: Frames,
    /// Calls in progress before the first that is admitted.
    unadmitted_calls: Account,
    control: Arc<Control>,
    /// Nothing is read until there are fewer calls in progress, or the client takes its answers.
    is_paused: bool,
    /// The beginning, which was read already, and how much of it was passed on.
    heard: Vec<u8>,
    passed_on: usize,
    /// Bytes that were read in this turn.
    in_turn: usize,
    /// While the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    seat: Seat,
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
        address: SocketAddr,
        speaks: Speaks,
        (mut seat, budget): (Seat, &Budget),
    ) -> io::Result<Self> {
        let identity = io.identity();
        if identity.as_ref().is_some_and(|name| !seat.belongs_to(name)) {
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
            identity,
            load: Arc::new(Load::new(budget, seat.ticket())),
        };
        Ok(Self {
            io,
            peer,
            frames,
            unadmitted_calls: budget.unadmitted_calls.account(&seat.ticket()),
            control: Arc::clone(seat.ticket().control()),
            is_paused: false,
            heard,
            passed_on: 0,
            in_turn: 0,
            stalled: None,
            seat,
        })
    }

    /// Counts calls in progress until one is admitted, and returns false while nothing may be read: there
    /// are too many of those calls, or answers wait because the client takes none.
    fn may_read(&mut self) -> bool {
        let calls = match self.frames.calls() {
            None => 0,
            Some(calls) if !self.seat.is_admitted() => {
                self.unadmitted_calls.set(calls);
                calls
            }
            Some(_) => {
                self.frames.stop_counting_calls();
                self.unadmitted_calls.set(0);
                0
            }
        };
        self.is_paused = calls >= UNADMITTED_CALLS_MAX || self.stalled.is_some();
        !self.is_paused
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
        let load = &self.peer.load;
        let deadline = self.stalled.get_or_insert_with(|| {
            load.stalled(true);
            Box::pin(sleep(TAKES_WITHIN))
        });
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Io {
    fn identity(&self) -> Option<Arc<str>> {
        let Self::Encrypted(tls) = self else {
            return None;
        };
        let certificate = tls.get_ref().1.peer_certificates()?.first()?;
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let uri = certificate.valid_uri_names().next().map(Arc::from);
        let dns = || certificate.valid_dns_names().next();
        uri.or_else(|| Some(format!("dns:{}", dns()?).into()))
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
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.may_read() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = read {
            let new = &buffer.filled()[before..];
            self.frames.read(new)?;
            self.in_turn += new.len();
        } else {
            self.in_turn = 0;
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
        let written = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Encrypted(io) => Pin::new(io).poll_write(cx, bytes),
        };
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
        let written = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(cx, bytes),
            Io::Encrypted(io) => Pin::new(io).poll_write_vectored(cx, bytes),
        };
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
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Encrypted(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Encrypted(io) => Pin::new(io).poll_flush(cx),
        };
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Encrypted(io) => Pin::new(io).poll_shutdown(cx),
        };
        self.in_time(cx, shut)
    }
}
