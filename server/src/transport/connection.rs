//! One connection of a client: plain or encrypted, counted while it lives, and ended when it is slow to
//! speak or floods the broker with frames that ask for nothing.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use webpki::EndEntityCert;

use super::{
    frames::{Frames, Speaks},
    seats::Seat,
};

/// How soon a client must have sent the beginning of HTTP/2: nothing else in the server ends a
/// connection that does not.
const SPEAKS_WITHIN: Duration = Duration::from_secs(5);

/// Who is at the other end, for calls to ask.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client, or a proxy before it.
    pub address: SocketAddr,
    /// Whom its certificate names: a URI (SPIFFE), else `dns:` and a name. Never its CN.
    pub identity: Option<Arc<str>>,
}

/// A connection.
pub struct Connection {
    io: Io,
    peer: Peer,
    frames: Frames,
    /// Until the client has spoken.
    deadline: Option<Pin<Box<Sleep>>>,
    _seat: Seat,
}

pub(super) enum Io {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Of which nothing was read yet. `None`: there are too many with this identity.
    pub(super) fn new(io: Io, address: SocketAddr, speaks: Speaks, mut seat: Seat) -> Option<Self> {
        let identity = io.identity();
        if identity.as_ref().is_some_and(|name| !seat.belongs_to(name)) {
            return None;
        }
        Some(Self {
            io,
            peer: Peer { address, identity },
            frames: Frames::new(speaks),
            deadline: Some(Box::pin(sleep(SPEAKS_WITHIN))),
            _seat: seat,
        })
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
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Io::Encrypted(io) => Pin::new(io).poll_read(cx, buffer),
        };
        if let Poll::Ready(Ok(())) = read {
            self.frames.read(&buffer.filled()[before..])?;
            if self.frames.have_begun() {
                self.deadline = None;
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
        let written = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Encrypted(io) => Pin::new(io).poll_write(cx, bytes),
        };
        if let Poll::Ready(Ok(count)) = written {
            self.frames.written(&bytes[..count]);
        }
        written
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
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Encrypted(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Encrypted(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Encrypted(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
