//! History on the operator console: operator actions, denials and lost leases, filtered by
//! permission.

use std::time::Duration;

use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockRef};
use leasehold_tests::{
    access::fixture::{AccessControlFixture, acquire_request, send_acquire},
    console::client::ConsoleUser,
    until::until,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);
const REVOKE_REASON: &str = "the host is being replaced";
/// Rules in which alice acquires, lena lists locks, and dora is an operator.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire"]
    [[rule]]
    callers = ["token:lena"]
    verbs = ["list"]
    [[rule]]
    callers = ["token:dora"]
    verbs = ["list", "observe", "force_release"]
"#;

#[tokio::test]
async fn operator_actions_and_lost_leases_are_shown_by_permission() {
    let fixture =
        AccessControlFixture::start(RULES, &["alice", "lena", "dora"].map(|name| (name, name)))
            .await;
    let (alice, dora) = (fixture.caller("alice"), fixture.caller("dora"));
    let admin = fixture.broker.admin();
    let [lena_looks, dora_looks] =
        ["lena", "dora"].map(|name| ConsoleUser::with_token(admin, name));
    let kept = send_acquire(&alice, acquire_request("kept", LONG))
        .await
        .expect("it is free");
    send_acquire(&alice, acquire_request("lost", SHORT))
        .await
        .expect("it is free");
    let force = ForceReleaseLeaseRequest {
        lease_id: kept.lease_id.clone(),
        reason: REVOKE_REASON.to_owned(),
        lock: Some(LockRef {
            namespace: String::new(),
            name: "kept".to_owned(),
        }),
        ..ForceReleaseLeaseRequest::default()
    };
    let denied = alice.admin.clone().force_release_lease(force.clone()).await;
    denied.expect_err("alice may not");
    dora.admin
        .clone()
        .force_release_lease(force)
        .await
        .expect("dora may");

    let audit = until("the loss is known", async || {
        let page = dora_looks.get("/audit").await;
        page.body.contains("default/lost").then_some(page)
    })
    .await;
    for expected in [
        "lease revoked",
        REVOKE_REASON,
        "token:dora",
        &kept.lease_id,
        "denied",
        "token:alice",
        "expired",
    ] {
        assert!(audit.body.contains(expected), "{expected}: {}", audit.body);
    }
    let lock = dora_looks.get("/lock?name=lost").await;
    let (_, ends) = lock.body.split_once("Lease history").expect("a part of it");
    assert!(
        ends.contains("expired") && ends.contains("worker"),
        "{ends}"
    );
    let overview = dora_looks.get("/").await;
    assert!(
        overview.body.contains("<a href=\"/audit#losses\">"),
        "{}",
        overview.body
    );

    // A user with only `list` sees that a lock was lost, but neither its owner nor the reason.
    let found = lena_looks.get("/audit").await;
    assert!(found.body.contains("default/lost"), "{}", found.body);
    for hidden in [
        "worker",
        "secret business",
        REVOKE_REASON,
        "token:",
        "lease revoked",
    ] {
        let body = found.body.replace("token:lena", "");
        assert!(!body.contains(hidden), "{hidden}: {body}");
    }
}
