//! The keys of an issuer at an address: an issuer that is away, one that comes, and keys that change.

use std::time::Duration;

use leasehold_proto::v1::{AcquireRequest, ErrorReason, LockTarget, Owner};
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    callers::{Caller, Doors, Issuer, key_set},
    clock::boottime,
    key_site::KeySite,
    redis_server::RedisServer,
    scale::figures,
    status::reason,
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
/// How often keys are fetched for a token that names another one.
const LEAST: Duration = Duration::from_secs(60);
const LATE: Duration = Duration::from_secs(10);

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
    let reason = reason(&refused.expect_err("a token that nobody knows"));
    // It comes from where many others came from.
    matches!(
        reason,
        Some(ErrorReason::Unauthenticated | ErrorReason::QuotaExceeded)
    )
}

#[tokio::test]
async fn keys_are_fetched_and_follow_those_of_the_issuer() {
    let site = KeySite::start().await;
    let (broker, _store) = broker(&site, "24h").await;
    until("the broker says that it has none", async || {
        let log = broker.log();
        log.contains("; the keys in use stay").then_some(())
    })
    .await;
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let by_old = old.token("alice", 600, json!({}));
    let by_new = new.token("alice", 600, json!({}));
    assert!(is_unknown(acquires(&broker, &by_old).await));
    acquires(&broker, "static")
        .await
        .expect("who needs no keys");

    site.answer(key_set(&[&old]));
    until("the issuer is asked again", async || {
        acquires(&broker, &by_old).await.ok()
    })
    .await;
    let fetched = boottime();
    let asked = site.asked();
    assert!(is_unknown(acquires(&broker, &by_new).await));

    site.answer(key_set(&[&new]));
    let took = loop {
        if acquires(&broker, &by_new).await.is_ok() {
            break boottime() - fetched;
        }
        assert!(boottime() - fetched < LEAST + LATE, "not asked for the key");
        sleep(Duration::from_millis(500)).await;
    };
    figures(&format!(
        "key_set: new_key_after={}ms fetches={}",
        took.as_millis(),
        site.asked()
    ));
    assert!(took > LEAST - LATE, "{took:?}: too soon");
    assert_eq!(site.asked(), asked + 1, "once a minute");
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
    let site = KeySite::start().await;
    let issuer = Issuer::new("key");
    site.answer(key_set(&[&issuer]));
    let (broker, _store) = broker(&site, "10s").await;
    let token = issuer.token("alice", 600, json!({}));
    acquires(&broker, &token).await.expect("a good token");
    let begun = boottime();
    until("the keys are fetched in time for their age", async || {
        (site.asked() >= 3).then_some(())
    })
    .await;
    assert!(boottime() - begun < MAX_AGE + LATE);
    acquires(&broker, &token).await.expect("confirmed again");

    site.fail();
    let failed = boottime();
    let until_refused = loop {
        match acquires(&broker, &token).await {
            Ok(()) => assert!(boottime() - failed < MAX_AGE + LATE, "used for ever"),
            Err(refused) => {
                assert!(is_unknown(Err(refused)));
                break boottime() - failed;
            }
        }
        sleep(Duration::from_millis(250)).await;
    };
    figures(&format!(
        "key_set: max_age={}ms refused {} ms after the address failed",
        MAX_AGE.as_millis(),
        until_refused.as_millis()
    ));
    acquires(&broker, "static")
        .await
        .expect("who needs no keys");

    site.answer(key_set(&[&issuer]));
    until("the issuer is asked again", async || {
        acquires(&broker, &token).await.ok()
    })
    .await;
}

/// A broker that fetches its keys from the site, on a store.
async fn broker(site: &KeySite, max_age: &str) -> (BrokerProcess, (RedisServer, Doors)) {
    let redis = RedisServer::start().await;
    let doors = Doors::new(EVERYTHING, &[("ci", "static")]);
    let mut options = BrokerOptions::on(redis.url());
    let settings = doors.settings().into_iter();
    let others = settings.filter(|(key, _)| !key.contains("JWT_KEYS_FILE"));
    options.env.extend(others);
    for (key, value) in [
        ("URL", site.url()),
        ("CA_FILE", site.ca().display().to_string()),
        ("MAX_AGE", max_age.to_owned()),
    ] {
        let key = format!("LEASEHOLD__AUTHENTICATION__JWT_KEYS_{key}");
        options.env.push((key, value));
    }
    options.init_store().await;
    (BrokerProcess::start(&options).await, (redis, doors))
}
