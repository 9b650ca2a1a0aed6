//! A TCP relay before a broker that keeps what passes, to read the messages of lease streams in it:
//! what a client has really sent, and the secrets that it was told.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_proto::v1::{
    HoldRequest, HoldResponse, Lease, hold_request::Message as Request,
    hold_response::Message as Response,
};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Result},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

const PREFACE_BYTES: usize = 24;
/// Of an HTTP/2 frame: length, kind, flags, stream.
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
/// Of a gRPC message: compressed or not, length.
const PREFIX_BYTES: usize = 5;
const BUFFER_BYTES: usize = 16 * 1024;

type Bytes = Arc<Mutex<Vec<u8>>>;

/// Ends with its connections when dropped.
#[derive(Debug)]
pub struct Tap {
    addr: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Connection {
    to_broker: Bytes,
    to_client: Bytes,
}

impl Tap {
    /// Before this broker.
    pub async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let connections = Arc::<Mutex<Vec<Connection>>>::default();
        let kept = Arc::clone(&connections);
        let serving = tokio::spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let connection = Connection::default();
                locked(&kept).push(connection.clone());
                passing.spawn(connection.pass(client, broker));
            }
        });
        Self {
            addr,
            connections,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections have come so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        locked(&self.connections).len()
    }

    /// What clients have asked on streams so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Request> {
        let sent = locked(&self.connections);
        let sent = sent.iter().flat_map(|connection| {
            let bytes = locked(&connection.to_broker);
            messages::<HoldRequest>(bytes.get(PREFACE_BYTES..).unwrap_or_default())
        });
        sent.filter_map(|request| request.message).collect()
    }

    /// What the broker has told on streams so far.
    #[must_use]
    pub fn told(&self) -> Vec<Response> {
        let sent = locked(&self.connections);
        let sent = sent
            .iter()
            .flat_map(|connection| messages::<HoldResponse>(&locked(&connection.to_client)));
        sent.filter_map(|response| response.message).collect()
    }

    /// The leases that were granted so far.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        let leases = self.told().into_iter().filter_map(|told| {
            let Response::Granted(granted) = told else {
                return None;
            };
            granted.lease
        });
        leases.collect()
    }

    /// The request ids of acquires so far.
    #[must_use]
    pub fn request_ids(&self) -> Vec<String> {
        let ids = self.asked().into_iter().filter_map(|asked| {
            if let Request::Acquire(acquire) = asked {
                return acquire.request.map(|request| request.request_id);
            }
            let Request::AcquireAll(acquire) = asked else {
                return None;
            };
            acquire.request.map(|request| request.request_id)
        });
        ids.collect()
    }
}

impl Connection {
    async fn pass(self, client: TcpStream, broker: SocketAddr) -> Result<()> {
        let broker = TcpStream::connect(broker).await?;
        client.set_nodelay(true)?;
        broker.set_nodelay(true)?;
        let (client_in, client_out) = client.into_split();
        let (broker_in, broker_out) = broker.into_split();
        let there = one_way(client_in, broker_out, self.to_broker);
        let back = one_way(broker_in, client_out, self.to_client);
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
        }
    }
}

async fn one_way(mut input: OwnedReadHalf, mut output: OwnedWriteHalf, kept: Bytes) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match input.read(&mut buffer).await? {
            0 => return output.shutdown().await,
            count => {
                locked(&kept).extend_from_slice(&buffer[..count]);
                output.write_all(&buffer[..count]).await?;
            }
        }
    }
}

/// The messages in the DATA frames, as far as they are of this kind: other calls share connections.
fn messages<M: Message + Default>(mut frames: &[u8]) -> Vec<M> {
    let mut streams: BTreeMap<[u8; 4], Vec<u8>> = BTreeMap::new();
    while let Some((head, rest)) = frames.split_at_checked(HEAD_BYTES) {
        let length = length([0, head[0], head[1], head[2]]);
        let Some((payload, next)) = rest.split_at_checked(length) else {
            break;
        };
        if head[3] == DATA {
            let stream = [head[5], head[6], head[7], head[8]];
            streams.entry(stream).or_default().extend(payload);
        }
        frames = next;
    }
    let mut found = Vec::new();
    for mut bytes in streams.values().map(Vec::as_slice) {
        while let Some((prefix, rest)) = bytes.split_at_checked(PREFIX_BYTES) {
            let length = length([prefix[1], prefix[2], prefix[3], prefix[4]]);
            let Some((message, next)) = rest.split_at_checked(length) else {
                break;
            };
            found.extend(M::decode(message).ok());
            bytes = next;
        }
    }
    found
}

fn length(bytes: [u8; 4]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes)).expect("four bytes fit")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
