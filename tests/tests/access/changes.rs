//! Changes of rules while streams are open. Events and commands after a change are authorized by
//! the new rules.

use std::time::Duration;

use bytes::Bytes;
use leasehold_proto::v1::{
    AcquireResponse, AttachLease, ErrorReason, HoldAcquire, LockRef, WatchLocksRequest,
    WatchLocksResponse, hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    access::matrix::{
        connection::{ACQUIRE, RoleConnection},
        fixture::MatrixFixture,
        lease_stream::LeaseStream,
        raw_call::open_call,
        requests::{acquire_request, owner, target},
        roles::{CredentialKind, LockGroup, Permission, Role, policy, root_role},
    },
    scale::print_figures,
    status::error_reason,
    until::until,
};
use prost::Message as _;
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;

const WATCH: &str = "/leasehold.v1.InspectionService/WatchLocks";
const NOTIFIED_WITHIN: Duration = Duration::from_secs(10);
const TIME_LIMIT: Duration = Duration::from_millis(100);
const READ_AGAIN: &str = "tokens, keys and policy reloaded";

/// Returns a worker and a watcher with rights in `parts`.
fn test_roles(parts: &[LockGroup]) -> Vec<Role> {
    let rights = |verbs: &[Permission]| {
        let parts = parts.iter();
        parts.map(|part| (*part, verbs.to_vec())).collect()
    };
    vec![
        root_role(),
        Role::new(
            "worker",
            CredentialKind::StaticToken,
            rights(&[Permission::Acquire]),
        ),
        Role::new(
            "watcher",
            CredentialKind::StaticToken,
            rights(&[Permission::List, Permission::Observe]),
        ),
    ]
}

struct Watch(Streaming<Bytes>);

impl Watch {
    async fn begin(line: &RoleConnection) -> Self {
        let (requests, outgoing) = mpsc::channel(1);
        let all = WatchLocksRequest::default().encode_to_vec();
        requests.send(all).await.expect("there is room");
        drop(requests);
        let opened = open_call(&line.api, WATCH, line.authorization.as_deref(), outgoing).await;
        Self(opened.expect("it may watch").0)
    }

    /// Waits for the next event about a lock and returns the lock's name.
    async fn next_lock_name(&mut self) -> String {
        let event = timeout(NOTIFIED_WITHIN, self.next()).await;
        event.expect("notified in time")
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

async fn grant(fixture: &MatrixFixture, lock: &LockRef) {
    let request = acquire_request(target(lock), owner("matrix"));
    let result: Result<AcquireResponse, _> = fixture.observer().call(ACQUIRE, &request).await;
    result.expect("it is free");
}

/// Replaces the rules and waits until both brokers have loaded them.
async fn changed(fixture: &MatrixFixture, roles: &[Role]) {
    let times = |log: &str| log.matches(READ_AGAIN).count();
    let before = times(&fixture.plaintext_broker.log());
    fixture.access_files.set_policy(&policy(roles));
    until("the rules are read again", async || {
        (times(&fixture.plaintext_broker.log()) > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_watch_follows_the_current_rules() {
    let fixture = MatrixFixture::start(test_roles(&[LockGroup::Open, LockGroup::Shared])).await;
    let mut watch = Watch::begin(&fixture.connection_of(&fixture.roles[2])).await;
    let mut probes = 0;
    until("the broker beside tells what it does", async || {
        probes += 1;
        grant(
            &fixture,
            &LockGroup::Shared.lock(&format!("probe-{probes}")),
        )
        .await;
        let event = timeout(TIME_LIMIT, watch.next()).await;
        event.ok()
    })
    .await;
    grant(&fixture, &LockGroup::Open.lock("before")).await;
    while watch.next_lock_name().await != LockGroup::Open.lock("before").name {}

    changed(&fixture, &test_roles(&[LockGroup::Shared])).await;
    grant(&fixture, &LockGroup::Open.lock("hidden")).await;
    grant(&fixture, &LockGroup::Shared.lock("shown")).await;
    let (mut between, last) = (Vec::new(), LockGroup::Shared.lock("shown").name);
    loop {
        let event = watch.next_lock_name().await;
        if event == last {
            break;
        }
        between.push(event);
    }
    assert!(between.is_empty(), "{between:?}");

    changed(&fixture, &test_roles(&[LockGroup::Open, LockGroup::Shared])).await;
    grant(&fixture, &LockGroup::Open.lock("after")).await;
    assert_eq!(
        watch.next_lock_name().await,
        LockGroup::Open.lock("after").name
    );
    print_figures("authorization: a watch over two changes of the rules: leaks=0");
}

#[tokio::test]
async fn a_lease_stream_acquires_by_the_current_rules() {
    let mut fixture = MatrixFixture::start(test_roles(&[LockGroup::Open, LockGroup::Shared])).await;
    let line = fixture.connection_of(&fixture.roles[1]);
    let mut stream = LeaseStream::open(&line).await.expect("a stream");
    let kept = stream.acquire(&[LockGroup::Shared.lock("kept")]).await;
    let other = line.acquire(&[LockGroup::Open.lock("other")]).await;
    let other = other.expect("it is free");
    changed(&fixture, &test_roles(&[LockGroup::Shared])).await;

    fixture.recorder.take_commands().await;
    let acquire_of = |call_id, lock: &LockRef, under| {
        let mut request = acquire_request(target(lock), owner("matrix"));
        request.under = under;
        Ask::Acquire(HoldAcquire {
            call_id,
            request: Some(request),
            attach_number: 1,
            ..HoldAcquire::default()
        })
    };
    let hidden = LockGroup::Open.lock("hidden");
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
        let response = stream.send_and_receive(ask).await;
        let Told::Refused(refused) = response else {
            panic!("{response:?}");
        };
        assert_eq!(
            refused.reason(),
            ErrorReason::PermissionDenied,
            "{refused:?}"
        );
    }
    let result = line.acquire(std::slice::from_ref(&hidden)).await;
    let refused = result.expect_err("no longer allowed");
    assert_eq!(
        error_reason(&refused.status()),
        Some(ErrorReason::PermissionDenied)
    );
    let commands = fixture.recorder.take_commands().await;
    assert!(commands.is_empty(), "{commands:?}");

    // Commands that are still authorized work on the same stream.
    let response = stream
        .send_and_receive(acquire_of(5, &LockGroup::Shared.lock("more"), None))
        .await;
    assert!(matches!(response, Told::Granted(_)), "{response:?}");
    changed(&fixture, &test_roles(&[LockGroup::Open, LockGroup::Shared])).await;
    let response = stream.send_and_receive(acquire_of(6, &hidden, None)).await;
    assert!(matches!(response, Told::Granted(_)), "{response:?}");
}
