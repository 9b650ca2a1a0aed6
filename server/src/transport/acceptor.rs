//! Accepts connections: within the limits, and encrypted where there is a certificate.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use futures::stream::{self, FuturesUnordered, Stream, StreamExt as _};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Mutex, mpsc},
    time::{sleep, timeout},
};

use super::{
    budget::Budget,
    connection::{Connection, Io},
    frames::Speaks,
    seats::{ConnectionLimits, Connections, Seat, Seats},
    tls::{Certified, Tls},
};

/// How soon a client must have done its part of the TLS handshake, for which it may have to wait while
/// others of its address shake hands.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// How soon it must then have begun to speak HTTP/2: nothing else in the server ends a connection that
/// does not.
const SPEAKS_WITHIN: Duration = Duration::from_secs(5);
/// Connections that are accepted and not taken over yet.
const READY_MOST: usize = 64;
/// No connection is accepted for so long after an error of the system, such as no free file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// What is accepted, for whichever server asks next.
#[derive(Clone)]
pub struct Accepted(Arc<Mutex<mpsc::Receiver<Connection>>>);

/// What the connections of a listener have in common.
pub struct Setup {
    /// The broker's certificate; `None`: plaintext.
    pub tls: Option<Arc<Tls>>,
    /// What clients may speak.
    pub speaks: Speaks,
    /// How many connections there may be.
    pub limits: ConnectionLimits,
    /// Where they are counted.
    pub counted: Connections,
    /// What the connections of all listeners may keep in memory.
    pub budget: Arc<Budget>,
}

/// The listener's side.
pub struct Acceptor {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    speaks: Speaks,
    seats: Seats,
    budget: Arc<Budget>,
    ready: mpsc::Sender<Connection>,
}

impl Acceptor {
    /// Accepts connections of a listener by the rules of its [`Setup`].
    pub fn new(listener: TcpListener, setup: Setup) -> (Self, Accepted) {
        let (ready, accepted) = mpsc::channel(READY_MOST);
        let acceptor = Self {
            listener,
            tls: setup.tls,
            speaks: setup.speaks,
            seats: Seats::new(setup.limits, setup.counted),
            budget: setup.budget,
            ready,
        };
        (acceptor, Accepted(Arc::new(Mutex::new(accepted))))
    }

    /// Runs until nobody wants connections any more. Handshakes run side by side: none waits for a
    /// client that is slow.
    pub async fn run(self) {
        let mut handshakes = FuturesUnordered::new();
        let mut rest = pin!(sleep(Duration::ZERO));
        loop {
            let next = async {
                rest.as_mut().await;
                self.listener.accept().await
            };
            tokio::select! {
                () = self.ready.closed() => return,
                Some(()) = handshakes.next() => {}
                accepted = next => match accepted {
                    Ok((tcp, address)) => match self.seats.take(address.ip()) {
                        Some(seat) => handshakes.push(self.begin(tcp, address, seat)),
                        None => tracing::debug!(%address, "too many connections"),
                    },
                    Err(error) => {
                        tracing::debug!(%error, "no connection was accepted");
                        rest.set(sleep(PAUSE));
                    }
                },
            }
        }
    }

    async fn begin(&self, tcp: TcpStream, address: SocketAddr, seat: Seat) {
        match self.hear(tcp, address, seat).await {
            // Nobody wants it any more: the broker ends.
            Ok(connection) => drop(self.ready.send(connection).await),
            Err(error) => tracing::debug!(%error, %address, "nothing came of a connection"),
        }
    }

    async fn hear(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        seat: Seat,
    ) -> io::Result<Connection> {
        let (io, certified) = timeout(HANDSHAKE_WITHIN, self.encrypt(tcp, &seat)).await??;
        let begun = Connection::begun(io, certified, address, self.speaks, (seat, &self.budget));
        timeout(SPEAKS_WITHIN, begun).await?
    }

    async fn encrypt(&self, tcp: TcpStream, seat: &Seat) -> io::Result<(Io, Option<Certified>)> {
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return Ok((Io::Plain(tcp), None));
        };
        let _turn = seat.handshake().await;
        let (tls, certified) = tls.handshake().accept(tcp).await?;
        Ok((Io::Encrypted(Box::new(tls)), certified))
    }
}

impl Accepted {
    /// Each connection goes to one of those who ask.
    pub fn connections(&self) -> impl Stream<Item = io::Result<Connection>> + use<> {
        stream::unfold(self.clone(), |accepted| async {
            let next = accepted.0.lock().await.recv().await;
            Some((Ok(next?), accepted))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::metrics::{Listener, Metrics};

    #[tokio::test]
    async fn so_many_connections_wait_to_be_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let setup = Setup {
            tls: None,
            speaks: Speaks::Either,
            limits: ConnectionLimits {
                total: 1_000,
                per_address: 1_000,
                per_identity: 1,
            },
            counted: Connections {
                metrics: Metrics::off(),
                listener: Listener::Api,
            },
            budget: Arc::default(),
        };
        let (acceptor, accepted) = Acceptor::new(listener, setup);
        let mut clients = Vec::new();
        for _ in 0..READY_MOST {
            assert!(acceptor.ready.try_reserve().is_ok());
            let mut client = TcpStream::connect(address).await.expect("it listens");
            client.write_all(b"GET").await.expect("it reads");
            clients.push(client);
            let (tcp, from) = acceptor.listener.accept().await.expect("a connection");
            let seat = acceptor.seats.take(from.ip()).expect("a place");
            acceptor.begin(tcp, from, seat).await;
        }
        assert!(acceptor.ready.try_reserve().is_err(), "the next one waits");
        assert!(pin!(accepted.connections()).next().await.is_some());
        assert!(acceptor.ready.try_reserve().is_ok());
    }
}
