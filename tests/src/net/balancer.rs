//! A TCP load balancer like a Kubernetes service: each new connection goes to the next ready
//! broker.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{broker::process::BrokerProcess, net::plain_http::send_request};

const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A load balancer before some brokers, which runs until it is dropped.
#[derive(Debug)]
pub struct Balancer {
    addr: SocketAddr,
    backends: Arc<Vec<Backend>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Backend {
    api: SocketAddr,
    admin: watch::Sender<SocketAddr>,
    is_draining: AtomicBool,
    is_ready: watch::Sender<bool>,
    open_connections: watch::Sender<usize>,
}

impl Balancer {
    /// Starts a load balancer, and waits until all brokers are ready.
    pub async fn start(brokers: &[BrokerProcess]) -> Self {
        let addresses = brokers.iter().map(|broker| (broker.addr(), broker.admin()));
        let balancer = Self::for_addresses(&addresses.collect::<Vec<_>>()).await;
        for at in 0..brokers.len() {
            balancer.wait_until_ready(at).await;
        }
        balancer
    }

    /// Starts a load balancer before these brokers, each given by its API address and its admin
    /// address. The brokers may start later.
    pub async fn for_addresses(addresses: &[(SocketAddr, SocketAddr)]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("bind a loopback port");
        let addr = listener.local_addr().expect("a bound socket has one");
        let backend = |&(api, admin): &(SocketAddr, SocketAddr)| Backend {
            api,
            admin: watch::Sender::new(admin),
            is_draining: AtomicBool::new(false),
            is_ready: watch::Sender::default(),
            open_connections: watch::Sender::default(),
        };
        let backends: Arc<Vec<_>> = Arc::new(addresses.iter().map(backend).collect());
        let mut tasks = vec![tokio::spawn(accept(listener, Arc::clone(&backends)))];
        for at in 0..backends.len() {
            tasks.push(tokio::spawn(probe(Arc::clone(&backends), at)));
        }
        Self {
            addr,
            backends,
            _tasks: tasks.into_iter().map(AbortOnDropHandle::new).collect(),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of open connections to a broker.
    #[must_use]
    pub fn open_connections(&self, at: usize) -> usize {
        *self.backends[at].open_connections.borrow()
    }

    /// Waits until no connection to a broker is open.
    pub async fn wait_for_no_connections(&self, at: usize) {
        let mut open = self.backends[at].open_connections.subscribe();
        let all_closed = open.wait_for(|open| *open == 0).await;
        all_closed.expect("the balancer lives");
    }

    /// Replaces a broker by another process with the same API address.
    pub fn replace_broker(&self, at: usize, admin: SocketAddr) {
        self.backends[at].is_ready.send_replace(false);
        self.backends[at].admin.send_replace(admin);
        self.backends[at]
            .is_draining
            .store(false, Ordering::Relaxed);
    }

    /// Stops new connections to a broker until it is replaced, even if the broker is ready.
    pub fn stop_new_connections(&self, at: usize) {
        self.backends[at].is_draining.store(true, Ordering::Relaxed);
    }

    /// Waits until a broker is ready.
    pub async fn wait_until_ready(&self, at: usize) {
        let mut is_ready = self.backends[at].is_ready.subscribe();
        let is_ready = is_ready.wait_for(|is_ready| *is_ready).await;
        is_ready.expect("the balancer lives");
    }
}

async fn probe(backends: Arc<Vec<Backend>>, at: usize) {
    let backend = &backends[at];
    loop {
        let admin = *backend.admin.borrow();
        let answer = timeout(PROBE_TIMEOUT, send_request(admin, "GET", "/readyz")).await;
        let is_ready = matches!(answer, Ok(Ok((200, _))));
        // A response of the replaced process says nothing about the new process.
        if admin == *backend.admin.borrow() {
            backend.is_ready.send_replace(is_ready);
        }
        sleep(PROBE_INTERVAL).await;
    }
}

async fn accept(listener: TcpListener, backends: Arc<Vec<Backend>>) {
    let next = Arc::new(AtomicUsize::new(0));
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(forward_connection(
            client,
            Arc::clone(&backends),
            Arc::clone(&next),
        ));
    }
}

/// Forwards a connection to the next ready broker, or closes it if no broker is ready.
async fn forward_connection(
    mut client: TcpStream,
    backends: Arc<Vec<Backend>>,
    next: Arc<AtomicUsize>,
) {
    for _ in 0..backends.len() {
        let at = next.fetch_add(1, Ordering::Relaxed) % backends.len();
        let backend = &backends[at];
        if backend.is_draining.load(Ordering::Relaxed) || !*backend.is_ready.borrow() {
            continue;
        }
        let broker = timeout(CONNECT_TIMEOUT, TcpStream::connect(backend.api)).await;
        let Ok(Ok(mut broker)) = broker else {
            continue;
        };
        backend.open_connections.send_modify(|open| *open += 1);
        // Without TCP_NODELAY the kernel would delay small frames.
        if client.set_nodelay(true).is_ok() && broker.set_nodelay(true).is_ok() {
            // Either side may close the connection.
            let _cut = copy_bidirectional(&mut client, &mut broker).await;
        }
        backend.open_connections.send_modify(|open| *open -= 1);
        return;
    }
}
