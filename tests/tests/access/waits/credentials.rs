//! Authentication with static and signed tokens, and streams that end with their token.

use std::time::Duration;

use leasehold_proto::v1::{
    ErrorReason, Heartbeat, HoldAcquire, HoldRequest, HoldResponse, Lease, LeaseEndReason,
    LeaseEnded, ListLocksRequest, OpenLockRequest, RefreshCredential, SetLockLimitRequest,
    WatchLocksRequest, hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    access::{
        files_and_callers::{AccessFiles, Caller, TOKEN_LEEWAY},
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, REPLY_TIMEOUT, acquire_request, next_message,
            open_stream, send_acquire, send_message, send_release, send_renew,
        },
    },
    clock::boottime,
    load::store_expiry::store_expiry,
    scale::print_figures,
    status::error_reason,
    until::until,
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(2);
/// Upper bound of the time until a change of a file takes effect. Files are checked every second.
const RELOADED_WITHIN: Duration = Duration::from_secs(2);
const NARROW: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire", "list"]
    names = ["mine"]
"#;

/// Returns true if the call is unauthenticated. Waits and retries while it is rate limited.
async fn is_unknown<T>(ask: impl AsyncFn() -> Result<T, Status>) -> bool {
    loop {
        let Err(status) = ask().await else {
            return false;
        };
        if error_reason(&status) != Some(ErrorReason::QuotaExceeded) {
            return status.code() == Code::Unauthenticated
                && error_reason(&status) == Some(ErrorReason::Unauthenticated);
        }
        let details = status.get_error_details();
        let retry = details.retry_info().and_then(|retry| retry.retry_delay);
        sleep(retry.expect("when to come again")).await;
    }
}

async fn acquires(caller: &Caller) -> Result<Lease, Status> {
    send_acquire(caller, acquire_request("a", TTL)).await
}

#[tokio::test]
async fn calls_without_a_valid_credential_have_no_effect() {
    let tokens = [("ci", "the token"), ("ci", "the next token")];
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &tokens).await;
    for (_, token) in tokens {
        let caller = fixture.caller(token);
        let lease = acquires(&caller).await.expect("a good token");
        send_release(&caller, &lease).await.expect("the holder");
    }
    for caller in [
        fixture.anonymous_caller(),
        fixture.caller(""),
        fixture.caller("the toke"),
        fixture.caller("the token "),
    ] {
        assert!(is_unknown(async || acquires(&caller).await).await);
        let lease = Lease::default();
        assert!(is_unknown(async || send_renew(&caller, &lease).await).await);
        let list = ListLocksRequest::default();
        assert!(
            is_unknown(async || caller.inspection.clone().list_locks(list.clone()).await).await
        );
        let open = OpenLockRequest::default();
        assert!(is_unknown(async || caller.admin.clone().open_lock(open.clone()).await).await);
        let limit = SetLockLimitRequest::default();
        assert!(
            is_unknown(async || caller.locks.clone().set_lock_limit(limit.clone()).await).await
        );
    }

    fixture.access_files.set_tokens(&tokens[1..]);
    let old = fixture.caller("the token");
    until("the old token is worth nothing", async || {
        is_unknown(async || acquires(&old).await)
            .await
            .then_some(())
    })
    .await;
    let next = fixture.caller("the next token");
    let lease = send_acquire(&next, acquire_request("c", TTL)).await;
    lease.expect("a good token");
}

#[tokio::test]
async fn a_signed_token_must_be_valid_in_every_claim() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("other", "other")]).await;
    let issuer = &fixture.access_files.issuer;
    let late = -i64::try_from(TOKEN_LEEWAY.as_secs()).expect("short") - 5;
    let far = 4_000_000_000_i64;
    let good = issuer.token("alice", 60, json!({}));
    let within = issuer.token("alice", -5, json!({}));
    for (name, token) in [("good", &good), ("within", &within)] {
        let lease = send_acquire(&fixture.caller(token), acquire_request(name, TTL)).await;
        lease.expect("clocks may differ a little");
    }
    let claims = [
        ("not yet good", json!({ "nbf": far })),
        ("of another issuer", json!({ "iss": "https://other" })),
        ("for another caller", json!({ "aud": "other" })),
        ("without an end", json!({ "exp": null })),
        ("with an end that is a text", json!({ "exp": "never" })),
        ("without an issuer", json!({ "iss": null })),
        ("without an audience", json!({ "aud": null })),
        ("without a subject", json!({ "sub": null })),
    ];
    let claims = claims.map(|(what, claims)| (what, issuer.token("alice", 60, claims)));
    let others = AccessFiles::new(ALLOW_ALL_POLICY, &[]);
    let (head, rest) = good.split_once('.').expect("three parts");
    let (body, signature) = rest.split_once('.').expect("three parts");
    let part = |value: Value| data_encoding::BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let none = part(json!({ "alg": "none", "typ": "JWT" }));
    let hmac = part(json!({ "alg": "HS256", "kid": "key-1" }));
    let root = part(json!({ "sub": "root", "exp": far }));
    let forged = [
        ("expired", issuer.token("alice", late, json!({}))),
        (
            "signed by another key",
            others.issuer.token("alice", 60, json!({})),
        ),
        ("unsigned", format!("{none}.{body}.")),
        ("of another algorithm", format!("{hmac}.{body}.{signature}")),
        ("edited", format!("{head}.{root}.{signature}")),
        ("cut", good[..good.len() - 1].to_owned()),
    ];
    for (what, token) in claims.into_iter().chain(forged) {
        let caller = fixture.caller(&token);
        assert!(is_unknown(async || acquires(&caller).await).await, "{what}");
    }
}

/// A lease stream with heartbeats.
struct HeartbeatStream {
    requests: mpsc::Sender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    sequence: i64,
    lease_id: String,
    /// Time at which the last heartbeat was acknowledged.
    acknowledged: Duration,
}

impl HeartbeatStream {
    /// Opens a stream with a lease on the lock.
    async fn start(caller: &Caller, name: &str) -> Self {
        let (requests, mut responses) = open_stream(caller).await;
        let call = HoldAcquire {
            call_id: 1,
            request: Some(acquire_request(name, TTL)),
            attach_number: 1,
            ..HoldAcquire::default()
        };
        send_message(&requests, Ask::Acquire(call)).await;
        let Told::Granted(granted) = next_message(&mut responses).await else {
            panic!("it is free");
        };
        Self {
            requests,
            responses,
            sequence: 0,
            lease_id: granted.lease.expect("a grant has a lease").lease_id,
            acknowledged: boottime(),
        }
    }

    /// Sends a new token and returns true if the broker accepts it.
    async fn refresh_credential(&mut self, call_id: i64, token: &str) -> bool {
        let authorization = format!("Bearer {token}");
        let refresh = RefreshCredential {
            call_id,
            authorization,
        };
        send_message(&self.requests, Ask::RefreshCredential(refresh)).await;
        let answer = next_message(&mut self.responses).await;
        matches!(answer, Told::Done(done) if done.call_id == call_id)
    }

    /// Sends heartbeats until `limit`, or until its lease ends.
    async fn heartbeat_until(&mut self, limit: Duration) -> Option<LeaseEnded> {
        let started_at = boottime();
        while boottime() - started_at < limit {
            self.sequence += 1;
            let sequence = self.sequence;
            send_message(&self.requests, Ask::Heartbeat(Heartbeat { sequence })).await;
            let responses = next_message(&mut self.responses).await;
            if let Told::Ended(ended) = responses {
                return Some(ended);
            }
            assert!(matches!(responses, Told::Ack(_)), "{responses:?}");
            self.acknowledged = boottime();
            sleep(TTL / 8).await;
        }
        None
    }

    /// Asserts that the lease ends because of its credential, and returns the time of the end.
    async fn assert_ends(&mut self, limit: Duration) -> Duration {
        let ended = self.heartbeat_until(limit).await.expect("it ends in time");
        assert_eq!(ended.lease_id, self.lease_id);
        assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
        boottime()
    }

    async fn assert_ended(&mut self) {
        let after = timeout(REPLY_TIMEOUT, self.responses.message()).await;
        assert!(matches!(after, Ok(Ok(None))), "{after:?}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_credential_unless_there_is_a_new_one() {
    const GOOD_FOR: Duration = Duration::from_secs(6);
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("other", "other")]).await;
    let good_for_s = i64::try_from(GOOD_FOR.as_secs()).expect("short");
    let leeway_s = i64::try_from(TOKEN_LEEWAY.as_secs()).expect("short");
    let issuer = &fixture.access_files.issuer;
    let token = || issuer.token("alice", good_for_s - leeway_s, json!({}));
    let mut beating = HeartbeatStream::start(&fixture.caller(&token()), "a").await;
    let bob = issuer.token("bob", 60, json!({}));
    for (call_id, somebody) in [(2, "other"), (3, "nobody"), (4, &bob)] {
        assert!(
            !beating.refresh_credential(call_id, somebody).await,
            "{somebody}"
        );
    }
    assert_eq!(beating.heartbeat_until(GOOD_FOR / 2).await, None);
    assert!(beating.refresh_credential(5, &token()).await);
    let refreshed = boottime();
    let ended = beating.assert_ends(2 * GOOD_FOR).await;
    beating.assert_ended().await;
    let lived = ended - refreshed;
    let second = Duration::from_secs(1);
    assert!(
        lived >= GOOD_FOR - second && lived <= GOOD_FOR + second,
        "{lived:?}"
    );

    // The lease expires in the store, and not earlier.
    let other = fixture.caller("other");
    until("it is free", async || acquires(&other).await.ok()).await;
    let free_after = boottime() - beating.acknowledged;
    print_figures(&format!(
        "credentials: told_after={}ms free_after={}ms E={}ms",
        lived.as_millis(),
        free_after.as_millis(),
        store_expiry(TTL).as_millis()
    ));
    assert!(
        free_after > TTL && free_after <= store_expiry(TTL) + TTL / 2,
        "{free_after:?}"
    );
}

#[tokio::test]
async fn a_stream_ends_when_its_token_or_key_is_withdrawn() {
    let fixture =
        AccessControlFixture::start(ALLOW_ALL_POLICY, &[("ci", "old"), ("ci", "new")]).await;
    let signed = fixture.access_files.issuer.token("alice", 600, json!({}));
    let mut of_old = HeartbeatStream::start(&fixture.caller("old"), "a").await;
    let mut moving = HeartbeatStream::start(&fixture.caller("old"), "b").await;
    let mut of_key = HeartbeatStream::start(&fixture.caller(&signed), "c").await;
    assert!(moving.refresh_credential(2, "new").await);
    let mut looks = fixture.caller("old").inspection;
    let watch = looks.watch_locks(WatchLocksRequest::default()).await;
    let mut watch = watch.expect("it may").into_inner();

    fixture.access_files.set_tokens(&[("ci", "new")]);
    let (_, of_new, signed) = tokio::join!(
        of_old.assert_ends(RELOADED_WITHIN + REPLY_TIMEOUT),
        moving.heartbeat_until(RELOADED_WITHIN),
        of_key.heartbeat_until(2 * RELOADED_WITHIN)
    );
    assert_eq!((of_new, signed), (None, None), "theirs are good");
    of_old.assert_ended().await;
    let ended = async {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ends without a reason"),
                Err(status) => return status,
            }
        }
    };
    // The next event detects the end of the credential.
    wait_for_release(&fixture).await;
    let ended = timeout(REPLY_TIMEOUT, ended).await.expect("it ends");
    assert_eq!(error_reason(&ended), Some(ErrorReason::Unauthenticated));
    fixture
        .access_files
        .set_key_set_text("<html>not found</html>");
    let unusable = async || {
        fixture
            .broker
            .log()
            .contains("keeping the current access rules")
            .then_some(())
    };
    let (_, kept) = tokio::join!(
        until("a text that is no key set counts for nothing", unusable),
        of_key.heartbeat_until(RELOADED_WITHIN)
    );
    assert_eq!(kept, None);
    let others = AccessFiles::new(ALLOW_ALL_POLICY, &[]);
    fixture.access_files.set_keys(&[&others.issuer]);
    of_key.assert_ends(RELOADED_WITHIN + REPLY_TIMEOUT).await;
    of_key.assert_ended().await;
}

#[tokio::test]
async fn a_key_set_without_usable_keys_withdraws_all_signed_tokens() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("ci", "static")]).await;
    let signed = fixture.access_files.issuer.token("alice", 600, json!({}));
    let caller = fixture.caller(&signed);
    let mut for_others = fixture.access_files.issuer.public_jwk();
    for_others["use"] = json!("enc");
    for (lock, keys) in [("b", json!([])), ("c", json!([for_others]))] {
        fixture
            .access_files
            .set_keys(&[&fixture.access_files.issuer]);
        let lease = until("the token is good", async || acquires(&caller).await.ok()).await;
        send_release(&caller, &lease).await.expect("the holder");
        let mut stream = HeartbeatStream::start(&caller, lock).await;
        fixture
            .access_files
            .set_key_set_text(&json!({ "keys": keys }).to_string());
        stream.assert_ends(RELOADED_WITHIN + REPLY_TIMEOUT).await;
        stream.assert_ended().await;
        assert!(is_unknown(async || acquires(&caller).await).await);
    }
    let lease = acquires(&fixture.caller("static")).await;
    lease.expect("who needs no keys");
}

#[tokio::test]
async fn tokens_with_critical_extensions_or_of_other_types_are_refused() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("other", "other")]).await;
    let header = |typ: Option<&str>, crit: Option<&str>| {
        let mut header = json!({});
        if let Some(typ) = typ {
            header["typ"] = json!(typ);
        }
        if let Some(name) = crit {
            header["crit"] = json!([name]);
        }
        header
    };
    for (typ, crit, is_good) in [
        (None, None, true),
        (Some("JWT"), None, true),
        (Some("at+jwt"), None, true),
        (Some("logout+jwt"), None, false),
        (Some("JWT"), Some("exp"), false),
        (None, Some("urn:example:unknown"), false),
    ] {
        let token = fixture
            .access_files
            .issuer
            .token_with_header("alice", &header(typ, crit));
        let caller = fixture.caller(&token);
        let what = format!("{typ:?} {crit:?}");
        if is_good {
            let lease = acquires(&caller).await.expect(&what);
            send_release(&caller, &lease).await.expect("the holder");
        } else {
            assert!(is_unknown(async || acquires(&caller).await).await, "{what}");
        }
    }
}

async fn wait_for_release(fixture: &AccessControlFixture) {
    let caller = fixture.caller("new");
    let lease = send_acquire(&caller, acquire_request("d", TTL)).await;
    let lease = lease.expect("a good token");
    send_release(&caller, &lease).await.expect("the holder");
}

#[tokio::test]
async fn leases_that_the_rules_forbid_are_renewed_no_more() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("ci", "ci")]).await;
    let caller = fixture.caller("ci");
    let mut mine = HeartbeatStream::start(&caller, "mine").await;
    let mut other_stream = HeartbeatStream::start(&caller, "theirs").await;
    let (requests, mut responses) = open_stream(&caller).await;
    let waiting = HoldAcquire {
        call_id: 1,
        request: Some(leasehold_proto::v1::AcquireRequest {
            wait_timeout: Duration::from_secs(60).try_into().ok(),
            ..acquire_request("theirs", TTL)
        }),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send_message(&requests, Ask::Acquire(waiting)).await;
    assert!(matches!(
        next_message(&mut responses).await,
        Told::Queued(_)
    ));
    fixture.access_files.set_policy(NARROW);
    other_stream
        .assert_ends(RELOADED_WITHIN + REPLY_TIMEOUT)
        .await;
    assert_eq!(
        mine.heartbeat_until(RELOADED_WITHIN).await,
        None,
        "it is allowed"
    );
    // The lock is not granted to a caller that is no longer authorized.
    let mut refused = next_message(&mut responses).await;
    while matches!(refused, Told::Queued(_)) {
        refused = next_message(&mut responses).await;
    }
    assert!(
        matches!(&refused, Told::Refused(refused)
            if refused.reason() == ErrorReason::PermissionDenied),
        "{refused:?}"
    );
}
