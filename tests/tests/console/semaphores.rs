//! The limit of a semaphore and its used permits on the operator console.

use std::time::Duration;

use leasehold_proto::v1::{LockMode, LockRef, SetLockLimitRequest};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{AccessControlFixture, acquire_request, send_acquire},
    },
    console::client::ConsoleUser,
};
use tonic::{Code, Status};

/// Rules in which an application sets its limits, and dora operates.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:app"]
    verbs = ["acquire", "set_limit"]
    [[rule]]
    callers = ["token:other"]
    verbs = ["acquire"]
    [[rule]]
    callers = ["token:dora"]
    verbs = ["list", "observe", "admin"]
"#;
const POOL: &str = "pool";

async fn set_limit(caller: &Caller, limit: i32) -> Result<(), Status> {
    let request = SetLockLimitRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: POOL.to_owned(),
        }),
        limit,
    };
    caller.locks.clone().set_lock_limit(request).await.map(drop)
}

#[tokio::test]
async fn the_limit_and_the_used_permits_are_on_the_pages() {
    let names = ["app", "other", "dora"].map(|name| (name, name));
    let fixture = AccessControlFixture::start(RULES, &names).await;
    let [app, other, dora] = ["app", "other", "dora"].map(|name| fixture.caller(name));
    let console = ConsoleUser::with_token(fixture.broker.admin(), "dora");
    let denied = set_limit(&other, 3).await.expect_err("no rule allows it");
    assert_eq!(denied.code(), Code::PermissionDenied);
    set_limit(&app, 3).await.expect("its rule allows it");
    let list = console.get("/locks").await.body;
    assert!(
        list.contains("<span class=\"chip free\">free</span>"),
        "{list}"
    );
    assert!(
        list.contains("0 permits used, 3 free (limit 3, set)"),
        "{list}"
    );

    let mut request = acquire_request(POOL, Duration::from_secs(60));
    let target = request.target.as_mut().expect("a lock");
    (target.mode, target.permits) = (LockMode::Semaphore.into(), 2);
    send_acquire(&app, request).await.expect("it is free");
    set_limit(&dora, 5).await.expect("admin includes it");
    let page = console.get("/lock?name=pool").await.body;
    assert!(
        page.contains("2 permits used, 3 free (limit 5, set)"),
        "{page}"
    );
}
