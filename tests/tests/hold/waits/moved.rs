//! A lease moves from broker to broker: the newest attachment holds it, whatever becomes of the
//! streams that it has left, and an older attachment that arrives late changes nothing.

use std::{collections::HashSet, mem, time::Duration};

use leasehold_proto::v1::{ErrorReason, Lease, LeaseEndReason, hold_response::Message as Response};
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    redis_server::RedisServer,
    scale::{count, figures},
    stream_client::StreamClient,
    subscriptions::{cut, listening, restore, subscribers},
    time_left::look,
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(20);
const BEAT: Duration = Duration::from_secs(1);
const STOPPED: Duration = Duration::from_secs(10);
const NO_ANSWER: Duration = Duration::from_millis(500);
/// How long after a break a lock may still be held without a disconnect_grace.
const SOON: Duration = Duration::from_millis(200);
/// Attachments in all, a quarter in each test.
const MOVES: usize = 200;

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

/// One lease, and the stream that it is on.
struct Mover {
    client: Client,
    deployment: Deployment,
    lease: Lease,
    number: i32,
    stream: StreamClient,
}

impl Mover {
    async fn start(disconnect_grace: Option<Duration>) -> Self {
        let deployment = Deployment::start(2).await;
        let addrs = deployment.addrs();
        let client = Client::new("observer", &addrs, 0);
        let mut stream = StreamClient::open(addrs[0]).await;
        let mut request = client.acquire_request(&now("a"));
        request.disconnect_grace = disconnect_grace.map(|g| g.try_into().expect("a short time"));
        let call = stream.acquire_as(request, 1).await;
        let granted = stream.turn(call).await.expect("the stream lives");
        Self {
            client,
            deployment,
            lease: granted.lease.expect("a lease"),
            number: 1,
            stream,
        }
    }

    /// Opens a stream at the other broker and puts it in the place of the old one, which still has
    /// the lease, with a renewal under way.
    async fn turn_to_other(&mut self) -> StreamClient {
        self.stream.heartbeat().await;
        let other = usize::try_from(self.number % 2).expect("0 or 1");
        let new = StreamClient::open(self.deployment.addrs()[other]).await;
        mem::replace(&mut self.stream, new)
    }

    async fn attach(&mut self) {
        self.number += 1;
        let call = self.stream.attach(&self.lease, self.number).await;
        let told = self.stream.hear().await;
        let Some(Response::Attached(attached)) = told else {
            panic!("{told:?} instead of an attachment");
        };
        assert_eq!(attached.call_id, call);
        assert_eq!(attached.lease_id, self.lease.lease_id);
    }

    /// The lease is extended on the newest stream, and the other broker shows the same grant.
    async fn lives(&mut self) {
        let sequence = self.stream.heartbeat().await;
        let extended = acknowledged(&mut self.stream, sequence, 1).await;
        assert!(extended.contains(&self.lease.lease_id));
        let other = usize::try_from(self.number % 2).expect("0 or 1");
        is_held(&self.client, other, &self.lease).await;
    }
}

/// Waits until heartbeats from this one on were acknowledged for so many leases.
async fn acknowledged(stream: &mut StreamClient, sequence: i64, leases: usize) -> HashSet<String> {
    let mut extended = HashSet::new();
    while extended.len() < leases {
        let told = stream.hear().await;
        let Some(Response::Ack(ack)) = told else {
            panic!("{told:?} instead of an acknowledgement");
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
    let seen = look(client, at, name).await.expect("it is held");
    assert_eq!(
        (&seen.lease_id, seen.token),
        (&lease.lease_id, grant.fencing_token)
    );
}

/// The next message that is no acknowledgement.
async fn told(stream: &mut StreamClient) -> Option<Response> {
    loop {
        match stream.hear().await {
            Some(Response::Ack(_)) => {}
            told => return told,
        }
    }
}

/// Hears that so many leases have moved away, and of nothing else.
async fn moved_away(stream: &mut StreamClient, leases: usize) -> HashSet<String> {
    let mut moved = HashSet::new();
    while moved.len() < leases {
        let told = told(stream).await;
        let Some(Response::Ended(ended)) = told else {
            panic!("{told:?} instead of a move");
        };
        assert_eq!(ended.reason(), LeaseEndReason::Moved);
        moved.insert(ended.lease_id);
    }
    moved
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_moves_when_its_stream_breaks() {
    let mut mover = Mover::start(None).await;
    let moves = count(MOVES / 4, 5);
    for _ in 0..moves {
        let old = mover.turn_to_other().await;
        drop(old);
        mover.attach().await;
        mover.lives().await;
    }
    figures(&format!("hold_moved: reset moves={moves} of {moves}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_stream_that_a_lease_has_left_frees_nothing() {
    let mut mover = Mover::start(None).await;
    let moves = count(MOVES / 4, 5);
    for index in 0..moves {
        let mut old = mover.turn_to_other().await;
        mover.attach().await;
        // Every other time its broker may not know of the move yet.
        if index % 2 == 0 {
            let moved = moved_away(&mut old, 1).await;
            assert!(moved.contains(&mover.lease.lease_id));
        }
        for told in old.close_and_hear().await {
            let is_move =
                matches!(&told, Response::Ended(e) if e.reason() == LeaseEndReason::Moved);
            let is_ack = matches!(told, Response::Ack(_));
            assert!(is_ack || is_move, "{told:?}");
        }
        mover.lives().await;
    }
    figures(&format!("hold_moved: closed moves={moves} of {moves}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_of_a_stream_that_a_lease_has_left_frees_nothing() {
    let mut mover = Mover::start(Some(Duration::ZERO)).await;
    let moves = count(MOVES / 4, 5);
    for _ in 0..moves {
        let old = mover.turn_to_other().await;
        mover.attach().await;
        drop(old);
        mover.lives().await;
    }
    // The last break is worked off by now.
    sleep(BEAT).await;
    mover.lives().await;
    // And the same break of the stream that has the lease frees it at once.
    drop(mover.turn_to_other().await);
    let broke_at = boottime();
    while look(&mover.client, 0, "a").await.is_some() {
        assert!(boottime() < broke_at + SOON, "disconnect_grace is zero");
    }
    let moves_and_break = format!("moves={moves} of {moves}, then a break freed it");
    figures(&format!("hold_moved: disconnect_grace=0 {moves_and_break}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_attachment_that_a_stopped_broker_reads_late_changes_nothing() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let total = count(MOVES / 4, 5);
    let mut old = StreamClient::open_patient(addrs[0]).await;
    old.beat(BEAT);
    let mut leases = Vec::new();
    for index in 0..total {
        let call = old.acquire(&now(&format!("lock-{index}")), 1).await;
        let granted = old.turn(call).await.expect("the stream lives");
        leases.push(granted.lease.expect("a lease"));
    }
    let mut late = StreamClient::open_patient(addrs[0]).await;
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
        let told = new.hear().await;
        assert!(matches!(told, Some(Response::Attached(_))), "{told:?}");
    }
    new.beat(BEAT);
    let silence = timeout(NO_ANSWER, late.hear()).await;
    assert!(silence.is_err(), "a stopped broker answers: {silence:?}");
    sleep((stopped + STOPPED).saturating_sub(boottime())).await;
    deployment.brokers[0].process().resume();
    for _ in &leases {
        let told = late.hear().await;
        let Some(Response::Refused(refused)) = told else {
            panic!("{told:?} instead of a refusal");
        };
        assert_eq!(refused.reason(), ErrorReason::StaleAttach, "{refused:?}");
    }
    assert_eq!(moved_away(&mut old, total).await.len(), total);
    live_on(&deployment, &mut new, &leases).await;
    for stream in [old, late] {
        let told = stream.close_and_hear().await;
        assert!(told.is_empty(), "nothing is left on it: {told:?}");
    }
    live_on(&deployment, &mut new, &leases).await;
    figures(&format!(
        "hold_moved: stopped=10s moves={total} of {total} late_attachments_refused={total}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn breaks_free_nothing_at_a_broker_that_has_not_heard_of_the_moves() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::on(redis.url());
    let mut deployment = Deployment::start_on(redis, &options, 1).await;
    let mut raw = deployment.redis.connect().await;
    listening(&mut raw, 1).await;
    let of_first = subscribers(&mut raw).await;
    deployment
        .brokers
        .push(BrokerProcess::start(&options).await);
    listening(&mut raw, 2).await;
    let addrs = deployment.addrs();
    let total = count(MOVES / 4, 5);
    let mut old = StreamClient::open(addrs[0]).await;
    let mut leases = Vec::new();
    for index in 0..total {
        let call = now(&format!("lock-{index}")).with_grace(0);
        let call = old.acquire(&call, 1).await;
        leases.push(old.granted(call).await);
    }
    cut(&mut raw, &of_first).await;
    let mut new = StreamClient::open(addrs[1]).await;
    for lease in &leases {
        new.attach(lease, 2).await;
    }
    for _ in &leases {
        let told = new.hear().await;
        assert!(matches!(told, Some(Response::Attached(_))), "{told:?}");
    }
    new.beat(BEAT);
    drop(old);
    restore(&mut raw).await;
    // What the first broker could not do before it does now.
    let first = Client::new("observer", &addrs[..1], 0);
    first.get_lock("lock-0").await.expect("it answers again");
    sleep(BEAT).await;
    live_on(&deployment, &mut new, &leases).await;
    figures(&format!("hold_moved: unheard moves={total} freed=0"));
}

/// Every lease is extended by a heartbeat that is yet to come, and shown by both brokers.
async fn live_on(deployment: &Deployment, stream: &mut StreamClient, leases: &[Lease]) {
    let asked = boottime();
    let client = Client::new("observer", &deployment.addrs(), 0);
    let mut extended = HashSet::new();
    while extended.len() < leases.len() {
        let told = stream.hear().await;
        let Some(Response::Ack(ack)) = told else {
            panic!("{told:?} instead of an acknowledgement");
        };
        if stream.beat_sent(ack.sequence) > asked {
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
