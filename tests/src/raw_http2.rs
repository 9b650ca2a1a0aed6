//! A client of HTTP/2 that writes whatever frames it is told to, and sees what comes back.

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
    ACK, DATA, GOAWAY, HEAD, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame,
};
use crate::{broker_tls::HOST, clock::boottime};

/// How a connection is opened.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The broker's listener.
    pub to: SocketAddr,
    /// The address of this machine that it comes from.
    pub from: IpAddr,
    /// Whom it trusts; `None`: it speaks plaintext.
    pub tls: Option<Arc<ClientConfig>>,
    /// What it announces.
    pub settings: Vec<(u16, u32)>,
    /// Whether it answers SETTINGS and PING.
    pub answers: bool,
    /// Whether it reads what comes, once both sides have begun.
    pub reads: bool,
    /// Whether it ends by a reset, which overtakes what the broker has not read.
    pub is_reset_at_end: bool,
}

/// What came back so far.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Answers to PING.
    pub pongs: usize,
    /// Questions for life.
    pub pings: usize,
    /// SETTINGS of the broker's own.
    pub settings: usize,
    /// Bytes that the broker takes on a stream that it does not read.
    pub stream_window: Option<u32>,
    /// Answers to SETTINGS.
    pub settled: usize,
    /// Streams that the broker has reset.
    pub resets: usize,
    /// HEADERS: beginnings of answers, and their ends.
    pub heads: usize,
    /// Bytes of answers.
    pub data: usize,
    /// Bytes that the broker has given leave to send, besides the first 64 KiB.
    pub leave: usize,
    /// Why the broker ends the connection.
    pub go_away: Option<u32>,
    /// When the connection was over.
    pub closed: Option<Duration>,
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}
type Wire = Box<dyn Duplex>;

/// One connection. Dropped, it ends without a word.
pub struct RawHttp2 {
    out: Arc<Out>,
    seen: watch::Receiver<Seen>,
    _reading: AbortOnDropHandle<()>,
}

struct Out {
    write: Turn<WriteHalf<Wire>>,
    /// Answers that wait for their turn.
    owed: Mutex<Vec<u8>>,
}

impl Opening {
    /// As a polite client would.
    #[must_use]
    pub fn to(to: SocketAddr) -> Self {
        Self {
            to,
            from: [127, 0, 0, 1].into(),
            tls: None,
            settings: Vec::new(),
            answers: true,
            reads: true,
            is_reset_at_end: false,
        }
    }

    /// A connection of TCP alone.
    ///
    /// # Errors
    /// If there is none.
    pub async fn tcp(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if self.is_reset_at_end {
            socket.set_zero_linger()?;
        }
        socket.bind((self.from, 0).into())?;
        let tcp = socket.connect(self.to).await?;
        tcp.set_nodelay(true)?;
        Ok(tcp)
    }

    /// A connection on which nothing is said yet.
    ///
    /// # Errors
    /// If there is none.
    async fn wire(&self) -> std::io::Result<Wire> {
        let tcp = self.tcp().await?;
        Ok(match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::try_from(HOST).expect("an address");
                let tls = TlsConnector::from(Arc::clone(config));
                Box::new(tls.connect(name, tcp).await?)
            }
        })
    }

    /// A connection on which both sides have begun to speak HTTP/2.
    ///
    /// # Errors
    /// If there is none.
    pub async fn open(&self) -> std::io::Result<RawHttp2> {
        let (mut read, mut write) = split(self.wire().await?);
        let begin = [PREFACE, &frames::settings(&self.settings)].concat();
        write.write_all(&begin).await?;
        write.flush().await?;
        let (told, seen) = watch::channel(Seen::default());
        let out = Arc::new(Out {
            write: Turn::new(write),
            owed: Mutex::default(),
        });
        let mut reader = Reader {
            told,
            out: Arc::clone(&out),
            answers: self.answers,
            bytes: Vec::new(),
        };
        while reader.told.borrow().settings == 0 {
            reader.read(&mut read).await?;
        }
        let reads = self.reads;
        let reading = tokio::spawn(async move {
            if !reads {
                std::future::pending::<()>().await;
            }
            while reader.read(&mut read).await.is_ok() {}
            let now = boottime();
            reader.told.send_modify(|seen| seen.closed = Some(now));
        });
        Ok(RawHttp2 {
            out,
            seen,
            _reading: AbortOnDropHandle::new(reading),
        })
    }
}

impl RawHttp2 {
    /// Writes bytes, with what is owed before them; false if the connection is over. Waits as long as the
    /// broker reads nothing.
    pub async fn send(&self, bytes: &[u8]) -> bool {
        self.out.send(bytes).await.is_ok()
    }

    /// What came back so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until what came back is enough; `None` if that takes too long, or the connection is over before.
    pub async fn until(&self, limit: Duration, enough: impl Fn(&Seen) -> bool) -> Option<Seen> {
        let mut seen = self.seen.clone();
        let wanted = seen.wait_for(|seen| seen.closed.is_some() || enough(seen));
        let seen = timeout(limit, wanted).await.ok()?.ok()?.clone();
        enough(&seen).then_some(seen)
    }

    /// Waits until the connection is over; what came back until then. `None`: it still lives.
    pub async fn closed(&self, limit: Duration) -> Option<Seen> {
        self.until(limit, |seen| seen.closed.is_some()).await
    }

    /// Whether the broker still answers.
    pub async fn lives(&self, limit: Duration) -> bool {
        let before = self.seen().pongs;
        self.send(&frames::ping()).await
            && self
                .until(limit, |seen| seen.pongs > before)
                .await
                .is_some()
    }
}

impl Out {
    async fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut write = self.write.lock().await;
        self.pay(&mut write).await?;
        write.write_all(bytes).await?;
        write.flush().await
    }

    /// Sends what is owed, unless somebody sends already, who then does.
    async fn answer(&self) -> std::io::Result<()> {
        match self.write.try_lock() {
            Ok(mut write) => self.pay(&mut write).await,
            Err(_) => Ok(()),
        }
    }

    async fn pay(&self, write: &mut WriteHalf<Wire>) -> std::io::Result<()> {
        let owed = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        write.write_all(&owed).await?;
        write.flush().await
    }

    fn owe(&self, answer: &[u8]) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.extend(answer);
    }
}

/// Takes apart what comes.
struct Reader {
    told: watch::Sender<Seen>,
    out: Arc<Out>,
    answers: bool,
    bytes: Vec<u8>,
}

impl Reader {
    async fn read(&mut self, io: &mut ReadHalf<Wire>) -> std::io::Result<()> {
        if io.read_buf(&mut self.bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut seen) = (0, self.told.borrow().clone());
        while let Some(head) = self.bytes.get(at..at + HEAD) {
            let Ok([high, middle, low, kind, flags, stream @ ..]) = <[u8; HEAD]>::try_from(head)
            else {
                break;
            };
            let length = u32::from_be_bytes([0, high, middle, low]);
            let end = at + HEAD + usize::try_from(length).expect("a length");
            let Some(payload) = self.bytes.get(at + HEAD..end) else {
                break;
            };
            self.look(&mut seen, (kind, flags, stream), payload);
            at = end;
        }
        self.bytes.drain(..at);
        self.told.send_replace(seen);
        // A connection that takes no answers any more is found to be over by reading.
        let _ = self.out.answer().await;
        Ok(())
    }

    fn look(&self, seen: &mut Seen, (kind, flags, stream): (u8, u8, [u8; 4]), payload: &[u8]) {
        let asks = flags & ACK == 0;
        match kind {
            DATA => seen.data += payload.len(),
            HEADERS => seen.heads += 1,
            WINDOW_UPDATE if stream == [0; 4] => {
                let more = payload.try_into().map_or(0, u32::from_be_bytes);
                seen.leave += usize::try_from(more).expect("a size");
            }
            RST_STREAM => seen.resets += 1,
            SETTINGS if asks => {
                seen.settings += 1;
                seen.stream_window = setting(payload, INITIAL_WINDOW_SIZE).or(seen.stream_window);
            }
            SETTINGS => seen.settled += 1,
            PING if asks => seen.pings += 1,
            PING => seen.pongs += 1,
            GOAWAY => {
                let why = payload.get(4..8).and_then(|why| why.try_into().ok());
                seen.go_away = why.map(u32::from_be_bytes);
            }
            _ => {}
        }
        match kind {
            SETTINGS if self.answers && asks => self.out.owe(&frame(SETTINGS, ACK, 0, &[])),
            PING if self.answers && asks => self.out.owe(&frame(PING, ACK, 0, payload)),
            _ => {}
        }
    }
}

/// The value of a setting in the payload of a SETTINGS frame (RFC 9113, section 6.5.1).
fn setting(payload: &[u8], number: u16) -> Option<u32> {
    let mut settings = payload.chunks_exact(6);
    let value = settings.find_map(|setting| setting.strip_prefix(&number.to_be_bytes()))?;
    value.try_into().ok().map(u32::from_be_bytes)
}
