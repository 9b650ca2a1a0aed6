//! Who may do what: rules, and leases that are their holder's only.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, AttachLease, ErrorReason, ForceReleaseLeaseRequest, GetLockRequest, Lease,
    ListLocksRequest, LockRef, WatchLocksRequest, hold_request::Message as Ask,
    hold_response::Message as Told,
};
use leasehold_tests::{
    broker_process::BrokerOptions,
    callers::{Caller, Doors},
    guarded::{EVERYTHING, Guarded, acquire, given_back, next, renewed, send, stream, taken},
    status::reason,
    until::until,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const MEMORY: &str = "memory";
const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
/// alice works in her namespace and on shared locks, bob on shared ones, carol looks, dora operates.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire", "observe", "list"]
    namespaces = ["alice"]
    [[rule]]
    callers = ["token:alice", "token:bob"]
    verbs = ["acquire"]
    namespaces = ["default"]
    names = ["shared/*"]
    [[rule]]
    callers = ["token:carol"]
    verbs = ["observe", "list"]
    [[rule]]
    callers = ["token:dora"]
    verbs = ["force_release", "admin"]
"#;

fn denied(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && reason(status) == Some(ErrorReason::PermissionDenied)
}

/// Those of the rules; alice holds one lock of her own, bob a shared one.
struct Teams {
    site: Guarded,
    callers: [Caller; 4],
    own: Lease,
    shared: Lease,
}

impl Teams {
    async fn start() -> Self {
        let names = ["alice", "bob", "carol", "dora"];
        let site = Guarded::start(RULES, &names.map(|name| (name, name))).await;
        let callers = names.map(|name| site.caller(name));
        let own = taken(&callers[0], acquire("alice:a", LONG)).await;
        let shared = taken(&callers[1], acquire("shared/b", LONG)).await;
        Self {
            site,
            callers,
            own: own.expect("her namespace"),
            shared: shared.expect("a shared lock"),
        }
    }
}

/// What its details say; they are in no order.
fn known(status: &Status) -> String {
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    let mut metadata: Vec<_> = info.metadata.iter().collect();
    metadata.sort_unstable();
    format!("{} {metadata:?} {}", info.reason, status.details().len())
}

async fn listed(caller: &Caller) -> Result<Vec<String>, Status> {
    let mut looks = caller.looks.clone();
    let page = looks.list_locks(ListLocksRequest::default()).await?;
    let targets = page.into_inner().locks.into_iter();
    let names = targets.filter_map(|lock| Some(lock.target?.name));
    Ok(names.collect())
}

#[tokio::test]
async fn each_caller_acquires_what_the_rules_allow() {
    let teams = Teams::start().await;
    let [alice, bob, carol, dora] = &teams.callers;
    for (who, caller, lock) in [
        ("alice", alice, "other"),
        ("bob", bob, "alice:a"),
        ("bob", bob, "shared"),
        ("carol", carol, "shared/b"),
        ("dora", dora, "alice:a"),
    ] {
        let refused = taken(caller, acquire(lock, TTL)).await;
        assert!(denied(&refused.expect_err(who)), "{who} {lock}");
    }
    // Who may not observe hears that the lock is held, and not by whom.
    let held = taken(alice, acquire("shared/b", TTL)).await;
    let held = held.expect_err("held");
    assert_eq!(reason(&held), Some(ErrorReason::LockHeld));
    let details = String::from_utf8_lossy(held.details()).into_owned();
    let tells = details.contains("secret business") || details.contains("worker");
    assert!(!tells, "{details}");
}

#[tokio::test]
async fn each_caller_sees_what_the_rules_allow() {
    let teams = Teams::start().await;
    let [alice, bob, carol, _] = &teams.callers;
    let look = |namespace: &str, name: &str| GetLockRequest {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let seen = carol.looks.clone().get_lock(look("alice", "a")).await;
    seen.expect("carol looks");
    let shared = look("default", "shared/b");
    let unseen = bob.looks.clone().get_lock(shared).await;
    assert!(denied(&unseen.expect_err("bob does not")));
    assert_eq!(listed(carol).await.expect("carol lists").len(), 2);
    assert_eq!(listed(alice).await.expect("alice lists"), ["a"]);
    assert!(denied(&listed(bob).await.expect_err("bob does not")));
    let watch = WatchLocksRequest::default();
    let watch = bob.looks.clone().watch_locks(watch).await;
    assert!(denied(&watch.expect_err("bob does not watch")));

    // Other rules count soon, and wrong ones never.
    teams.site.doors.set_policy(EVERYTHING);
    until("bob may list now", async || listed(bob).await.ok()).await;
    teams.site.doors.set_policy("[[rule]\n");
    until("the broker says what is wrong", async || {
        let log = teams.site.broker.log();
        log.contains("the rules in force stay").then_some(())
    })
    .await;
    listed(bob).await.expect("as before");
}

#[tokio::test]
async fn only_who_may_takes_away() {
    let teams = Teams::start().await;
    let [alice, bob, carol, dora] = &teams.callers;
    let force = || ForceReleaseLeaseRequest {
        lease_id: teams.shared.lease_id.clone(),
        reason: "because".to_owned(),
        lock: Some(LockRef {
            namespace: "default".to_owned(),
            name: "shared/b".to_owned(),
        }),
        ..ForceReleaseLeaseRequest::default()
    };
    for caller in [alice, bob, carol] {
        let refused = caller.admin.clone().force_release_lease(force()).await;
        assert!(denied(&refused.expect_err("only dora")));
    }
    renewed(bob, &teams.shared).await.expect("the holder");
    let forced = dora.admin.clone().force_release_lease(force()).await;
    forced.expect("dora operates");
    renewed(bob, &teams.shared).await.expect_err("taken away");
    renewed(alice, &teams.own).await.expect("the holder");
}

#[tokio::test]
async fn a_lease_is_worth_nothing_to_others() {
    let site = Guarded::start(EVERYTHING, &[("alice", "alice"), ("bob", "bob")]).await;
    let (alice, bob) = (site.caller("alice"), site.caller("bob"));
    let lease = taken(&alice, acquire("a", TTL)).await.expect("it is free");
    let wrong = Lease {
        lease_token: lease.lease_token.to_uppercase(),
        ..lease.clone()
    };
    let foreign = renewed(&bob, &lease).await.expect_err("bob's it is not");
    let guessed = renewed(&alice, &wrong).await.expect_err("a wrong token");
    assert_eq!(reason(&foreign), Some(ErrorReason::NotHolder));
    assert_eq!(
        (foreign.code(), foreign.message(), known(&foreign)),
        (guessed.code(), guessed.message(), known(&guessed))
    );
    let refused = given_back(&bob, &lease).await.expect_err("bob's it is not");
    assert_eq!(reason(&refused), Some(ErrorReason::NotHolder));
    let under = AcquireRequest {
        under: Some(lease.clone()),
        ..acquire("b", TTL)
    };
    let refused = bob
        .locks
        .clone()
        .acquire(under)
        .await
        .expect_err("bob's it is not");
    assert_eq!(reason(&refused), Some(ErrorReason::NotHolder));
    let (asks, mut told) = stream(&bob).await;
    let attach = AttachLease {
        call_id: 1,
        lease: Some(lease.clone()),
        attach_number: 1,
    };
    send(&asks, Ask::Attach(attach)).await;
    let refused = next(&mut told).await;
    assert!(
        matches!(&refused, Told::Refused(refused) if refused.reason() == ErrorReason::NotHolder),
        "{refused:?}"
    );
    renewed(&alice, &lease).await.expect("alice's it is");
}

#[tokio::test]
async fn doors_that_let_nobody_in_or_everybody_are_refused_at_the_start() {
    let doors = Doors::new(EVERYTHING, &[]);
    let without = |left_out: &str| {
        let mut options = BrokerOptions::on(MEMORY.to_owned());
        let settings = doors.settings().into_iter();
        options
            .env
            .extend(settings.filter(|(key, _)| !key.contains(left_out)));
        options
    };
    for (left_out, says) in [
        ("POLICY", "without it nobody may do anything"),
        (
            "AUTHENTICATION",
            "is not used while nobody can show who they are",
        ),
        ("ISSUER", "belong together"),
    ] {
        let (done, said) = without(left_out).run("check-config", &[]).await;
        assert!(!done && said.contains(says), "{left_out}: {said}");
    }
    doors.set_policy("[[rule]]\ncallers = [\"a\"]\nverbs = [\"aquire\"]\n");
    let (done, said) = doors
        .options(MEMORY.to_owned())
        .run("check-config", &[])
        .await;
    assert!(
        !done && said.contains("policy.toml: rule 1: verbs: \"aquire\" is none"),
        "{said}"
    );
}
