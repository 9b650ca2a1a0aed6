//! What the operators' page tells of what has happened: deeds, denials and losses, to whom they concern.

use std::time::Duration;

use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockRef};
use leasehold_tests::{
    guarded::{Guarded, acquire, taken},
    page::Looker,
    until::until,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);
const WHY: &str = "the host is being replaced";
/// alice works, lena may find locks, dora operates.
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
async fn what_was_done_and_what_was_lost_is_told_to_whom_it_concerns() {
    let site = Guarded::start(RULES, &["alice", "lena", "dora"].map(|name| (name, name))).await;
    let (alice, dora) = (site.caller("alice"), site.caller("dora"));
    let admin = site.broker.admin();
    let [lena_looks, dora_looks] = ["lena", "dora"].map(|name| Looker::with_token(admin, name));
    let kept = taken(&alice, acquire("kept", LONG))
        .await
        .expect("it is free");
    taken(&alice, acquire("lost", SHORT))
        .await
        .expect("it is free");
    let force = ForceReleaseLeaseRequest {
        lease_id: kept.lease_id.clone(),
        reason: WHY.to_owned(),
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
    for told in [
        "taken away",
        WHY,
        "token:dora",
        &kept.lease_id,
        "denied",
        "token:alice",
        "expired",
    ] {
        assert!(audit.body.contains(told), "{told}: {}", audit.body);
    }
    let lock = dora_looks.get("/lock?name=lost").await;
    let (_, ends) = lock.body.split_once("Last ends").expect("a part of it");
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

    // Who may find locks only is told that one was lost, and neither whose nor why.
    let found = lena_looks.get("/audit").await;
    assert!(found.body.contains("default/lost"), "{}", found.body);
    for hidden in ["worker", "secret business", WHY, "token:", "taken away"] {
        let body = found.body.replace("token:lena", "");
        assert!(!body.contains(hidden), "{hidden}: {body}");
    }
}
