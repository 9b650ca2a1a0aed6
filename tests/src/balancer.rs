//! A small TCP balancer, as a service of Kubernetes has it: each new connection goes to the next
//! broker that says it is ready.

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

use crate::{broker_process::BrokerProcess, plain_http::ask};

const ASK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Before some brokers, until dropped.
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
    is_leaving: AtomicBool,
    is_ready: watch::Sender<bool>,
    open: watch::Sender<usize>,
}

impl Balancer {
    /// Starts one. It takes connections once a broker has said that it is ready.
    pub async fn start(brokers: &[BrokerProcess]) -> Self {
        let places = brokers.iter().map(|broker| (broker.addr(), broker.admin()));
        let balancer = Self::before(&places.collect::<Vec<_>>()).await;
        for at in 0..brokers.len() {
            balancer.ready(at).await;
        }
        balancer
    }

    /// Starts one before these places: where the API is, and the admin port. A broker need not be
    /// there yet.
    pub async fn before(places: &[(SocketAddr, SocketAddr)]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("bind a loopback port");
        let addr = listener.local_addr().expect("a bound socket has one");
        let backend = |&(api, admin): &(SocketAddr, SocketAddr)| Backend {
            api,
            admin: watch::Sender::new(admin),
            is_leaving: AtomicBool::new(false),
            is_ready: watch::Sender::default(),
            open: watch::Sender::default(),
        };
        let backends: Arc<Vec<_>> = Arc::new(places.iter().map(backend).collect());
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

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections are open to a broker.
    #[must_use]
    pub fn open(&self, at: usize) -> usize {
        *self.backends[at].open.borrow()
    }

    /// Waits until none is.
    pub async fn left(&self, at: usize) {
        let mut open = self.backends[at].open.subscribe();
        let left = open.wait_for(|open| *open == 0).await;
        left.expect("the balancer lives");
    }

    /// Another process has taken the place of a broker, at the same address.
    pub fn replaced(&self, at: usize, admin: SocketAddr) {
        self.backends[at].is_ready.send_replace(false);
        self.backends[at].admin.send_replace(admin);
        self.backends[at].is_leaving.store(false, Ordering::Relaxed);
    }

    /// Leads no new connection to a broker, whatever it says of itself, until it is replaced.
    pub fn leaving(&self, at: usize) {
        self.backends[at].is_leaving.store(true, Ordering::Relaxed);
    }

    /// Waits until connections may go to a broker.
    pub async fn ready(&self, at: usize) {
        let mut is_ready = self.backends[at].is_ready.subscribe();
        let is_ready = is_ready.wait_for(|is_ready| *is_ready).await;
        is_ready.expect("the balancer lives");
    }
}

async fn probe(backends: Arc<Vec<Backend>>, at: usize) {
    let backend = &backends[at];
    loop {
        let admin = *backend.admin.borrow();
        let answer = timeout(ANSWER_LIMIT, ask(admin, "GET", "/readyz")).await;
        let is_ready = matches!(answer, Ok(Ok((200, _))));
        // An answer of the process before says nothing of this one.
        if admin == *backend.admin.borrow() {
            backend.is_ready.send_replace(is_ready);
        }
        sleep(ASK_EVERY).await;
    }
}

async fn accept(listener: TcpListener, backends: Arc<Vec<Backend>>) {
    let next = Arc::new(AtomicUsize::new(0));
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve(client, Arc::clone(&backends), Arc::clone(&next)));
    }
}

/// A client for whom no broker is ready is refused.
async fn serve(mut client: TcpStream, backends: Arc<Vec<Backend>>, next: Arc<AtomicUsize>) {
    for _ in 0..backends.len() {
        let at = next.fetch_add(1, Ordering::Relaxed) % backends.len();
        let backend = &backends[at];
        if backend.is_leaving.load(Ordering::Relaxed) || !*backend.is_ready.borrow() {
            continue;
        }
        let broker = timeout(CONNECT_LIMIT, TcpStream::connect(backend.api)).await;
        let Ok(Ok(mut broker)) = broker else {
            continue;
        };
        backend.open.send_modify(|open| *open += 1);
        // Small frames both ways: without this the kernel would hold them back.
        if client.set_nodelay(true).is_ok() && broker.set_nodelay(true).is_ok() {
            // Either side may cut it.
            let _cut = copy_bidirectional(&mut client, &mut broker).await;
        }
        backend.open.send_modify(|open| *open -= 1);
        return;
    }
}
