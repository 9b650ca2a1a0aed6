//! An HTTP/2 client that sends arbitrary frames and counts received frames.

pub mod frames;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split,
    },
    net::{TcpSocket, TcpStream},
    sync::{Mutex as Turn, watch},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};
use tokio_util::task::AbortOnDropHandle;

use self::frames::{
    ACK, DATA, FRAME_HEADER_BYTES, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, frame,
};
use crate::{broker::tls::HOST, clock::boottime};

/// Parameters of a connection.
#[derive(Debug, Clone)]
pub struct RawHttp2Options {
    pub broker: SocketAddr,
    /// Local address of the connection.
    pub local_ip: IpAddr,
    /// TLS settings, or `None` for plaintext.
    pub tls: Option<Arc<ClientConfig>>,
    /// Settings in the client's first SETTINGS frame.
    pub settings: Vec<(u16, u32)>,
    /// True if the client acknowledges SETTINGS and PING.
    pub sends_acks: bool,
    /// True if the client reads after both sides have exchanged SETTINGS.
    pub reads: bool,
    /// True if the client closes with a TCP reset, which overtakes data that the broker has not
    /// read.
    pub is_reset_at_end: bool,
}

/// Counts of received frames.
#[derive(Debug, Clone, Default)]
pub struct ReceivedFrames {
    /// Number of PING acknowledgements.
    pub ping_acks: usize,
    /// Number of PING requests of the broker.
    pub pings: usize,
    /// Number of SETTINGS frames of the broker, without acknowledgements.
    pub settings: usize,
    /// Initial window of a stream in bytes: data that the broker accepts without reading the
    /// stream.
    pub stream_window: Option<u32>,
    /// Number of SETTINGS acknowledgements.
    pub settings_acks: usize,
    /// Number of streams that the broker has reset.
    pub resets: usize,
    /// Number of HEADERS frames: the beginnings of responses, and their trailers.
    pub headers: usize,
    /// Number of bytes in DATA frames.
    pub data_bytes: usize,
    /// Number of bytes of connection window that the broker has granted beyond the initial 64 KiB.
    pub window_granted: usize,
    /// Error code of the GOAWAY frame.
    pub go_away: Option<u32>,
    /// Time at which the connection was closed.
    pub closed_at: Option<Duration>,
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}
type Transport = Box<dyn Duplex>;

/// A connection. Dropping it sends no GOAWAY.
pub struct RawHttp2 {
    out: Arc<FrameWriter>,
    received: watch::Receiver<ReceivedFrames>,
    _reading: AbortOnDropHandle<()>,
}

struct FrameWriter {
    write: Turn<WriteHalf<Transport>>,
    /// Acknowledgements that wait for the write lock.
    pending_acks: Mutex<Vec<u8>>,
}

impl RawHttp2Options {
    /// Creates parameters of a well-behaved client.
    #[must_use]
    pub fn new(broker: SocketAddr) -> Self {
        Self {
            broker,
            local_ip: [127, 0, 0, 1].into(),
            tls: None,
            settings: Vec::new(),
            sends_acks: true,
            reads: true,
            is_reset_at_end: false,
        }
    }

    /// Opens a TCP connection.
    ///
    /// # Errors
    /// An error if the connection cannot be opened.
    pub async fn connect_tcp(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if self.is_reset_at_end {
            socket.set_zero_linger()?;
        }
        socket.bind((self.local_ip, 0).into())?;
        let tcp = socket.connect(self.broker).await?;
        tcp.set_nodelay(true)?;
        Ok(tcp)
    }

    /// Opens a TCP or TLS connection without sending HTTP/2 data.
    ///
    /// # Errors
    /// An error if the connection cannot be opened.
    async fn connect(&self) -> std::io::Result<Transport> {
        let tcp = self.connect_tcp().await?;
        Ok(match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::try_from(HOST).expect("an address");
                let tls = TlsConnector::from(Arc::clone(config));
                Box::new(tls.connect(name, tcp).await?)
            }
        })
    }

    /// Opens a connection and exchanges the HTTP/2 prefaces.
    ///
    /// # Errors
    /// An error if the connection cannot be opened.
    pub async fn open(&self) -> std::io::Result<RawHttp2> {
        let (mut read, mut write) = split(self.connect().await?);
        let begin = [PREFACE, &frames::settings(&self.settings)].concat();
        write.write_all(&begin).await?;
        write.flush().await?;
        let (frames_sender, seen) = watch::channel(ReceivedFrames::default());
        let out = Arc::new(FrameWriter {
            write: Turn::new(write),
            pending_acks: Mutex::default(),
        });
        let mut reader = FrameReader {
            received: frames_sender,
            out: Arc::clone(&out),
            sends_acks: self.sends_acks,
            bytes: Vec::new(),
        };
        while reader.received.borrow().settings == 0 {
            reader.read(&mut read).await?;
        }
        let reads = self.reads;
        let reading = tokio::spawn(async move {
            if !reads {
                std::future::pending::<()>().await;
            }
            while reader.read(&mut read).await.is_ok() {}
            let now = boottime();
            reader
                .received
                .send_modify(|seen| seen.closed_at = Some(now));
        });
        Ok(RawHttp2 {
            out,
            received: seen,
            _reading: AbortOnDropHandle::new(reading),
        })
    }
}

impl RawHttp2 {
    /// Writes bytes after pending acknowledgements. Returns false if the connection is closed.
    /// Blocks while the broker does not read.
    pub async fn send(&self, bytes: &[u8]) -> bool {
        self.out.send(bytes).await.is_ok()
    }

    #[must_use]
    pub fn received(&self) -> ReceivedFrames {
        self.received.borrow().clone()
    }

    /// Waits until `enough` returns true. Returns `None` if `limit` passes or the connection closes
    /// before.
    pub async fn wait_until(
        &self,
        limit: Duration,
        enough: impl Fn(&ReceivedFrames) -> bool,
    ) -> Option<ReceivedFrames> {
        let mut seen = self.received.clone();
        let wanted = seen.wait_for(|seen| seen.closed_at.is_some() || enough(seen));
        let seen = timeout(limit, wanted).await.ok()?.ok()?.clone();
        enough(&seen).then_some(seen)
    }

    /// Waits until the connection is closed, and returns what was received. Returns `None` if the
    /// connection is still open after `limit`.
    pub async fn wait_until_closed(&self, limit: Duration) -> Option<ReceivedFrames> {
        self.wait_until(limit, |seen| seen.closed_at.is_some())
            .await
    }

    /// Returns true if the broker acknowledges a PING within `limit`.
    pub async fn is_responding(&self, limit: Duration) -> bool {
        let before = self.received().ping_acks;
        self.send(&frames::ping()).await
            && self
                .wait_until(limit, |seen| seen.ping_acks > before)
                .await
                .is_some()
    }
}

impl FrameWriter {
    async fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut write = self.write.lock().await;
        self.send_pending_acks(&mut write).await?;
        write.write_all(bytes).await?;
        write.flush().await
    }

    /// Sends pending acknowledgements, unless another task is writing, which then sends them.
    async fn try_send_acks(&self) -> std::io::Result<()> {
        match self.write.try_lock() {
            Ok(mut write) => self.send_pending_acks(&mut write).await,
            Err(_) => Ok(()),
        }
    }

    async fn send_pending_acks(&self, write: &mut WriteHalf<Transport>) -> std::io::Result<()> {
        let owed = std::mem::take(
            &mut *self
                .pending_acks
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        write.write_all(&owed).await?;
        write.flush().await
    }

    fn add_pending_ack(&self, answer: &[u8]) {
        let mut owed = self
            .pending_acks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        owed.extend(answer);
    }
}

/// Parser of received frames.
struct FrameReader {
    received: watch::Sender<ReceivedFrames>,
    out: Arc<FrameWriter>,
    sends_acks: bool,
    bytes: Vec<u8>,
}

impl FrameReader {
    async fn read(&mut self, io: &mut ReadHalf<Transport>) -> std::io::Result<()> {
        if io.read_buf(&mut self.bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut seen) = (0, self.received.borrow().clone());
        while let Some(head) = self.bytes.get(at..at + FRAME_HEADER_BYTES) {
            let Ok([high, middle, low, kind, flags, stream @ ..]) =
                <[u8; FRAME_HEADER_BYTES]>::try_from(head)
            else {
                break;
            };
            let length = u32::from_be_bytes([0, high, middle, low]);
            let end = at + FRAME_HEADER_BYTES + usize::try_from(length).expect("a length");
            let Some(payload) = self.bytes.get(at + FRAME_HEADER_BYTES..end) else {
                break;
            };
            self.count_frame(&mut seen, (kind, flags, stream), payload);
            at = end;
        }
        self.bytes.drain(..at);
        self.received.send_replace(seen);
        // A failed write is ignored here. The next read reports that the connection is closed.
        let _ = self.out.try_send_acks().await;
        Ok(())
    }

    fn count_frame(
        &self,
        seen: &mut ReceivedFrames,
        (kind, flags, stream): (u8, u8, [u8; 4]),
        payload: &[u8],
    ) {
        let asks = flags & ACK == 0;
        match kind {
            DATA => seen.data_bytes += payload.len(),
            HEADERS => seen.headers += 1,
            WINDOW_UPDATE if stream == [0; 4] => {
                let more = payload.try_into().map_or(0, u32::from_be_bytes);
                seen.window_granted += usize::try_from(more).expect("a size");
            }
            RST_STREAM => seen.resets += 1,
            SETTINGS if asks => {
                seen.settings += 1;
                seen.stream_window = setting(payload, INITIAL_WINDOW_SIZE).or(seen.stream_window);
            }
            SETTINGS => seen.settings_acks += 1,
            PING if asks => seen.pings += 1,
            PING => seen.ping_acks += 1,
            GOAWAY => {
                let reason = payload.get(4..8).and_then(|reason| reason.try_into().ok());
                seen.go_away = reason.map(u32::from_be_bytes);
            }
            _ => {}
        }
        match kind {
            SETTINGS if self.sends_acks && asks => {
                self.out.add_pending_ack(&frame(SETTINGS, ACK, 0, &[]))
            }
            PING if self.sends_acks && asks => {
                self.out.add_pending_ack(&frame(PING, ACK, 0, payload))
            }
            _ => {}
        }
    }
}

/// Returns the value of a setting in the payload of a SETTINGS frame (RFC 9113, section 6.5.1).
fn setting(payload: &[u8], number: u16) -> Option<u32> {
    let mut settings = payload.chunks_exact(6);
    let value = settings.find_map(|setting| setting.strip_prefix(&number.to_be_bytes()))?;
    value.try_into().ok().map(u32::from_be_bytes)
}
