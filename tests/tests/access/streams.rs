//! Isolation of lease streams: leases, call ids and credentials of one stream have no effect on
//! other streams and callers.

use leasehold_proto::v1::{
    AcquireResponse, AttachLease, Close, DetachLease, ErrorReason, Heartbeat, HoldAcquire,
    HoldRelease, Lease, RefreshCredential, RenewRequest, RenewResponse,
    hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    access::matrix::{
        connection::ACQUIRE,
        fixture::MatrixFixture,
        lease_stream::LeaseStream,
        requests::{acquire_request, owner, target},
        roles::{CredentialKind, LockGroup, Permission, Role, root_role},
    },
    status::error_reason,
};
use serde_json::json;

const RENEW: &str = "/leasehold.v1.LockService/Renew";
/// Reason for a request id of another caller. The id is a secret, so the caller cannot have guessed
/// it.
const REUSED: ErrorReason = ErrorReason::RequestIdReused;

fn test_roles() -> Vec<Role> {
    let takes = || vec![(LockGroup::Open, vec![Permission::Acquire])];
    vec![
        root_role(),
        Role::new("holder", CredentialKind::StaticToken, takes()),
        Role::new("other", CredentialKind::StaticToken, takes()),
        Role::new("signed", CredentialKind::SignedToken, takes()),
        Role::new("certified", CredentialKind::ClientCertificate, takes()),
    ]
}

#[tokio::test]
async fn a_lease_on_a_stream_cannot_be_changed_by_other_streams() {
    let fixture = MatrixFixture::start(test_roles()).await;
    let lock = LockGroup::Open.lock("on-a-stream");
    let holder = fixture.connection_of(&fixture.roles[1]);
    let mut theirs = LeaseStream::open(&holder).await.expect("a stream");
    let lease = theirs.acquire(std::slice::from_ref(&lock)).await;
    let before = fixture.lock_state(&lock).await;
    for role in &fixture.roles[2..] {
        let line = fixture.connection_of(role);
        let mut stream = LeaseStream::open(&line).await.expect("a stream");
        let attach = AttachLease {
            call_id: 2,
            lease: Some(lease.clone()),
            attach_number: 9,
        };
        is_refused(
            stream.send_and_receive(Ask::Attach(attach)).await,
            ErrorReason::NotHolder,
        );
        for lock in [None, Some(lock.clone())] {
            let release = HoldRelease {
                call_id: 3,
                lease_id: lease.lease_id.clone(),
                lock,
                ..HoldRelease::default()
            };
            let response = stream.send_and_receive(Ask::Release(release)).await;
            is_refused(response, ErrorReason::LeaseNotFound);
        }
        let detach = DetachLease {
            call_id: 4,
            lease_id: lease.lease_id.clone(),
        };
        is_refused(
            stream.send_and_receive(Ask::Detach(detach)).await,
            ErrorReason::LeaseNotFound,
        );
        let renew = RenewRequest {
            lease: Some(lease.clone()),
            ttl: None,
        };
        let renewed: Result<RenewResponse, _> = line.call(RENEW, &renew).await;
        let refused = renewed.expect_err("it is the holder's");
        assert_eq!(
            error_reason(&refused.status()),
            Some(ErrorReason::NotHolder)
        );
        stream.send(Ask::Close(Close {})).await;
    }
    assert_eq!(fixture.lock_state(&lock).await, before);
    assert_renewed(&mut theirs, &lease, 1).await;
}

#[tokio::test]
async fn the_request_id_of_another_caller_has_no_effect() {
    let fixture = MatrixFixture::start(test_roles()).await;
    let lock = LockGroup::Open.lock("repeated");
    let request = acquire_request(target(&lock), owner("matrix"));
    let holder = fixture.connection_of(&fixture.roles[1]);
    let first: Result<AcquireResponse, _> = holder.call(ACQUIRE, &request).await;
    let lease = first.expect("it is free").lease.expect("a lease");
    let again: Result<AcquireResponse, _> = holder.call(ACQUIRE, &request).await;
    let repeated = again.expect("the same call").lease.expect("a lease");
    assert_eq!(repeated.lease_id, lease.lease_id);
    for role in &fixture.roles[2..] {
        let line = fixture.connection_of(role);
        let stolen: Result<AcquireResponse, _> = line.call(ACQUIRE, &request).await;
        let refused = stolen.expect_err("it is held");
        assert_eq!(error_reason(&refused.status()), Some(REUSED), "{refused:?}");
        let secrets = [lease.lease_id.clone(), lease.lease_token.clone()];
        assert_eq!(refused.first_occurring(&secrets), None, "{refused:?}");
        let mut stream = LeaseStream::open(&line).await.expect("a stream");
        let acquire = HoldAcquire {
            call_id: 2,
            request: Some(request.clone()),
            attach_number: 9,
            ..HoldAcquire::default()
        };
        is_refused(stream.send_and_receive(Ask::Acquire(acquire)).await, REUSED);
    }
}

#[tokio::test]
async fn a_stream_rejects_the_credential_of_another_caller() {
    let fixture = MatrixFixture::start(test_roles()).await;
    let lock = LockGroup::Open.lock("refreshed");
    let signed = |subject: &str| {
        let token = fixture.access_files.issuer.token(subject, 600, json!({}));
        format!("Bearer {token}")
    };
    let line = fixture.connection_of(&fixture.roles[3]);
    let mut stream = LeaseStream::open(&line).await.expect("a stream");
    let lease = stream.acquire(std::slice::from_ref(&lock)).await;
    let wrong = [
        fixture
            .connection_of(&fixture.roles[1])
            .authorization
            .expect("a token"),
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
        let response = stream
            .send_and_receive(Ask::RefreshCredential(refresh))
            .await;
        is_refused(response, ErrorReason::Unauthenticated);
        assert_renewed(&mut stream, &lease, at).await;
    }
    let refresh = RefreshCredential {
        call_id: 2,
        authorization: signed("signed"),
    };
    let response = stream
        .send_and_receive(Ask::RefreshCredential(refresh))
        .await;
    assert!(matches!(response, Told::Done(_)), "{response:?}");
    assert_renewed(&mut stream, &lease, 100).await;
}

fn is_refused(response: Told, reason: ErrorReason) {
    let Told::Refused(refused) = response else {
        panic!("{response:?}");
    };
    assert_eq!(refused.reason(), reason, "{refused:?}");
}

/// Asserts that a heartbeat still extends the lease.
async fn assert_renewed(stream: &mut LeaseStream, lease: &Lease, sequence: i64) {
    stream.send(Ask::Heartbeat(Heartbeat { sequence })).await;
    loop {
        let response = stream.next().await;
        let Told::Ack(ack) = response else {
            panic!("{response:?}");
        };
        if ack.sequence == sequence {
            assert_eq!(ack.leases[0].lease_id, lease.lease_id);
            return;
        }
    }
}
