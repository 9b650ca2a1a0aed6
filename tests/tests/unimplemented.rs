//! What is not in this release says so, and names itself.

use leasehold_proto::v1::{
    AcquireRequest, ForceReleaseLeaseRequest, HoldRequest, ListLocksRequest, LockTarget, Owner,
    WatchLocksRequest, admin_service_client::AdminServiceClient,
    inspection_service_client::InspectionServiceClient, lock_service_client::LockServiceClient,
};
use leasehold_tests::in_process::InProcess;
use tonic::{Code, Status, transport::Channel};

type Locks = LockServiceClient<Channel>;

fn duration(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

fn valid(name: &str) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: name.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        ..AcquireRequest::default()
    }
}

#[tokio::test]
async fn fields_that_later_releases_bring_are_named() {
    let broker = InProcess::start().await;
    let locks = &mut Locks::new(broker.channel());
    let request = AcquireRequest {
        disconnect_grace: duration(1, 0),
        ..valid("x")
    };
    not_yet("disconnect_grace", locks.acquire(request).await);
    broker.stop().await;
}

#[tokio::test]
async fn calls_that_later_releases_bring_are_named() {
    let broker = InProcess::start().await;
    let locks = &mut Locks::new(broker.channel());
    not_yet(
        "Hold",
        locks.hold(tokio_stream::empty::<HoldRequest>()).await,
    );
    let mut inspection = InspectionServiceClient::new(broker.channel());
    not_yet(
        "ListLocks",
        inspection.list_locks(ListLocksRequest::default()).await,
    );
    not_yet(
        "WatchLocks",
        inspection.watch_locks(WatchLocksRequest::default()).await,
    );
    for address in [broker.api, broker.admin] {
        let mut admin = AdminServiceClient::new(leasehold_tests::client::channel(address));
        let force = ForceReleaseLeaseRequest::default();
        not_yet("ForceReleaseLease", admin.force_release_lease(force).await);
    }
    broker.stop().await;
}

fn not_yet<T>(name: &str, answer: Result<T, Status>) {
    let status = answer.err().unwrap_or_else(|| panic!("{name} is refused"));
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert!(
        status.message().contains(name),
        "{name}: {}",
        status.message()
    );
    assert!(
        status.message().contains("not in this release"),
        "{}",
        status.message()
    );
}
