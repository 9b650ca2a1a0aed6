//! What is on a stream is its caller's: other streams, other callers' credentials and the ids of other
//! callers' calls lead to nothing there.

use leasehold_proto::v1::{
    AcquireResponse, AttachLease, Close, DetachLease, ErrorReason, Heartbeat, HoldAcquire,
    HoldRelease, Lease, RefreshCredential, RenewRequest, RenewResponse,
    hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    matrix::{
        ask::{acquire, owner, target},
        line::ACQUIRE,
        roles::{Part, Role, Shows, Verb, root},
        site::Site,
        stream::LeaseStream,
    },
    status::reason,
};
use serde_json::json;

const RENEW: &str = "/leasehold.v1.LockService/Renew";
/// An id is the caller's secret: who shows another's did not make it up.
const REUSED: ErrorReason = ErrorReason::RequestIdReused;

fn people() -> Vec<Role> {
    let takes = || vec![(Part::Open, vec![Verb::Acquire])];
    vec![
        root(),
        Role::new("holder", Shows::Token, takes()),
        Role::new("other", Shows::Token, takes()),
        Role::new("signed", Shows::Signed, takes()),
        Role::new("certified", Shows::Certificate, takes()),
    ]
}

#[tokio::test]
async fn a_lease_on_a_stream_is_nothing_to_other_streams() {
    let site = Site::start(people()).await;
    let lock = Part::Open.lock("on-a-stream");
    let holder = site.line(&site.roles[1]);
    let mut theirs = LeaseStream::open(&holder).await.expect("a stream");
    let lease = theirs.take(std::slice::from_ref(&lock)).await;
    let before = site.state(&lock).await;
    for role in &site.roles[2..] {
        let line = site.line(role);
        let mut stream = LeaseStream::open(&line).await.expect("a stream");
        let attach = AttachLease {
            call_id: 2,
            lease: Some(lease.clone()),
            attach_number: 9,
        };
        is_refused(
            stream.ask(Ask::Attach(attach)).await,
            ErrorReason::NotHolder,
        );
        for lock in [None, Some(lock.clone())] {
            let release = HoldRelease {
                call_id: 3,
                lease_id: lease.lease_id.clone(),
                lock,
                ..HoldRelease::default()
            };
            let told = stream.ask(Ask::Release(release)).await;
            is_refused(told, ErrorReason::LeaseNotFound);
        }
        let detach = DetachLease {
            call_id: 4,
            lease_id: lease.lease_id.clone(),
        };
        is_refused(
            stream.ask(Ask::Detach(detach)).await,
            ErrorReason::LeaseNotFound,
        );
        let renew = RenewRequest {
            lease: Some(lease.clone()),
            ttl: None,
        };
        let renewed: Result<RenewResponse, _> = line.call(RENEW, &renew).await;
        let refused = renewed.expect_err("it is the holder's");
        assert_eq!(reason(&refused.status()), Some(ErrorReason::NotHolder));
        stream.send(Ask::Close(Close {})).await;
    }
    assert_eq!(site.state(&lock).await, before);
    lives(&mut theirs, &lease, 1).await;
}

#[tokio::test]
async fn the_id_of_anothers_call_leads_to_nothing() {
    let site = Site::start(people()).await;
    let lock = Part::Open.lock("repeated");
    let request = acquire(target(&lock), owner("matrix"));
    let holder = site.line(&site.roles[1]);
    let first: Result<AcquireResponse, _> = holder.call(ACQUIRE, &request).await;
    let lease = first.expect("it is free").lease.expect("a lease");
    let again: Result<AcquireResponse, _> = holder.call(ACQUIRE, &request).await;
    let repeated = again.expect("the same call").lease.expect("a lease");
    assert_eq!(repeated.lease_id, lease.lease_id);
    for role in &site.roles[2..] {
        let line = site.line(role);
        let stolen: Result<AcquireResponse, _> = line.call(ACQUIRE, &request).await;
        let refused = stolen.expect_err("it is held");
        assert_eq!(reason(&refused.status()), Some(REUSED), "{refused:?}");
        let secrets = [lease.lease_id.clone(), lease.lease_token.clone()];
        assert_eq!(refused.first_of(&secrets), None, "{refused:?}");
        let mut stream = LeaseStream::open(&line).await.expect("a stream");
        let acquire = HoldAcquire {
            call_id: 2,
            request: Some(request.clone()),
            attach_number: 9,
            ..HoldAcquire::default()
        };
        is_refused(stream.ask(Ask::Acquire(acquire)).await, REUSED);
    }
}

#[tokio::test]
async fn a_stream_takes_no_credential_of_another_caller() {
    let site = Site::start(people()).await;
    let lock = Part::Open.lock("refreshed");
    let signed = |subject: &str| {
        let token = site.doors.issuer.token(subject, 600, json!({}));
        format!("Bearer {token}")
    };
    let line = site.line(&site.roles[3]);
    let mut stream = LeaseStream::open(&line).await.expect("a stream");
    let lease = stream.take(std::slice::from_ref(&lock)).await;
    let wrong = [
        site.line(&site.roles[1]).authorization.expect("a token"),
        signed("holder"),
        signed("root"),
        "Bearer nonsense".to_owned(),
        signed("signed").replace("Bearer ", ""),
        String::new(),
    ];
    for (at, authorization) in (1..).zip(wrong) {
        let refresh = RefreshCredential {
            call_id: 2,
            authorization,
        };
        let told = stream.ask(Ask::RefreshCredential(refresh)).await;
        is_refused(told, ErrorReason::Unauthenticated);
        lives(&mut stream, &lease, at).await;
    }
    let refresh = RefreshCredential {
        call_id: 2,
        authorization: signed("signed"),
    };
    let told = stream.ask(Ask::RefreshCredential(refresh)).await;
    assert!(matches!(told, Told::Done(_)), "{told:?}");
    lives(&mut stream, &lease, 100).await;
}

fn is_refused(told: Told, why: ErrorReason) {
    let Told::Refused(refused) = told else {
        panic!("{told:?}");
    };
    assert_eq!(refused.reason(), why, "{refused:?}");
}

/// A heartbeat extends the lease still.
async fn lives(stream: &mut LeaseStream, lease: &Lease, sequence: i64) {
    stream.send(Ask::Heartbeat(Heartbeat { sequence })).await;
    loop {
        let told = stream.next().await;
        let Told::Ack(ack) = told else {
            panic!("{told:?}");
        };
        if ack.sequence == sequence {
            assert_eq!(ack.leases[0].lease_id, lease.lease_id);
            return;
        }
    }
}
