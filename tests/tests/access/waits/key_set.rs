//! Key sets (JWKS) fetched over HTTPS: an unavailable issuer, a new issuer, and changed keys.

use std::time::Duration;

use leasehold_proto::v1::{AcquireRequest, ErrorReason, LockTarget, Owner};
use leasehold_tests::{
    access::{
        files_and_callers::{AccessFiles, Caller, Issuer, key_set},
        jwks_server::JwksServer,
    },
    broker::process::{BrokerOptions, BrokerProcess},
    clock::boottime,
    redis::server::RedisServer,
    scale::print_figures,
    status::error_reason,
    until::until,
};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;
use uuid::Uuid;

const EVERYTHING: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire"]
"#;
/// Minimum interval between fetches for tokens with unknown key ids.
const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(60);
const REFRESH_TOLERANCE: Duration = Duration::from_secs(10);

async fn acquires(broker: &BrokerProcess, token: &str) -> Result<(), Status> {
    let request = AcquireRequest {
        target: Some(LockTarget {
            name: Uuid::new_v4().to_string(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker".to_owned(),
            ..Owner::default()
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    };
    let caller = Caller::new(broker.addr(), broker.admin(), Some(token));
    caller.locks.clone().acquire(request).await.map(drop)
}

fn is_unknown(refused: Result<(), Status>) -> bool {
    let reason = error_reason(&refused.expect_err("a token that no caller knows"));
    // Many unauthenticated requests come from this address, so it may be rate limited.
    matches!(
        reason,
        Some(ErrorReason::Unauthenticated | ErrorReason::QuotaExceeded)
    )
}

#[tokio::test]
async fn keys_are_fetched_and_follow_those_of_the_issuer() {
    let fixture = JwksServer::start().await;
    let (broker, _store) = broker(&fixture, "24h").await;
    until("the broker says that it has none", async || {
        let log = broker.log();
        log.contains("; keeping the current keys").then_some(())
    })
    .await;
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let by_old = old.token("alice", 600, json!({}));
    let by_new = new.token("alice", 600, json!({}));
    assert!(is_unknown(acquires(&broker, &by_old).await));
    acquires(&broker, "static")
        .await
        .expect("who needs no keys");

    fixture.serve_body(key_set(&[&old]));
    until("the issuer is asked again", async || {
        acquires(&broker, &by_old).await.ok()
    })
    .await;
    let fetched = boottime();
    let request_count = fixture.request_count();
    assert!(is_unknown(acquires(&broker, &by_new).await));

    fixture.serve_body(key_set(&[&new]));
    let took = loop {
        if acquires(&broker, &by_new).await.is_ok() {
            break boottime() - fetched;
        }
        assert!(
            boottime() - fetched < FETCH_INTERVAL_MIN + REFRESH_TOLERANCE,
            "not asked for the key"
        );
        sleep(Duration::from_millis(500)).await;
    };
    print_figures(&format!(
        "key_set: new_key_after={}ms fetches={}",
        took.as_millis(),
        fixture.request_count()
    ));
    assert!(
        took > FETCH_INTERVAL_MIN - REFRESH_TOLERANCE,
        "{took:?}: too soon"
    );
    assert_eq!(fixture.request_count(), request_count + 1, "once a minute");
    assert!(
        is_unknown(acquires(&broker, &by_old).await),
        "a key that is gone"
    );
    acquires(&broker, "static")
        .await
        .expect("who needs no keys");
}

#[tokio::test]
async fn the_last_keys_are_used_no_longer_than_their_max_age() {
    const MAX_AGE: Duration = Duration::from_secs(10);
    let fixture = JwksServer::start().await;
    let issuer = Issuer::new("key");
    fixture.serve_body(key_set(&[&issuer]));
    let (broker, _store) = broker(&fixture, "10s").await;
    let token = issuer.token("alice", 600, json!({}));
    acquires(&broker, &token).await.expect("a good token");
    let started_at = boottime();
    until("the keys are fetched in time for their age", async || {
        (fixture.request_count() >= 3).then_some(())
    })
    .await;
    assert!(boottime() - started_at < MAX_AGE + REFRESH_TOLERANCE);
    acquires(&broker, &token).await.expect("confirmed again");

    fixture.serve_unavailable();
    let failed = boottime();
    let until_refused = loop {
        match acquires(&broker, &token).await {
            Ok(()) => assert!(
                boottime() - failed < MAX_AGE + REFRESH_TOLERANCE,
                "used for ever"
            ),
            Err(refused) => {
                assert!(is_unknown(Err(refused)));
                break boottime() - failed;
            }
        }
        sleep(Duration::from_millis(250)).await;
    };
    print_figures(&format!(
        "key_set: max_age={}ms refused {} ms after the address failed",
        MAX_AGE.as_millis(),
        until_refused.as_millis()
    ));
    acquires(&broker, "static")
        .await
        .expect("who needs no keys");

    fixture.serve_body(key_set(&[&issuer]));
    until("the issuer is asked again", async || {
        acquires(&broker, &token).await.ok()
    })
    .await;
}

/// Starts a broker that fetches its keys from `site`.
async fn broker(
    fixture: &JwksServer,
    max_age: &str,
) -> (BrokerProcess, (RedisServer, AccessFiles)) {
    let redis = RedisServer::start().await;
    let access_files = AccessFiles::new(EVERYTHING, &[("ci", "static")]);
    let mut options = BrokerOptions::for_store(redis.url());
    let settings = access_files.settings().into_iter();
    let others = settings.filter(|(key, _)| !key.contains("JWT_KEYS_FILE"));
    options.env.extend(others);
    for (key, value) in [
        ("URL", fixture.url()),
        ("CA_FILE", fixture.ca_file().display().to_string()),
        ("MAX_AGE", max_age.to_owned()),
    ] {
        let key = format!("LEASEHOLD__AUTHENTICATION__JWT_KEYS_{key}");
        options.env.push((key, value));
    }
    options.init_store().await;
    (BrokerProcess::start(&options).await, (redis, access_files))
}
