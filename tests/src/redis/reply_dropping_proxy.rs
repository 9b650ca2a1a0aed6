//! A TCP proxy between a broker and Redis that drops replies to scripts: Redis executes them, but
//! the broker receives no reply.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Result};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

const SCRIPT_COMMAND: &[u8] = b"EVALSHA";
const CHUNK_BYTES: usize = 65_536;

/// A proxy, which listens until it is dropped.
#[derive(Debug)]
pub struct RedisProxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct ProxyState {
    redis: SocketAddr,
    is_dropping: AtomicBool,
    cuts: watch::Sender<usize>,
    opened: watch::Sender<usize>,
    closed: watch::Sender<usize>,
    /// Number of dropped replies, by the first word of the reply for a lock.
    dropped_replies: watch::Sender<BTreeMap<String, usize>>,
}

impl RedisProxy {
    /// Starts a proxy in front of `redis`.
    pub async fn start(redis: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("bind a loopback port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(ProxyState {
            redis,
            is_dropping: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            opened: watch::Sender::new(0),
            closed: watch::Sender::new(0),
            dropped_replies: watch::Sender::default(),
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

    /// Returns the URL for `--store`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.addr)
    }

    /// Starts or stops dropping replies to scripts.
    pub fn set_dropping(&self, swallows: bool) {
        self.shared.is_dropping.store(swallows, Ordering::Relaxed);
    }

    /// Returns the number of dropped replies for a lock that begin with `word`.
    #[must_use]
    pub fn dropped_replies(&self, word: &str) -> usize {
        let swallowed = self.shared.dropped_replies.borrow();
        swallowed.get(word).copied().unwrap_or(0)
    }

    /// Waits until at least `count` replies that begin with `word` have been dropped.
    pub async fn wait_for_dropped_replies(&self, word: &str, count: usize) {
        let mut swallowed = self.shared.dropped_replies.subscribe();
        let reached = swallowed.wait_for(|now| now.get(word).is_some_and(|now| *now >= count));
        reached.await.expect("the proxy counts while it lives");
    }

    /// Cuts all connections and waits until they are closed.
    pub async fn close_connections(&self) {
        let opened = *self.shared.opened.borrow();
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        let mut closed = self.shared.closed.subscribe();
        let reached = closed.wait_for(|now| *now >= opened).await;
        reached.expect("the proxy counts while it lives");
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((broker, _)) = listener.accept().await {
        tokio::spawn(serve(broker, Arc::clone(&shared)));
    }
}

async fn serve(broker: TcpStream, shared: Arc<ProxyState>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(redis) = TcpStream::connect(shared.redis).await else {
        return;
    };
    shared.opened.send_modify(|count| *count += 1);
    if broker.set_nodelay(true).is_ok() && redis.set_nodelay(true).is_ok() {
        let (broker_in, broker_out) = broker.into_split();
        let (redis_in, redis_out) = redis.into_split();
        let runs_scripts = AtomicBool::new(false);
        tokio::select! {
            _ = pass_commands(broker_in, redis_out, &runs_scripts) => {}
            _ = pass_replies(redis_in, broker_out, (&runs_scripts, &shared)) => {}
            _ = cuts.changed() => {}
        }
    }
    shared.closed.send_modify(|count| *count += 1);
}

async fn pass_commands(
    mut input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    runs_scripts: &AtomicBool,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = input.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        let mut words = chunk[..length].windows(SCRIPT_COMMAND.len());
        if words.any(|word| word == SCRIPT_COMMAND) {
            runs_scripts.store(true, Ordering::Relaxed);
        }
        output.write_all(&chunk[..length]).await?;
    }
}

async fn pass_replies(
    input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    (runs_scripts, shared): (&AtomicBool, &ProxyState),
) -> Result<()> {
    let mut input = BufReader::new(input);
    loop {
        let reply = read_reply(&mut input).await?;
        if runs_scripts.load(Ordering::Relaxed) && shared.is_dropping.load(Ordering::Relaxed) {
            shared.dropped_replies.send_modify(|count| {
                for word in first_words(&reply) {
                    *count.entry(word).or_default() += 1;
                }
            });
        } else {
            output.write_all(&reply).await?;
        }
    }
}

/// Reads the bytes of one whole reply.
async fn read_reply(input: &mut BufReader<OwnedReadHalf>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut parts = 1;
    while parts > 0 {
        parts -= 1;
        let begin = bytes.len();
        if input.read_until(b'\n', &mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes[begin..]).into_owned();
        let number = || line[1..].trim_end().parse::<usize>().ok();
        if line.starts_with('*') {
            parts += number().unwrap_or(0);
        } else if let Some(length) = line.starts_with('$').then(number).flatten() {
            let begin = bytes.len();
            bytes.resize(begin + length + 2, 0);
            input.read_exact(&mut bytes[begin..]).await?;
        }
    }
    Ok(bytes)
}

/// Returns the first word of the array, or of each nested array: the outcome of a script for each
/// lock.
fn first_words(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply);
    let lines: Vec<_> = text.split("\r\n").collect();
    let begins = lines.windows(3);
    let begins = begins.filter(|lines| lines[0].starts_with('*') && lines[1].starts_with('$'));
    begins.map(|lines| lines[2].to_owned()).collect()
}
