//! A TCP proxy in front of one port, which can block connections by client address, like a network
//! partition.

use std::{
    collections::HashSet,
    io::{Error, Result},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

const BUFFER_BYTES: usize = 64 * 1024;

/// A TCP proxy, which stops and closes its connections when dropped.
#[derive(Debug)]
pub struct PartitionProxy {
    addr: SocketAddr,
    blocked: watch::Sender<HashSet<IpAddr>>,
    _serving: AbortOnDropHandle<()>,
}

impl PartitionProxy {
    /// Starts an open proxy in front of a server that may start to listen later.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (shut, is_shut) = watch::channel(HashSet::new());
        let serving = tokio::spawn(serve(listener, upstream, is_shut));
        Self {
            addr,
            blocked: shut,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Blocks all traffic from and to these addresses, including closes of connections. Data that
    /// was sent in the meantime is delivered when the proxy opens, like TCP retransmissions.
    pub fn block(&self, from: &[IpAddr]) {
        self.blocked.send_modify(|shut| shut.extend(from));
    }

    /// Removes all blocks.
    pub fn unblock_all(&self) {
        self.blocked.send_modify(HashSet::clear);
    }
}

/// The block state of connections from one address.
#[derive(Debug, Clone)]
struct ConnectionBlock {
    client: IpAddr,
    blocked: watch::Receiver<HashSet<IpAddr>>,
}

impl ConnectionBlock {
    async fn wait_until_unblocked(&mut self) -> Result<()> {
        let from = self.client;
        let open = self.blocked.wait_for(|shut| !shut.contains(&from)).await;
        open.map(drop).map_err(Error::other)
    }
}

async fn serve(
    listener: TcpListener,
    upstream: SocketAddr,
    shut: watch::Receiver<HashSet<IpAddr>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, peer)) = listener.accept().await {
        let way = ConnectionBlock {
            client: peer.ip(),
            blocked: shut.clone(),
        };
        connections.spawn(relay(client, upstream, way));
    }
}

/// Relays one connection. An error in one direction ends both directions.
async fn relay(client: TcpStream, upstream: SocketAddr, mut way: ConnectionBlock) -> Result<()> {
    way.wait_until_unblocked().await?;
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let there = relay_one_way(client_in, server_out, way.clone());
    let back = relay_one_way(server_in, client_out, way);
    tokio::try_join!(there, back)?;
    Ok(())
}

async fn relay_one_way(
    mut input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    mut way: ConnectionBlock,
) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = input.read(&mut buffer).await;
        way.wait_until_unblocked().await?;
        match read? {
            0 => return output.shutdown().await,
            count => output.write_all(&buffer[..count]).await?,
        }
    }
}
