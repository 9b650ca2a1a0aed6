//! Who is known: static tokens, signed tokens, and streams that end with theirs.

use std::time::Duration;

use leasehold_proto::v1::{
    ErrorReason, Heartbeat, HoldAcquire, HoldRequest, HoldResponse, Lease, LeaseEndReason,
    LeaseEnded, ListLocksRequest, RefreshCredential, SetLockLimitRequest, WatchLocksRequest,
    hold_request::Message as Ask, hold_response::Message as Told,
};
use leasehold_tests::{
    callers::{Caller, Doors, LEEWAY},
    clock::boottime,
    guarded::{EVERYTHING, Guarded, SOON, acquire, given_back, next, renewed, send, stream, taken},
    scale::figures,
    status::reason,
    time_left::expiry,
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
/// Files are looked at each second.
const SEEN: Duration = Duration::from_secs(2);
const NARROW: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire", "list"]
    names = ["mine"]
"#;

/// Whether nobody knows who asks. Who is told to wait waits.
async fn is_unknown<T>(ask: impl AsyncFn() -> Result<T, Status>) -> bool {
    loop {
        let Err(status) = ask().await else {
            return false;
        };
        if reason(&status) != Some(ErrorReason::QuotaExceeded) {
            return status.code() == Code::Unauthenticated
                && reason(&status) == Some(ErrorReason::Unauthenticated);
        }
        let details = status.get_error_details();
        let retry = details.retry_info().and_then(|retry| retry.retry_delay);
        sleep(retry.expect("when to come again")).await;
    }
}

async fn acquires(caller: &Caller) -> Result<Lease, Status> {
    taken(caller, acquire("a", TTL)).await
}

#[tokio::test]
async fn without_a_good_credential_nothing_is_done() {
    let tokens = [("ci", "the token"), ("ci", "the next token")];
    let site = Guarded::start(EVERYTHING, &tokens).await;
    for (_, token) in tokens {
        let caller = site.caller(token);
        let lease = acquires(&caller).await.expect("a good token");
        given_back(&caller, &lease).await.expect("the holder");
    }
    for caller in [
        site.nobody(),
        site.caller(""),
        site.caller("the toke"),
        site.caller("the token "),
    ] {
        assert!(is_unknown(async || acquires(&caller).await).await);
        let lease = Lease::default();
        assert!(is_unknown(async || renewed(&caller, &lease).await).await);
        let list = ListLocksRequest::default();
        assert!(is_unknown(async || caller.looks.clone().list_locks(list.clone()).await).await);
        let limit = SetLockLimitRequest::default();
        assert!(
            is_unknown(async || caller.admin.clone().set_lock_limit(limit.clone()).await).await
        );
    }

    site.doors.set_tokens(&tokens[1..]);
    let old = site.caller("the token");
    until("the old token is worth nothing", async || {
        is_unknown(async || acquires(&old).await)
            .await
            .then_some(())
    })
    .await;
    let next = site.caller("the next token");
    let lease = taken(&next, acquire("c", TTL)).await;
    lease.expect("a good token");
}

#[tokio::test]
async fn a_signed_token_must_be_right_in_every_way() {
    let site = Guarded::start(EVERYTHING, &[("other", "other")]).await;
    let issuer = &site.doors.issuer;
    let late = -i64::try_from(LEEWAY.as_secs()).expect("short") - 5;
    let far = 4_000_000_000_i64;
    let good = issuer.token("alice", 60, json!({}));
    let within = issuer.token("alice", -5, json!({}));
    for (name, token) in [("good", &good), ("within", &within)] {
        let lease = taken(&site.caller(token), acquire(name, TTL)).await;
        lease.expect("clocks may differ a little");
    }
    let claims = [
        ("not yet good", json!({ "nbf": far })),
        ("of another issuer", json!({ "iss": "https://other" })),
        ("for somebody else", json!({ "aud": "other" })),
        ("without an end", json!({ "exp": null })),
        ("with an end that is a text", json!({ "exp": "never" })),
        ("without an issuer", json!({ "iss": null })),
        ("without an audience", json!({ "aud": null })),
        ("without a subject", json!({ "sub": null })),
    ];
    let claims = claims.map(|(what, claims)| (what, issuer.token("alice", 60, claims)));
    let others = Doors::new(EVERYTHING, &[]);
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
        let caller = site.caller(&token);
        assert!(is_unknown(async || acquires(&caller).await).await, "{what}");
    }
}

/// A stream that beats.
struct Beating {
    asks: mpsc::Sender<HoldRequest>,
    told: Streaming<HoldResponse>,
    sequence: i64,
    lease_id: String,
    /// When the last heartbeat was acknowledged.
    acknowledged: Duration,
}

impl Beating {
    /// With a lease of the lock.
    async fn start(caller: &Caller, name: &str) -> Self {
        let (asks, mut told) = stream(caller).await;
        let call = HoldAcquire {
            call_id: 1,
            request: Some(acquire(name, TTL)),
            attach_number: 1,
            ..HoldAcquire::default()
        };
        send(&asks, Ask::Acquire(call)).await;
        let Told::Granted(granted) = next(&mut told).await else {
            panic!("it is free");
        };
        Self {
            asks,
            told,
            sequence: 0,
            lease_id: granted.lease.expect("a grant has a lease").lease_id,
            acknowledged: boottime(),
        }
    }

    /// Shows another token; whether it is taken.
    async fn shows(&mut self, call_id: i64, token: &str) -> bool {
        let authorization = format!("Bearer {token}");
        let refresh = RefreshCredential {
            call_id,
            authorization,
        };
        send(&self.asks, Ask::RefreshCredential(refresh)).await;
        let answer = next(&mut self.told).await;
        matches!(answer, Told::Done(done) if done.call_id == call_id)
    }

    /// Goes on for so long, or to the end of its lease.
    async fn beats(&mut self, limit: Duration) -> Option<LeaseEnded> {
        let began = boottime();
        while boottime() - began < limit {
            self.sequence += 1;
            let sequence = self.sequence;
            send(&self.asks, Ask::Heartbeat(Heartbeat { sequence })).await;
            let told = next(&mut self.told).await;
            if let Told::Ended(ended) = told {
                return Some(ended);
            }
            assert!(matches!(told, Told::Ack(_)), "{told:?}");
            self.acknowledged = boottime();
            sleep(TTL / 8).await;
        }
        None
    }

    /// That its lease has ended so, and the stream with it if its client is unknown.
    async fn ends(&mut self, limit: Duration) -> Duration {
        let ended = self.beats(limit).await.expect("it ends in time");
        assert_eq!(ended.lease_id, self.lease_id);
        assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired);
        boottime()
    }

    async fn is_over(&mut self) {
        let after = timeout(SOON, self.told.message()).await;
        assert!(matches!(after, Ok(Ok(None))), "{after:?}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_credential_unless_there_is_a_new_one() {
    const GOOD_FOR: Duration = Duration::from_secs(6);
    let site = Guarded::start(EVERYTHING, &[("other", "other")]).await;
    let good_for_s = i64::try_from(GOOD_FOR.as_secs()).expect("short");
    let leeway_s = i64::try_from(LEEWAY.as_secs()).expect("short");
    let issuer = &site.doors.issuer;
    let token = || issuer.token("alice", good_for_s - leeway_s, json!({}));
    let mut beating = Beating::start(&site.caller(&token()), "a").await;
    let bob = issuer.token("bob", 60, json!({}));
    for (call_id, somebody) in [(2, "other"), (3, "nobody"), (4, &bob)] {
        assert!(!beating.shows(call_id, somebody).await, "{somebody}");
    }
    assert_eq!(beating.beats(GOOD_FOR / 2).await, None);
    assert!(beating.shows(5, &token()).await);
    let refreshed = boottime();
    let ended = beating.ends(2 * GOOD_FOR).await;
    beating.is_over().await;
    let lived = ended - refreshed;
    let second = Duration::from_secs(1);
    assert!(
        lived >= GOOD_FOR - second && lived <= GOOD_FOR + second,
        "{lived:?}"
    );

    // The lease runs out in the store, and not before.
    let other = site.caller("other");
    until("it is free", async || acquires(&other).await.ok()).await;
    let free_after = boottime() - beating.acknowledged;
    figures(&format!(
        "credentials: told_after={}ms free_after={}ms E={}ms",
        lived.as_millis(),
        free_after.as_millis(),
        expiry(TTL).as_millis()
    ));
    assert!(
        free_after > TTL && free_after <= expiry(TTL) + TTL / 2,
        "{free_after:?}"
    );
}

#[tokio::test]
async fn a_stream_ends_when_its_token_or_key_is_withdrawn() {
    let site = Guarded::start(EVERYTHING, &[("ci", "old"), ("ci", "new")]).await;
    let signed = site.doors.issuer.token("alice", 600, json!({}));
    let mut of_old = Beating::start(&site.caller("old"), "a").await;
    let mut moving = Beating::start(&site.caller("old"), "b").await;
    let mut of_key = Beating::start(&site.caller(&signed), "c").await;
    assert!(moving.shows(2, "new").await);
    let mut looks = site.caller("old").looks;
    let watch = looks.watch_locks(WatchLocksRequest::default()).await;
    let mut watch = watch.expect("it may").into_inner();

    site.doors.set_tokens(&[("ci", "new")]);
    let (_, of_new, signed) = tokio::join!(
        of_old.ends(SEEN + SOON),
        moving.beats(SEEN),
        of_key.beats(2 * SEEN)
    );
    assert_eq!((of_new, signed), (None, None), "theirs are good");
    of_old.is_over().await;
    let ended = async {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ends without a reason"),
                Err(status) => return status,
            }
        }
    };
    // The next event finds it.
    given_back_soon(&site).await;
    let ended = timeout(SOON, ended).await.expect("it ends");
    assert_eq!(reason(&ended), Some(ErrorReason::Unauthenticated));
    site.doors.set_key_set("<html>not found</html>");
    let unusable = async || {
        site.broker
            .log()
            .contains("the rules in force stay")
            .then_some(())
    };
    let (_, kept) = tokio::join!(
        until("a text that is no key set counts for nothing", unusable),
        of_key.beats(SEEN)
    );
    assert_eq!(kept, None);
    let others = Doors::new(EVERYTHING, &[]);
    site.doors.set_keys(&[&others.issuer]);
    of_key.ends(SEEN + SOON).await;
    of_key.is_over().await;
}

#[tokio::test]
async fn a_key_set_without_usable_keys_withdraws_all_signed_tokens() {
    let site = Guarded::start(EVERYTHING, &[("ci", "static")]).await;
    let signed = site.doors.issuer.token("alice", 600, json!({}));
    let caller = site.caller(&signed);
    let mut for_others = site.doors.issuer.public();
    for_others["use"] = json!("enc");
    for (lock, keys) in [("b", json!([])), ("c", json!([for_others]))] {
        site.doors.set_keys(&[&site.doors.issuer]);
        let lease = until("the token is good", async || acquires(&caller).await.ok()).await;
        given_back(&caller, &lease).await.expect("the holder");
        let mut stream = Beating::start(&caller, lock).await;
        site.doors.set_key_set(&json!({ "keys": keys }).to_string());
        stream.ends(SEEN + SOON).await;
        stream.is_over().await;
        assert!(is_unknown(async || acquires(&caller).await).await);
    }
    let lease = acquires(&site.caller("static")).await;
    lease.expect("who needs no keys");
}

#[tokio::test]
async fn tokens_with_critical_extensions_or_of_other_types_are_refused() {
    let site = Guarded::start(EVERYTHING, &[("other", "other")]).await;
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
        let token = site
            .doors
            .issuer
            .token_with_header("alice", &header(typ, crit));
        let caller = site.caller(&token);
        let what = format!("{typ:?} {crit:?}");
        if is_good {
            let lease = acquires(&caller).await.expect(&what);
            given_back(&caller, &lease).await.expect("the holder");
        } else {
            assert!(is_unknown(async || acquires(&caller).await).await, "{what}");
        }
    }
}

async fn given_back_soon(site: &Guarded) {
    let caller = site.caller("new");
    let lease = taken(&caller, acquire("d", TTL)).await;
    let lease = lease.expect("a good token");
    given_back(&caller, &lease).await.expect("the holder");
}

#[tokio::test]
async fn leases_that_the_rules_forbid_are_renewed_no_more() {
    let site = Guarded::start(EVERYTHING, &[("ci", "ci")]).await;
    let caller = site.caller("ci");
    let mut mine = Beating::start(&caller, "mine").await;
    let mut theirs = Beating::start(&caller, "theirs").await;
    let (asks, mut told) = stream(&caller).await;
    let waiting = HoldAcquire {
        call_id: 1,
        request: Some(leasehold_proto::v1::AcquireRequest {
            wait_timeout: Duration::from_secs(60).try_into().ok(),
            ..acquire("theirs", TTL)
        }),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send(&asks, Ask::Acquire(waiting)).await;
    assert!(matches!(next(&mut told).await, Told::Queued(_)));
    site.doors.set_policy(NARROW);
    theirs.ends(SEEN + SOON).await;
    assert_eq!(mine.beats(SEEN).await, None, "it is allowed");
    // Nor is the lock granted to whom it is not allowed any more.
    let mut refused = next(&mut told).await;
    while matches!(refused, Told::Queued(_)) {
        refused = next(&mut told).await;
    }
    assert!(
        matches!(&refused, Told::Refused(refused)
            if refused.reason() == ErrorReason::PermissionDenied),
        "{refused:?}"
    );
}
