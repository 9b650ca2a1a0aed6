//! A TCP relay in front of a broker that captures all bytes. Tests decode the messages of lease
//! streams from the capture: the messages that a client has sent, and the secrets that it has
//! received.

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
/// Size of the header of an HTTP/2 frame: length, type, flags, stream.
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
/// Size of the prefix of a gRPC message: compression flag, length.
const PREFIX_BYTES: usize = 5;
const BUFFER_BYTES: usize = 16 * 1024;

type Bytes = Arc<Mutex<Vec<u8>>>;

/// A capturing relay, which stops and closes its connections when dropped.
#[derive(Debug)]
pub struct CapturingProxy {
    addr: SocketAddr,
    connections: Arc<Mutex<Vec<CapturedConnection>>>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct CapturedConnection {
    to_broker: Bytes,
    to_client: Bytes,
}

impl CapturingProxy {
    /// Starts a relay in front of a broker.
    pub async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let connections = Arc::<Mutex<Vec<CapturedConnection>>>::default();
        let kept = Arc::clone(&connections);
        let serving = tokio::spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let connection = CapturedConnection::default();
                locked(&kept).push(connection.clone());
                passing.spawn(connection.relay(client, broker));
            }
        });
        Self {
            addr,
            connections,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        locked(&self.connections).len()
    }

    /// Returns the messages that clients have sent on lease streams so far.
    #[must_use]
    pub fn client_messages(&self) -> Vec<Request> {
        let sent = locked(&self.connections);
        let sent = sent.iter().flat_map(|connection| {
            let bytes = locked(&connection.to_broker);
            decode_messages::<HoldRequest>(bytes.get(PREFACE_BYTES..).unwrap_or_default())
        });
        sent.filter_map(|request| request.message).collect()
    }

    /// Returns the messages that the broker has sent on lease streams so far.
    #[must_use]
    pub fn broker_messages(&self) -> Vec<Response> {
        let sent = locked(&self.connections);
        let sent = sent
            .iter()
            .flat_map(|connection| decode_messages::<HoldResponse>(&locked(&connection.to_client)));
        sent.filter_map(|response| response.message).collect()
    }

    /// Returns the leases granted so far.
    #[must_use]
    pub fn granted_leases(&self) -> Vec<Lease> {
        let leases = self.broker_messages().into_iter().filter_map(|message| {
            let Response::Granted(granted) = message else {
                return None;
            };
            granted.lease
        });
        leases.collect()
    }

    /// Returns the request ids of all acquires so far.
    #[must_use]
    pub fn request_ids(&self) -> Vec<String> {
        let ids = self.client_messages().into_iter().filter_map(|message| {
            if let Request::Acquire(acquire) = message {
                return acquire.request.map(|request| request.request_id);
            }
            let Request::AcquireAll(acquire) = message else {
                return None;
            };
            acquire.request.map(|request| request.request_id)
        });
        ids.collect()
    }
}

impl CapturedConnection {
    async fn relay(self, client: TcpStream, broker: SocketAddr) -> Result<()> {
        let broker = TcpStream::connect(broker).await?;
        client.set_nodelay(true)?;
        broker.set_nodelay(true)?;
        let (client_in, client_out) = client.into_split();
        let (broker_in, broker_out) = broker.into_split();
        let there = relay_one_way(client_in, broker_out, self.to_broker);
        let back = relay_one_way(broker_in, client_out, self.to_client);
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
        }
    }
}

async fn relay_one_way(
    mut input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    kept: Bytes,
) -> Result<()> {
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

/// Decodes the messages in DATA frames. Messages of other types are skipped if they do not decode,
/// because other calls share the connections.
fn decode_messages<M: Message + Default>(mut frames: &[u8]) -> Vec<M> {
    let mut streams: BTreeMap<[u8; 4], Vec<u8>> = BTreeMap::new();
    while let Some((head, rest)) = frames.split_at_checked(HEAD_BYTES) {
        let length = decode_length([0, head[0], head[1], head[2]]);
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
            let length = decode_length([prefix[1], prefix[2], prefix[3], prefix[4]]);
            let Some((message, next)) = rest.split_at_checked(length) else {
                break;
            };
            found.extend(M::decode(message).ok());
            bytes = next;
        }
    }
    found
}

fn decode_length(bytes: [u8; 4]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes)).expect("four bytes fit")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
