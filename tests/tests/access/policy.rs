//! Authorization by rules, and leases that only their holder can use.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, AttachLease, ErrorReason, ForceReleaseLeaseRequest, GetLockRequest, Lease,
    ListLocksRequest, LockRef, WatchLocksRequest, hold_request::Message as Ask,
    hold_response::Message as Told,
};
use leasehold_tests::{
    access::{
        files_and_callers::{AccessFiles, Caller},
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, acquire_request, next_message, open_stream,
            send_acquire, send_message, send_release, send_renew,
        },
    },
    broker::process::BrokerOptions,
    status::error_reason,
    until::until,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const MEMORY: &str = "memory";
const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
/// Rules: alice works in her namespace and on shared locks, bob works on shared locks, carol
/// observes, dora is an operator.
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
    status.code() == Code::PermissionDenied
        && error_reason(status) == Some(ErrorReason::PermissionDenied)
}

/// Callers of the rules. Alice holds a lock of her own, and bob a shared one.
struct Teams {
    fixture: AccessControlFixture,
    callers: [Caller; 4],
    own: Lease,
    shared: Lease,
}

impl Teams {
    async fn start() -> Self {
        let names = ["alice", "bob", "carol", "dora"];
        let fixture = AccessControlFixture::start(RULES, &names.map(|name| (name, name))).await;
        let callers = names.map(|name| fixture.caller(name));
        let own = send_acquire(&callers[0], acquire_request("alice:a", LONG)).await;
        let shared = send_acquire(&callers[1], acquire_request("shared/b", LONG)).await;
        Self {
            fixture,
            callers,
            own: own.expect("her namespace"),
            shared: shared.expect("a shared lock"),
        }
    }
}

/// Returns the details of a status, with sorted metadata.
fn known(status: &Status) -> String {
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    let mut metadata: Vec<_> = info.metadata.iter().collect();
    metadata.sort_unstable();
    format!("{} {metadata:?} {}", info.reason, status.details().len())
}

async fn listed(caller: &Caller) -> Result<Vec<String>, Status> {
    let mut looks = caller.inspection.clone();
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
        let refused = send_acquire(caller, acquire_request(lock, TTL)).await;
        assert!(denied(&refused.expect_err(who)), "{who} {lock}");
    }
    // A caller without the right to observe receives the rejection without the holder.
    let held = send_acquire(alice, acquire_request("shared/b", TTL)).await;
    let held = held.expect_err("held");
    assert_eq!(error_reason(&held), Some(ErrorReason::LockHeld));
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
    let seen = carol.inspection.clone().get_lock(look("alice", "a")).await;
    seen.expect("carol looks");
    let shared = look("default", "shared/b");
    let unseen = bob.inspection.clone().get_lock(shared).await;
    assert!(denied(&unseen.expect_err("bob does not")));
    assert_eq!(listed(carol).await.expect("carol lists").len(), 2);
    assert_eq!(listed(alice).await.expect("alice lists"), ["a"]);
    assert!(denied(&listed(bob).await.expect_err("bob does not")));
    let watch = WatchLocksRequest::default();
    let watch = bob.inspection.clone().watch_locks(watch).await;
    assert!(denied(&watch.expect_err("bob does not watch")));

    // New rules take effect soon, and invalid rules never do.
    teams.fixture.access_files.set_policy(ALLOW_ALL_POLICY);
    until("bob may list now", async || listed(bob).await.ok()).await;
    teams.fixture.access_files.set_policy("[[rule]\n");
    until("the broker says what is wrong", async || {
        let log = teams.fixture.broker.log();
        log.contains("keeping the current access rules")
            .then_some(())
    })
    .await;
    listed(bob).await.expect("as before");
}

#[tokio::test]
async fn only_operators_force_release() {
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
    send_renew(bob, &teams.shared).await.expect("the holder");
    let forced = dora.admin.clone().force_release_lease(force()).await;
    forced.expect("dora operates");
    send_renew(bob, &teams.shared)
        .await
        .expect_err("taken away");
    send_renew(alice, &teams.own).await.expect("the holder");
}

#[tokio::test]
async fn a_lease_is_useless_to_other_callers() {
    let fixture =
        AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice"), ("bob", "bob")]).await;
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    let lease = send_acquire(&alice, acquire_request("a", TTL))
        .await
        .expect("it is free");
    let wrong = Lease {
        lease_token: lease.lease_token.to_uppercase(),
        ..lease.clone()
    };
    let foreign = send_renew(&bob, &lease).await.expect_err("bob's it is not");
    let guessed = send_renew(&alice, &wrong).await.expect_err("a wrong token");
    assert_eq!(error_reason(&foreign), Some(ErrorReason::NotHolder));
    assert_eq!(
        (foreign.code(), foreign.message(), known(&foreign)),
        (guessed.code(), guessed.message(), known(&guessed))
    );
    let refused = send_release(&bob, &lease)
        .await
        .expect_err("bob's it is not");
    assert_eq!(error_reason(&refused), Some(ErrorReason::NotHolder));
    let under = AcquireRequest {
        under: Some(lease.clone()),
        ..acquire_request("b", TTL)
    };
    let refused = bob
        .locks
        .clone()
        .acquire(under)
        .await
        .expect_err("bob's it is not");
    assert_eq!(error_reason(&refused), Some(ErrorReason::NotHolder));
    let (requests, mut responses) = open_stream(&bob).await;
    let attach = AttachLease {
        call_id: 1,
        lease: Some(lease.clone()),
        attach_number: 1,
    };
    send_message(&requests, Ask::Attach(attach)).await;
    let refused = next_message(&mut responses).await;
    assert!(
        matches!(&refused, Told::Refused(refused) if refused.reason() == ErrorReason::NotHolder),
        "{refused:?}"
    );
    send_renew(&alice, &lease).await.expect("alice's it is");
}

#[tokio::test]
async fn access_settings_that_admit_no_caller_or_every_caller_are_rejected_at_start() {
    let access_files = AccessFiles::new(ALLOW_ALL_POLICY, &[]);
    let without = |left_out: &str| {
        let mut options = BrokerOptions::for_store(MEMORY.to_owned());
        let settings = access_files.settings().into_iter();
        options
            .env
            .extend(settings.filter(|(key, _)| !key.contains(left_out)));
        options
    };
    for (left_out, says) in [
        ("POLICY", "without a policy every request is denied"),
        (
            "AUTHENTICATION",
            "is not used while callers cannot authenticate",
        ),
        ("ISSUER", "belong together"),
    ] {
        let (succeeded, output) = without(left_out).run("check-config", &[]).await;
        assert!(!succeeded && output.contains(says), "{left_out}: {output}");
    }
    access_files.set_policy("[[rule]]\ncallers = [\"a\"]\nverbs = [\"aquire\"]\n");
    let (succeeded, output) = access_files
        .options(MEMORY.to_owned())
        .run("check-config", &[])
        .await;
    assert!(
        !succeeded && output.contains("policy.toml: rule 1: verbs: unknown verb \"aquire\""),
        "{output}"
    );
}
