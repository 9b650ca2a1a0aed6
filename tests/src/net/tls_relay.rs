//! A relay that terminates TLS and forwards the plaintext to an address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig, crypto::ring, pki_types::CertificateDer,
        server::WebPkiClientVerifier,
    },
};
use tokio_util::task::AbortOnDropHandle;

use crate::net::certificates::{Authority, SignedCertificate};

const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);

/// A TLS relay, which stops and closes its connections when dropped.
#[derive(Debug)]
pub struct TlsRelay {
    addr: SocketAddr,
    handshakes: watch::Sender<Handshakes>,
    /// True if connections are accepted and kept open.
    is_open: watch::Sender<bool>,
    _serving: AbortOnDropHandle<()>,
}

/// Outcomes of all handshakes so far.
#[derive(Debug, Default, Clone)]
pub struct Handshakes {
    /// Client certificate of each completed handshake, if the client presented one.
    pub completed: Vec<Option<CertificateDer<'static>>>,
    /// Error of each failed handshake.
    pub failed: Vec<String>,
}

impl TlsRelay {
    /// Starts a relay in front of `to` with this certificate. Clients need a certificate of
    /// `clients`, if given.
    pub async fn start(
        to: SocketAddr,
        server: &SignedCertificate,
        clients: Option<&Authority>,
    ) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config(server, clients)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (open, is_open) = watch::channel(true);
        let seen = watch::Sender::default();
        let relay = serve(listener, acceptor, to, (is_open, seen.clone()));
        Self {
            addr,
            handshakes: seen,
            is_open: open,
            _serving: AbortOnDropHandle::new(tokio::spawn(relay)),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the outcomes of all handshakes so far.
    #[must_use]
    pub fn handshakes(&self) -> Handshakes {
        self.handshakes.borrow().clone()
    }

    /// Waits until a handshake has failed with an error that contains `why`. A client may detect
    /// the failure earlier.
    pub async fn wait_for_failure(&self, reason: &str) {
        let mut seen = self.handshakes.subscribe();
        let failed =
            seen.wait_for(|seen| seen.failed.iter().any(|failure| failure.contains(reason)));
        let failed = timeout(FAILURE_TIMEOUT, failed).await;
        let failed = failed.unwrap_or_else(|_| panic!("{reason}: {:?}", self.handshakes()));
        failed.expect("it listens");
    }

    /// Closes all connections, and new connections immediately, until [`Self::reopen`].
    pub fn close_connections(&self) {
        self.is_open.send_replace(false);
    }

    /// Accepts new connections again.
    pub fn reopen(&self) {
        self.is_open.send_replace(true);
    }
}

fn config(server: &SignedCertificate, clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.expect("its own versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots
                .add(authority.certificate().clone())
                .expect("a root certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a root"))
        }
    };
    let config = builder.with_single_cert(vec![server.certificate()], server.key());
    let mut config = config.expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    to: SocketAddr,
    (open, seen): (watch::Receiver<bool>, watch::Sender<Handshakes>),
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (acceptor, mut open) = (acceptor.clone(), open.clone());
        let seen = seen.clone();
        connections.spawn(async move {
            let pass = relay(client, acceptor, to, &seen);
            tokio::select! {
                () = pass => {}
                _ = open.wait_for(|is_open| !is_open) => {}
            }
        });
    }
}

async fn relay(
    client: TcpStream,
    acceptor: TlsAcceptor,
    to: SocketAddr,
    seen: &watch::Sender<Handshakes>,
) {
    let mut client = match acceptor.accept(client).await {
        Ok(client) => client,
        Err(error) => {
            seen.send_modify(|seen| seen.failed.push(error.to_string()));
            return;
        }
    };
    let presented = client.get_ref().1.peer_certificates();
    let presented = presented.and_then(|chain| chain.first()).cloned();
    let presented = presented.map(CertificateDer::into_owned);
    seen.send_modify(|seen| seen.completed.push(presented));
    let mut broker = TcpStream::connect(to).await.expect("what is behind runs");
    // Either side may end without an orderly close.
    let _ = copy_bidirectional(&mut client, &mut broker).await;
}
