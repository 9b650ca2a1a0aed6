//! Rules that change while streams are open: what is told and done from then on is by the new ones.

use std::time::Duration;

use bytes::Bytes;
use leasehold_proto::v1::{
    AcquireResponse, AttachLease, ErrorReason, HoldAcquire, LockRef, WatchLocksRequest,
    WatchLocksResponse, hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    matrix::{
        ask::{acquire, owner, target},
        line::{ACQUIRE, Line},
        roles::{Part, Role, Shows, Verb, policy, root},
        site::Site,
        stream::LeaseStream,
        wire::open,
    },
    scale::figures,
    status::reason,
    until::until,
};
use prost::Message as _;
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;

const WATCH: &str = "/leasehold.v1.InspectionService/WatchLocks";
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(100);
const READ_AGAIN: &str = "tokens, keys and policy were read again";

/// A worker and somebody who watches; `parts`: where they may.
fn people(parts: &[Part]) -> Vec<Role> {
    let rights = |verbs: &[Verb]| {
        let parts = parts.iter();
        parts.map(|part| (*part, verbs.to_vec())).collect()
    };
    vec![
        root(),
        Role::new("worker", Shows::Token, rights(&[Verb::Acquire])),
        Role::new(
            "watcher",
            Shows::Token,
            rights(&[Verb::List, Verb::Observe]),
        ),
    ]
}

struct Watch(Streaming<Bytes>);

impl Watch {
    async fn begin(line: &Line) -> Self {
        let (asks, asked) = mpsc::channel(1);
        let all = WatchLocksRequest::default().encode_to_vec();
        asks.send(all).await.expect("there is room");
        drop(asks);
        let opened = open(&line.api, WATCH, line.authorization.as_deref(), asked).await;
        Self(opened.expect("it may watch").0)
    }

    /// The lock of the next event that is about one.
    async fn heard(&mut self) -> String {
        let heard = timeout(HEARD_WITHIN, self.next()).await;
        heard.expect("told in time")
    }

    async fn next(&mut self) -> String {
        loop {
            let next = self.0.message().await.expect("it goes on");
            let event = WatchLocksResponse::decode(next.expect("it goes on"));
            let subject = event.expect("an event").subject;
            if let Some(lock) = subject.and_then(|subject| subject.target) {
                return lock.name;
            }
        }
    }
}

async fn grant(site: &Site, lock: &LockRef) {
    let request = acquire(target(lock), owner("matrix"));
    let taken: Result<AcquireResponse, _> = site.aside().call(ACQUIRE, &request).await;
    taken.expect("it is free");
}

/// Puts other rules in the place of the old ones, and waits until both brokers go by them.
async fn changed(site: &Site, roles: &[Role]) {
    let times = |log: &str| log.matches(READ_AGAIN).count();
    let before = times(&site.plain.log());
    site.doors.set_policy(&policy(roles));
    until("the rules are read again", async || {
        (times(&site.plain.log()) > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_by_the_rules_that_are_in_force_now() {
    let site = Site::start(people(&[Part::Open, Part::Shared])).await;
    let mut watch = Watch::begin(&site.line(&site.roles[2])).await;
    let mut probes = 0;
    until("the broker beside tells what it does", async || {
        probes += 1;
        grant(&site, &Part::Shared.lock(&format!("probe-{probes}"))).await;
        let heard = timeout(SOON, watch.next()).await;
        heard.ok()
    })
    .await;
    grant(&site, &Part::Open.lock("before")).await;
    while watch.heard().await != Part::Open.lock("before").name {}

    changed(&site, &people(&[Part::Shared])).await;
    grant(&site, &Part::Open.lock("hidden")).await;
    grant(&site, &Part::Shared.lock("shown")).await;
    let (mut between, last) = (Vec::new(), Part::Shared.lock("shown").name);
    loop {
        let heard = watch.heard().await;
        if heard == last {
            break;
        }
        between.push(heard);
    }
    assert!(between.is_empty(), "{between:?}");

    changed(&site, &people(&[Part::Open, Part::Shared])).await;
    grant(&site, &Part::Open.lock("after")).await;
    assert_eq!(watch.heard().await, Part::Open.lock("after").name);
    figures("authorization: a watch over two changes of the rules: leaks=0");
}

#[tokio::test]
async fn a_lease_stream_takes_by_the_rules_that_are_in_force_now() {
    let mut site = Site::start(people(&[Part::Open, Part::Shared])).await;
    let line = site.line(&site.roles[1]);
    let mut stream = LeaseStream::open(&line).await.expect("a stream");
    let kept = stream.take(&[Part::Shared.lock("kept")]).await;
    let other = line.take(&[Part::Open.lock("other")]).await;
    let other = other.expect("it is free");
    changed(&site, &people(&[Part::Shared])).await;

    site.overheard.commands().await;
    let acquire_of = |call_id, lock: &LockRef, under| {
        let mut request = acquire(target(lock), owner("matrix"));
        request.under = under;
        Ask::Acquire(HoldAcquire {
            call_id,
            request: Some(request),
            attach_number: 1,
            ..HoldAcquire::default()
        })
    };
    let hidden = Part::Open.lock("hidden");
    let attach = AttachLease {
        call_id: 4,
        lease: Some(other),
        attach_number: 1,
    };
    for ask in [
        acquire_of(2, &hidden, None),
        acquire_of(3, &hidden, Some(kept)),
        Ask::Attach(attach),
    ] {
        let told = stream.ask(ask).await;
        let Told::Refused(refused) = told else {
            panic!("{told:?}");
        };
        assert_eq!(
            refused.reason(),
            ErrorReason::PermissionDenied,
            "{refused:?}"
        );
    }
    let taken = line.take(std::slice::from_ref(&hidden)).await;
    let refused = taken.expect_err("not any more");
    assert_eq!(
        reason(&refused.status()),
        Some(ErrorReason::PermissionDenied)
    );
    let commands = site.overheard.commands().await;
    assert!(commands.is_empty(), "{commands:?}");

    // What it may still, it may on the same stream.
    let told = stream
        .ask(acquire_of(5, &Part::Shared.lock("more"), None))
        .await;
    assert!(matches!(told, Told::Granted(_)), "{told:?}");
    changed(&site, &people(&[Part::Open, Part::Shared])).await;
    let told = stream.ask(acquire_of(6, &hidden, None)).await;
    assert!(matches!(told, Told::Granted(_)), "{told:?}");
}
