//! The way to one port of a server, which knows from which address each connection comes and can be
//! shut for some of them, as a network that is parted.

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

/// Ends with its connections when dropped.
#[derive(Debug)]
pub struct Gate {
    addr: SocketAddr,
    shut: watch::Sender<HashSet<IpAddr>>,
    _serving: AbortOnDropHandle<()>,
}

impl Gate {
    /// Before a server that may not listen yet; open to everybody.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (shut, is_shut) = watch::channel(HashSet::new());
        let serving = tokio::spawn(serve(listener, upstream, is_shut));
        Self {
            addr,
            shut,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on nothing passes from and to these addresses, and neither side hears of the other's
    /// end. What was sent meanwhile arrives when the gate opens, as packets that are sent again do.
    pub fn shut(&self, from: &[IpAddr]) {
        self.shut.send_modify(|shut| shut.extend(from));
    }

    /// Everything passes again.
    pub fn open(&self) {
        self.shut.send_modify(HashSet::clear);
    }
}

/// Whether packets from one address pass.
#[derive(Debug, Clone)]
struct Way {
    from: IpAddr,
    shut: watch::Receiver<HashSet<IpAddr>>,
}

impl Way {
    async fn open(&mut self) -> Result<()> {
        let from = self.from;
        let open = self.shut.wait_for(|shut| !shut.contains(&from)).await;
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
        let way = Way {
            from: peer.ip(),
            shut: shut.clone(),
        };
        connections.spawn(pass(client, upstream, way));
    }
}

/// An error on one side ends the other.
async fn pass(client: TcpStream, upstream: SocketAddr, mut way: Way) -> Result<()> {
    way.open().await?;
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let there = one_way(client_in, server_out, way.clone());
    let back = one_way(server_in, client_out, way);
    tokio::try_join!(there, back)?;
    Ok(())
}

async fn one_way(mut input: OwnedReadHalf, mut output: OwnedWriteHalf, mut way: Way) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = input.read(&mut buffer).await;
        way.open().await?;
        match read? {
            0 => return output.shutdown().await,
            count => output.write_all(&buffer[..count]).await?,
        }
    }
}
