//! Accepts connections within the connection limits, with TLS if a certificate is configured.

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
    connection_limit::{ConnectionLimiter, ConnectionLimits, ConnectionPermit},
    frame_monitor::AllowedProtocol,
    tls::{Tls, VerifiedClient},
};
use crate::metrics::{Listener, Metrics};

/// Time limit of the TLS handshake, including the wait while other connections of the same address
/// shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after the handshake in which the client must send its first HTTP/2 frame, or HTTP/1.1 where
/// that is allowed. Nothing else in the server closes a connection that sends nothing.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of accepted connections that no server has received yet.
const READY_MAX: usize = 64;
/// Pause after an error of `accept`, such as no free file descriptor.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Queue of accepted connections. Several servers can receive from it.
#[derive(Clone)]
pub struct Incoming(Arc<Mutex<mpsc::Receiver<Connection>>>);

/// Configuration of a listener's connections.
pub struct ListenerSettings {
    /// Certificate of the broker, or `None` for plaintext.
    pub tls: Option<Arc<Tls>>,
    /// Protocols that clients may use.
    pub protocol: AllowedProtocol,
    pub limits: ConnectionLimits,
    /// Listener in the metrics of its connections.
    pub listener: Listener,
    pub metrics: Metrics,
    /// Memory budget of the connections of all listeners.
    pub budget: Arc<Budget>,
}

/// Accept loop of a listener.
pub struct Acceptor {
    listener: TcpListener,
    settings: ListenerSettings,
    limiter: ConnectionLimiter,
    ready: mpsc::Sender<Connection>,
}

impl Acceptor {
    /// Creates the accept loop of a listener, and the queue of its connections.
    pub fn new(listener: TcpListener, settings: ListenerSettings) -> (Self, Incoming) {
        let (ready, accepted) = mpsc::channel(READY_MAX);
        let acceptor = Self {
            limiter: ConnectionLimiter::new(
                settings.limits,
                settings.listener,
                settings.metrics.clone(),
            ),
            listener,
            settings,
            ready,
        };
        (acceptor, Incoming(Arc::new(Mutex::new(accepted))))
    }

    /// Runs until no server receives connections. Handshakes run concurrently, so that a slow
    /// client does not delay others.
    pub async fn run(self) {
        let mut handshakes = FuturesUnordered::new();
        let mut pause = pin!(sleep(Duration::ZERO));
        loop {
            let next = async {
                pause.as_mut().await;
                self.listener.accept().await
            };
            tokio::select! {
                () = self.ready.closed() => return,
                Some(()) = handshakes.next() => {}
                accepted = next => match accepted {
                    Ok((tcp, address)) => match self.limiter.acquire(address.ip()) {
                        Some(permit) => handshakes.push(self.accept_one(tcp, address, permit)),
                        None => tracing::debug!(%address, "too many connections"),
                    },
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection");
                        pause.set(sleep(ACCEPT_ERROR_PAUSE));
                    }
                },
            }
        }
    }

    async fn accept_one(&self, tcp: TcpStream, address: SocketAddr, permit: ConnectionPermit) {
        match self.handshake(tcp, address, permit).await {
            // `send` fails only while the broker stops.
            Ok(connection) => drop(self.ready.send(connection).await),
            Err(error) => {
                tracing::debug!(%error, %address, "connection failed before its first request")
            }
        }
    }

    async fn handshake(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        permit: ConnectionPermit,
    ) -> io::Result<Connection> {
        let (io, certified) = timeout(HANDSHAKE_TIMEOUT, self.encrypt(tcp, &permit)).await??;
        let ListenerSettings {
            protocol, budget, ..
        } = &self.settings;
        let connection =
            Connection::call_started(io, certified, address, *protocol, permit, budget);
        timeout(PREFACE_TIMEOUT, connection).await?
    }

    async fn encrypt(
        &self,
        tcp: TcpStream,
        permit: &ConnectionPermit,
    ) -> io::Result<(Io, Option<VerifiedClient>)> {
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.settings.tls else {
            return Ok((Io::Left(tcp), None));
        };
        let _handshake_permit = permit.handshake().await;
        let (tls, certified) = tls.handshake().accept(tcp).await?;
        Ok((Io::Right(Box::new(tls)), certified))
    }
}

impl Incoming {
    /// Returns a stream of connections. Each connection is delivered to one of these streams.
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

    #[tokio::test]
    async fn waiting_connections_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let setup = ListenerSettings {
            tls: None,
            protocol: AllowedProtocol::Either,
            limits: ConnectionLimits {
                total: 1_000,
                per_address: 1_000,
                per_identity: 1,
            },
            listener: Listener::Api,
            metrics: Metrics::off(),
            budget: Arc::default(),
        };
        let (acceptor, accepted) = Acceptor::new(listener, setup);
        let mut clients = Vec::new();
        for _ in 0..READY_MAX {
            assert!(acceptor.ready.try_reserve().is_ok());
            let mut client = TcpStream::connect(address).await.expect("it listens");
            client.write_all(b"GET").await.expect("it reads");
            clients.push(client);
            let (tcp, from) = acceptor.listener.accept().await.expect("a connection");
            let permit = acceptor.limiter.acquire(from.ip()).expect("a permit");
            acceptor.accept_one(tcp, from, permit).await;
        }
        assert!(acceptor.ready.try_reserve().is_err(), "the next one waits");
        assert!(pin!(accepted.connections()).next().await.is_some());
        assert!(acceptor.ready.try_reserve().is_ok());
    }
}
