//! A relay that speaks TLS with clients and passes what they say on to an address in plain.

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

use crate::certificates::{Authority, Signed};

const SOON: Duration = Duration::from_secs(5);

/// Ends with its connections when dropped.
#[derive(Debug)]
pub struct TlsRelay {
    addr: SocketAddr,
    seen: watch::Sender<Seen>,
    /// Whether anything passes.
    open: watch::Sender<bool>,
    _serving: AbortOnDropHandle<()>,
}

/// What became of the connections so far.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// For each completed handshake the client's certificate, if it showed one.
    pub handshakes: Vec<Option<CertificateDer<'static>>>,
    /// Why the others failed.
    pub failures: Vec<String>,
}

impl TlsRelay {
    /// Before `to`, with this certificate; clients need one by `clients`, if given.
    pub async fn start(to: SocketAddr, server: &Signed, clients: Option<&Authority>) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config(server, clients)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (open, is_open) = watch::channel(true);
        let seen = watch::Sender::default();
        let relay = serve(listener, acceptor, to, (is_open, seen.clone()));
        Self {
            addr,
            seen,
            open,
            _serving: AbortOnDropHandle::new(tokio::spawn(relay)),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it has seen so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Returns once a handshake has failed with this in its reason; a client may know sooner.
    pub async fn failed(&self, why: &str) {
        let mut seen = self.seen.subscribe();
        let failed =
            seen.wait_for(|seen| seen.failures.iter().any(|failure| failure.contains(why)));
        let failed = timeout(SOON, failed).await;
        let failed = failed.unwrap_or_else(|_| panic!("{why}: {:?}", self.seen()));
        failed.expect("it listens");
    }

    /// Breaks all connections, and new ones at once, until [`Self::mend`].
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// New connections work again.
    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

fn config(server: &Signed, clients: Option<&Authority>) -> ServerConfig {
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
    (open, seen): (watch::Receiver<bool>, watch::Sender<Seen>),
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
    seen: &watch::Sender<Seen>,
) {
    let mut client = match acceptor.accept(client).await {
        Ok(client) => client,
        Err(error) => {
            seen.send_modify(|seen| seen.failures.push(error.to_string()));
            return;
        }
    };
    let shown = client.get_ref().1.peer_certificates();
    let shown = shown.and_then(|chain| chain.first()).cloned();
    let shown = shown.map(CertificateDer::into_owned);
    seen.send_modify(|seen| seen.handshakes.push(shown));
    let mut broker = TcpStream::connect(to).await.expect("what is behind runs");
    // Either side may end without a word.
    let _ = copy_bidirectional(&mut client, &mut broker).await;
}
