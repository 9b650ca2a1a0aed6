//! An address that moves from a master to its replica, as that of a managed Redis does. The former
//! master keeps running, and a broker that still reaches it continues to use it.
#![expect(
    clippy::disallowed_methods,
    reason = "a call that waits and a forwarder are tasks of the test"
)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use leasehold_tests::{
    broker::process::BrokerProcess,
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::workload::granted_at,
    redis::{
        former_master::{broker_options, renew_until_rejected},
        server::RedisServer,
    },
    scale::print_figures,
    until::until,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

const WAIT: Duration = Duration::from_secs(60);
const LOCK: &str = "orders/17";

/// A port that forwards connections to one server, and later to another server.
struct MovingAddress {
    addr: SocketAddr,
    upstream: watch::Sender<SocketAddr>,
    _serving: AbortOnDropHandle<()>,
}

impl MovingAddress {
    async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (upstream, leads_to) = watch::channel(upstream);
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, leads_to.clone()));
            }
        });
        Self {
            addr,
            upstream,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Forwards new connections to this server and cuts the connections to the previous server.
    fn move_to(&self, upstream: SocketAddr) {
        self.upstream.send_replace(upstream);
    }
}

async fn forward(mut client: TcpStream, mut leads_to: watch::Receiver<SocketAddr>) {
    let upstream = *leads_to.borrow_and_update();
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = leads_to.changed() => {}
    }
}

/// Moves the address under two brokers. Without a pause of renewals two holders would rely on the
/// lock: the holder whose lease the new master renews, and the waiter to which the former master
/// grants the lock without that renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_renewed_while_the_former_master_may_end_it() {
    const TTL: Duration = Duration::from_secs(6);
    /// Time that exceeds E(6 s), so that the former master grants the lock earlier.
    const FORMER_MAX: Duration = Duration::from_secs(15);
    let (former, promoted) = (RedisServer::start().await, RedisServer::start().await);
    let mut raw = promoted.connect().await;
    let port = former.addr().port().to_string();
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let address = MovingAddress::start(former.addr()).await;
    let moves = broker_options(format!("redis://{}", address.addr), TTL, FORMER_MAX);
    moves.init_store().await;
    let follows = BrokerProcess::start(&moves).await;
    let unmoved_broker = BrokerProcess::start(&broker_options(former.url(), TTL, FORMER_MAX)).await;
    let client = Client::new("both", &[follows.addr(), unmoved_broker.addr()], 0);

    until("a replica", async || {
        let info = raw.must(&["INFO", "replication"]).await;
        info.text().contains("master_link_status:up").then_some(())
    })
    .await;

    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let mut held = client.acquire_at(0, &call).await.expect("a free lock");
    let next = client.start_acquire_at(1, &AcquireCall::new(LOCK, TTL, WAIT));
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    held = renewed(&client, held).await;
    let offset = former.connect().await.must(&["INFO", "replication"]).await;
    let offset = replicated(offset.text());
    until("the replica has the renewal", async || {
        let info = raw.must(&["INFO", "replication"]).await;
        (replicated(info.text()) >= offset).then_some(())
    })
    .await;
    raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    address.move_to(promoted.addr());
    let moved = boottime();

    let next = async {
        let next = next.await.expect("the call ends by itself");
        granted_at(&next.expect("the former master grants it"))
    };
    let (renewals, granted) = tokio::join!(renew_until_rejected(&client, held), next);
    print_figures(&format!(
        "moved_address: trusted until {:?} after the move, refused={}; the former master granted after {:?}",
        renewals.trusted_until.saturating_sub(moved),
        renewals.rejected,
        granted.saturating_sub(moved)
    ));
    assert!(renewals.rejected > 0, "the new master was asked");
    assert!(
        renewals.trusted_until <= granted,
        "two holders trust the lock for {:?}",
        renewals.trusted_until - granted
    );
}

/// Promotes a replica. The broker cannot query the former master at its address, and receives no
/// notice that the former master is gone.
#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_again_after_former_master_max() {
    /// TTL that exceeds `FORMER_MAX`.
    const TTL: Duration = Duration::from_secs(10);
    const FORMER_MAX: Duration = Duration::from_secs(6);
    let (former, promoted) = (RedisServer::start().await, RedisServer::start().await);
    let mut raw = promoted.connect().await;
    let port = former.addr().port().to_string();
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let address = MovingAddress::start(former.addr()).await;
    let options = broker_options(format!("redis://{}", address.addr), TTL, FORMER_MAX);
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let client = Client::new("one", &[broker.addr()], 0);
    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    let token = held.token().to_string();
    until("the replica has it", async || {
        let keys = raw.must(&["KEYS", "*orders*"]).await;
        format!("{keys:?}").contains("orders").then_some(())
    })
    .await;
    raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    let promoted_at = boottime();
    address.move_to(promoted.addr());
    until("the connections are cut", async || {
        broker.log().contains("is lost").then_some(())
    })
    .await;
    let held = until("a renewal", async || client.renew_at(0, &held).await.ok()).await;
    let paused = boottime() - promoted_at;
    print_figures(&format!("moved_address: renewed after {paused:?}"));
    assert_eq!(held.token().to_string(), token);
    assert!(paused >= FORMER_MAX, "{paused:?}");
}

/// Returns the replication offset of a server.
fn replicated(info: &str) -> u64 {
    let offset = |name| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.parse().ok())
    };
    let offset: Option<u64> =
        offset("slave_repl_offset:").or_else(|| offset("master_repl_offset:"));
    offset.expect("an offset")
}

async fn renewed(client: &Client, held: HeldLease) -> HeldLease {
    client.renew_at(0, &held).await.expect("it is held")
}
