//! Moves of a lease between brokers. The newest attachment counts, whatever happens to the previous
//! streams, and an older attachment that arrives late changes nothing.

use std::{collections::HashSet, mem, time::Duration};

use leasehold_proto::v1::{ErrorReason, Lease, LeaseEndReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::store_expiry::read_expiry,
    redis::{
        server::RedisServer,
        subscriptions::{close_and_block, subscriber_ids, unblock, wait_for_subscriptions},
    },
    scale::{print_figures, scaled_count},
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(20);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const STOPPED: Duration = Duration::from_secs(10);
const NO_ANSWER: Duration = Duration::from_millis(500);
/// Maximum time for which a lock is held after a break with a disconnect grace of zero.
const TIME_LIMIT: Duration = Duration::from_millis(200);
/// Number of attachments in all tests together. Each test makes a quarter of them.
const MOVES: usize = 200;

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

/// A lease and its current stream.
struct MovingLease {
    client: Client,
    deployment: Deployment,
    lease: Lease,
    number: i32,
    stream: StreamClient,
}

impl MovingLease {
    async fn start(disconnect_grace: Option<Duration>) -> Self {
        let deployment = Deployment::start(2).await;
        let addrs = deployment.addrs();
        let client = Client::new("observer", &addrs, 0);
        let mut stream = StreamClient::open(addrs[0]).await;
        let mut request = client.acquire_request(&immediate_call("a"));
        request.disconnect_grace = disconnect_grace.map(|g| g.try_into().expect("a short time"));
        let call = stream.send_acquire(request, 1).await;
        let granted = stream.wait_for_grant(call).await.expect("the stream lives");
        Self {
            client,
            deployment,
            lease: granted.lease.expect("a lease"),
            number: 1,
            stream,
        }
    }

    /// Opens a stream at the other broker as the current stream. Returns the previous stream, which
    /// still has the lease and a renewal in flight.
    async fn switch_broker(&mut self) -> StreamClient {
        self.stream.heartbeat().await;
        let other = usize::try_from(self.number % 2).expect("0 or 1");
        let new = StreamClient::open(self.deployment.addrs()[other]).await;
        mem::replace(&mut self.stream, new)
    }

    async fn attach(&mut self) {
        self.number += 1;
        let call = self.stream.attach(&self.lease, self.number).await;
        let message = self.stream.next_lease_message().await;
        let Some(Response::Attached(attached)) = message else {
            panic!("{message:?} instead of an attachment");
        };
        assert_eq!(attached.call_id, call);
        assert_eq!(attached.lease_id, self.lease.lease_id);
    }

    /// Asserts that the newest stream extends the lease, and that the other broker returns the same
    /// grant.
    async fn assert_renewed(&mut self) {
        let sequence = self.stream.heartbeat().await;
        let extended = acknowledged(&mut self.stream, sequence, 1).await;
        assert!(extended.contains(&self.lease.lease_id));
        let other = usize::try_from(self.number % 2).expect("0 or 1");
        is_held(&self.client, other, &self.lease).await;
    }
}

/// Waits until heartbeats from `sequence` on were acknowledged for this number of leases.
async fn acknowledged(stream: &mut StreamClient, sequence: i64, leases: usize) -> HashSet<String> {
    let mut extended = HashSet::new();
    while extended.len() < leases {
        let message = stream.next_lease_message().await;
        let Some(Response::Ack(ack)) = message else {
            panic!("{message:?} instead of an acknowledgement");
        };
        if ack.sequence >= sequence {
            let whole = ack
                .leases
                .into_iter()
                .filter(|lease| lease.grant_count == 1);
            extended.extend(whole.map(|lease| lease.lease_id));
        }
    }
    extended
}

async fn is_held(client: &Client, at: usize, lease: &Lease) {
    let grant = &lease.grants[0];
    let name = &grant.target.as_ref().expect("a target").name;
    let seen = read_expiry(client, at, name).await.expect("it is held");
    assert_eq!(
        (&seen.lease_id, seen.token),
        (&lease.lease_id, grant.fencing_token)
    );
}

/// Returns the next message that is not an acknowledgement.
async fn message(stream: &mut StreamClient) -> Option<Response> {
    loop {
        match stream.next_lease_message().await {
            Some(Response::Ack(_)) => {}
            message => return message,
        }
    }
}

/// Waits until this number of leases has moved away. Fails on any other message except
/// acknowledgements.
async fn wait_for_moves(stream: &mut StreamClient, leases: usize) -> HashSet<String> {
    let mut moved = HashSet::new();
    while moved.len() < leases {
        let message = message(stream).await;
        let Some(Response::Ended(ended)) = message else {
            panic!("{message:?} instead of a move");
        };
        assert_eq!(ended.reason(), LeaseEndReason::Moved);
        moved.insert(ended.lease_id);
    }
    moved
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_moves_when_its_stream_breaks() {
    let mut mover = MovingLease::start(None).await;
    let moves = scaled_count(MOVES / 4, 5);
    for _ in 0..moves {
        let old = mover.switch_broker().await;
        drop(old);
        mover.attach().await;
        mover.assert_renewed().await;
    }
    print_figures(&format!("hold_moved: reset moves={moves} of {moves}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_stream_that_a_lease_has_left_frees_nothing() {
    let mut mover = MovingLease::start(None).await;
    let moves = scaled_count(MOVES / 4, 5);
    for index in 0..moves {
        let mut old = mover.switch_broker().await;
        mover.attach().await;
        // In every other round the broker of the old stream may not have received the move yet.
        if index % 2 == 0 {
            let moved = wait_for_moves(&mut old, 1).await;
            assert!(moved.contains(&mover.lease.lease_id));
        }
        for message in old.close_and_drain().await {
            let is_move =
                matches!(&message, Response::Ended(e) if e.reason() == LeaseEndReason::Moved);
            let is_ack = matches!(message, Response::Ack(_));
            assert!(is_ack || is_move, "{message:?}");
        }
        mover.assert_renewed().await;
    }
    print_figures(&format!("hold_moved: closed moves={moves} of {moves}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_of_a_stream_that_a_lease_has_left_frees_nothing() {
    let mut mover = MovingLease::start(Some(Duration::ZERO)).await;
    let moves = scaled_count(MOVES / 4, 5);
    for _ in 0..moves {
        let old = mover.switch_broker().await;
        mover.attach().await;
        drop(old);
        mover.assert_renewed().await;
    }
    // The broker has processed the last break by this time.
    sleep(HEARTBEAT_INTERVAL).await;
    mover.assert_renewed().await;
    // In contrast, a break of the lease's current stream frees the lock at once.
    drop(mover.switch_broker().await);
    let broke_at = boottime();
    while read_expiry(&mover.client, 0, "a").await.is_some() {
        assert!(
            boottime() < broke_at + TIME_LIMIT,
            "disconnect_grace is zero"
        );
    }
    let moves_and_break = format!("moves={moves} of {moves}, then a break freed it");
    print_figures(&format!("hold_moved: disconnect_grace=0 {moves_and_break}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_attachment_that_a_stopped_broker_reads_late_changes_nothing() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let total = scaled_count(MOVES / 4, 5);
    let mut old = StreamClient::open_without_keepalive(addrs[0]).await;
    old.start_heartbeats(HEARTBEAT_INTERVAL);
    let mut leases = Vec::new();
    for index in 0..total {
        let call = old
            .acquire(&immediate_call(&format!("lock-{index}")), 1)
            .await;
        let granted = old.wait_for_grant(call).await.expect("the stream lives");
        leases.push(granted.lease.expect("a lease"));
    }
    let mut late = StreamClient::open_without_keepalive(addrs[0]).await;
    let mut new = StreamClient::open(addrs[1]).await;
    deployment.brokers[0].process().pause().await;
    let stopped = boottime();
    for lease in &leases {
        late.attach(lease, 2).await;
    }
    for lease in &leases {
        new.attach(lease, 3).await;
    }
    for _ in &leases {
        let message = new.next_lease_message().await;
        assert!(
            matches!(message, Some(Response::Attached(_))),
            "{message:?}"
        );
    }
    new.start_heartbeats(HEARTBEAT_INTERVAL);
    let silence = timeout(NO_ANSWER, late.next_lease_message()).await;
    assert!(silence.is_err(), "a stopped broker answers: {silence:?}");
    sleep((stopped + STOPPED).saturating_sub(boottime())).await;
    deployment.brokers[0].process().resume();
    for _ in &leases {
        let message = late.next_lease_message().await;
        let Some(Response::Refused(refused)) = message else {
            panic!("{message:?} instead of a refusal");
        };
        assert_eq!(refused.reason(), ErrorReason::StaleAttach, "{refused:?}");
    }
    assert_eq!(wait_for_moves(&mut old, total).await.len(), total);
    assert_all_renewed(&deployment, &mut new, &leases).await;
    for stream in [old, late] {
        let message = stream.close_and_drain().await;
        assert!(message.is_empty(), "nothing is left on it: {message:?}");
    }
    assert_all_renewed(&deployment, &mut new, &leases).await;
    print_figures(&format!(
        "hold_moved: stopped=10s moves={total} of {total} late_attachments_refused={total}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_streams_release_nothing_at_a_broker_that_has_not_received_the_moves() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    let mut deployment = Deployment::start_on(redis, &options, 1).await;
    let mut raw = deployment.redis.connect().await;
    wait_for_subscriptions(&mut raw, 1).await;
    let of_first = subscriber_ids(&mut raw).await;
    deployment
        .brokers
        .push(BrokerProcess::start(&options).await);
    wait_for_subscriptions(&mut raw, 2).await;
    let addrs = deployment.addrs();
    let total = scaled_count(MOVES / 4, 5);
    let mut old = StreamClient::open(addrs[0]).await;
    let mut leases = Vec::new();
    for index in 0..total {
        let call = immediate_call(&format!("lock-{index}")).with_disconnect_grace(0);
        let call = old.acquire(&call, 1).await;
        leases.push(old.expect_granted(call).await);
    }
    close_and_block(&mut raw, &of_first).await;
    let mut new = StreamClient::open(addrs[1]).await;
    for lease in &leases {
        new.attach(lease, 2).await;
    }
    for _ in &leases {
        let message = new.next_lease_message().await;
        assert!(
            matches!(message, Some(Response::Attached(_))),
            "{message:?}"
        );
    }
    new.start_heartbeats(HEARTBEAT_INTERVAL);
    drop(old);
    unblock(&mut raw).await;
    // The first broker is connected again and now processes what it could not process before.
    let first = Client::new("observer", &addrs[..1], 0);
    first.get_lock("lock-0").await.expect("it answers again");
    sleep(HEARTBEAT_INTERVAL).await;
    assert_all_renewed(&deployment, &mut new, &leases).await;
    print_figures(&format!("hold_moved: unheard moves={total} freed=0"));
}

/// Asserts that a heartbeat sent from now on extends every lease, and that both brokers return it
/// as held.
async fn assert_all_renewed(deployment: &Deployment, stream: &mut StreamClient, leases: &[Lease]) {
    let asked_at = boottime();
    let client = Client::new("observer", &deployment.addrs(), 0);
    let mut extended = HashSet::new();
    while extended.len() < leases.len() {
        let message = stream.next_lease_message().await;
        let Some(Response::Ack(ack)) = message else {
            panic!("{message:?} instead of an acknowledgement");
        };
        if stream.heartbeat_sent_at(ack.sequence) > asked_at {
            extended.extend(ack.leases.into_iter().map(|lease| lease.lease_id));
        }
    }
    for lease in leases {
        assert!(extended.contains(&lease.lease_id));
        for at in [0, 1] {
            is_held(&client, at, lease).await;
        }
    }
}
