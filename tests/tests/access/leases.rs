//! Leases presented by other callers. Responses and their timing do not reveal whether a lease
//! exists, for every kind of lease.

use std::{collections::BTreeMap, time::Duration};

use leasehold_proto::v1::{
    AcquireResponse, ErrorReason, ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, Lease,
    LockRef, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use leasehold_tests::{
    access::matrix::{
        api_entries::{ApiEntry, LockPath, entries},
        connection::{ACQUIRE, RoleConnection},
        fixture::MatrixFixture,
        raw_call::Reply,
        request_builder::{FieldValues, build_request},
        requests::{acquire_request, owner, target},
        roles::{CredentialKind, LockGroup, PERMISSIONS, Permission, Role, root_role},
    },
    clock::boottime,
    scale::{print_figures, scaled_count},
    until::until,
};

const RENEW: &str = "/leasehold.v1.LockService/Renew";
const RELEASE: &str = "/leasehold.v1.LockService/Release";
const FORCE: &str = "/leasehold.v1.AdminService/ForceReleaseLease";
/// Number of calls per kind of lease for the comparison of response times.
const CALLS: usize = 200;
const CALLS_MIN: usize = 50;
/// Maximum ratio of the medians of calls that do the same work on a busy machine.
const RATIO_MAX: f64 = 2.0;
/// Part of the rounds in which a kind of lease is slower if its replies reveal it.
const CONSISTENT: f64 = 0.9;
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(1);

/// A lease that does not belong to the caller, and the lock for which the caller presents it.
struct ForeignLease {
    kind: &'static str,
    lease: Lease,
    lock: LockRef,
}

fn test_roles() -> Vec<Role> {
    let may = || vec![(LockGroup::Open, PERMISSIONS.to_vec())];
    let takes = || vec![(LockGroup::Open, vec![Permission::Acquire])];
    vec![
        root_role(),
        Role::new("holder", CredentialKind::StaticToken, may()),
        Role::new("other", CredentialKind::StaticToken, takes()),
        Role::new("signed", CredentialKind::SignedToken, takes()),
        Role::new("certified", CredentialKind::ClientCertificate, takes()),
    ]
}

/// Returns all methods and messages with a lease or lease id, and the field that names the lease's
/// lock.
fn that_take_a_lease() -> Vec<(ApiEntry, Option<LockPath>)> {
    let mut found = Vec::new();
    for entry in entries().into_iter().filter(ApiEntry::contains_lease) {
        let ways = entry.lock_paths();
        let in_lease = ways
            .iter()
            .filter(|way| way.to_string().contains("grants[0 of 1]"));
        let ways: Vec<_> = match in_lease.clone().next() {
            Some(_) => in_lease.cloned().map(Some).collect(),
            None if ways.is_empty() => vec![None],
            None => ways.into_iter().map(Some).collect(),
        };
        found.extend(ways.into_iter().map(|way| (entry.clone(), way)));
    }
    found
}

/// Creates a live lease of the holder and other leases. Names of locks have equal lengths.
async fn lease_cases(fixture: &mut MatrixFixture, holder: &RoleConnection) -> Vec<ForeignLease> {
    let live_lock = lock("live");
    let live = result(holder, &live_lock, LONG).await;
    let another = result(holder, &lock("more"), LONG).await;
    let with = |lease_id: &str, lease_token: &str| Lease {
        lease_id: lease_id.to_owned(),
        lease_token: lease_token.to_owned(),
        ..live.clone()
    };
    let never = |text: &str| text.chars().rev().collect::<String>();
    let (id, token) = (live.lease_id.as_str(), live.lease_token.as_str());
    let made_up = with(&never(id), &never(token));
    let (back_lock, back) = released_lease(holder).await;
    let (gone_lock, gone) = revoked_lease(fixture, holder).await;
    let (late_lock, late) = expired_lease(fixture, holder).await;
    let shown = [
        ("another's", live.clone(), &live_lock),
        ("one that never was", made_up, &live_lock),
        ("a wrong token", with(id, &never(token)), &live_lock),
        (
            "the token of another lease",
            with(id, &another.lease_token),
            &live_lock,
        ),
        ("one that was released", back, &back_lock),
        ("one that was taken away", gone, &gone_lock),
        ("one that ran out", late, &late_lock),
    ];
    let shown = shown.map(|(kind, lease, lock)| ForeignLease {
        kind,
        lease,
        lock: lock.clone(),
    });
    shown.into()
}

fn lock(name: &str) -> LockRef {
    LockGroup::Open.lock(&format!("lease-{name}"))
}

async fn result(line: &RoleConnection, lock: &LockRef, ttl: Duration) -> Lease {
    let mut request = acquire_request(target(lock), owner("matrix"));
    request.ttl = ttl.try_into().ok();
    let result: Result<AcquireResponse, _> = line.call(ACQUIRE, &request).await;
    result
        .expect("it is free")
        .lease
        .expect("a grant has a lease")
}

async fn released_lease(holder: &RoleConnection) -> (LockRef, Lease) {
    let lock = lock("back");
    let lease = result(holder, &lock, LONG).await;
    let release = ReleaseRequest {
        lease: Some(lease.clone()),
        ..ReleaseRequest::default()
    };
    let released: Result<ReleaseResponse, _> = holder.call(RELEASE, &release).await;
    released.expect("it is the holder's");
    (lock, lease)
}

async fn revoked_lease(fixture: &MatrixFixture, holder: &RoleConnection) -> (LockRef, Lease) {
    let lock = lock("gone");
    let lease = result(holder, &lock, LONG).await;
    let force = ForceReleaseLeaseRequest {
        lease_id: lease.lease_id.clone(),
        lock: Some(lock.clone()),
        reason: "the test".to_owned(),
        unsafe_now: true,
        ..ForceReleaseLeaseRequest::default()
    };
    let operator = RoleConnection {
        api: fixture.observer().admin.clone(),
        ..fixture.observer().clone()
    };
    let forced: Result<ForceReleaseLeaseResponse, _> = operator.call(FORCE, &force).await;
    forced.expect("root may");
    (lock, lease)
}

async fn expired_lease(fixture: &mut MatrixFixture, holder: &RoleConnection) -> (LockRef, Lease) {
    let lock = lock("late");
    let lease = result(holder, &lock, SHORT).await;
    fixture.recorder.take_commands().await;
    // The broker then sends commands for the lock without a request, so that the expiry is counted.
    until("it has run out, and was looked after", async || {
        let commands = fixture.recorder.take_commands().await;
        let is_touched = commands
            .iter()
            .any(|command| command.contains("lease-late"));
        is_touched.then_some(())
    })
    .await;
    let gone = fixture.observer().get_lock(&lock).await;
    gone.expect_err("it is not held now");
    (lock, lease)
}

async fn show(
    line: &RoleConnection,
    (entry, way): &(ApiEntry, Option<LockPath>),
    shown: &ForeignLease,
) -> Reply {
    let sample = FieldValues {
        lock: shown.lock.clone(),
        other_locks: (0..2)
            .map(|at| LockGroup::Open.lock(&format!("other-{at}")))
            .collect(),
        lease: shown.lease.clone(),
        ..FieldValues::default()
    };
    let filled = build_request(entry, way.as_ref(), &sample).bytes;
    line.call_entry(entry, filled).await
}

/// Returns the text of the reply without the values that the caller sent.
fn comparable_text(reply: &Reply, shown: &ForeignLease) -> String {
    let text = reply.text();
    let text = text.replace(&shown.lock.name, "LOCK");
    text.replace(&shown.lease.lease_id, "LEASE")
}

#[tokio::test]
async fn leases_of_other_callers_and_guesses_get_equal_replies() {
    let mut fixture = MatrixFixture::start(test_roles()).await;
    let holder = fixture.connection_of(&fixture.roles[1]);
    let leases = lease_cases(&mut fixture, &holder).await;
    let acquiring_calls = that_take_a_lease();
    assert!(
        acquiring_calls.len() >= 7,
        "Renew, Release, under, attach, release, detach, and by force"
    );
    let before = fixture.lock_state(&leases[0].lock).await;
    assert!(before.contains(&leases[0].lease.lease_id), "{before}");
    let (mut cells, mut reasons) = (0, BTreeMap::new());
    let others: Vec<_> = fixture.roles[2..].to_vec();
    for role in others {
        let line = fixture.connection_of(&role);
        for call in &acquiring_calls {
            fixture.recorder.take_commands().await;
            let mut answers = Vec::new();
            for shown in &leases {
                let reply = show(&line, call, shown).await;
                answers.push((shown.kind, comparable_text(&reply, shown)));
                cells += 1;
                *reasons.entry(refused(&call.0, &reply)).or_insert(0) += 1;
            }
            let (_, first) = &answers[0];
            for (kind, answer) in &answers {
                assert_eq!(answer, first, "{} by {}: {kind}", call.0.name, role.name);
            }
            let commands = fixture.recorder.take_commands().await;
            assert!(commands.is_empty(), "{}: {commands:?}", call.0.name);
        }
    }
    assert_eq!(fixture.lock_state(&leases[0].lock).await, before);
    let lease = Some(leases[0].lease.clone());
    let renewed: Result<RenewResponse, _> =
        holder.call(RENEW, &RenewRequest { lease, ttl: None }).await;
    renewed.expect("its holder may");
    print_figures(&format!(
        "authorization: leases shown by others: cells={cells} {reasons:?} apart=0"
    ));
}

/// Returns the reason of the rejection.
fn refused(entry: &ApiEntry, reply: &Reply) -> String {
    let refusal = reply.rejection(entry);
    let (_, reason) = refusal.unwrap_or_else(|| panic!("{}: {reply:?}", entry.name));
    let known = [
        ErrorReason::NotHolder,
        ErrorReason::LeaseNotFound,
        ErrorReason::PermissionDenied,
    ];
    assert!(known.contains(&reason), "{}: {reply:?}", entry.name);
    reason.as_str_name().to_owned()
}

#[tokio::test]
async fn response_times_do_not_reveal_a_lease() {
    let mut fixture = MatrixFixture::start(test_roles()).await;
    let holder = fixture.connection_of(&fixture.roles[1]);
    let leases = lease_cases(&mut fixture, &holder).await;
    let line = fixture.connection_of(&fixture.roles[2]);
    let calls = scaled_count(CALLS, CALLS_MIN);
    for call in that_take_a_lease() {
        // Durations by kind of lease and round.
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); leases.len()];
        for round in 0..calls {
            // The order rotates, so that no kind of lease is always the first after a pause.
            for kind in 0..leases.len() {
                let kind = (round + kind) % leases.len();
                let started_at = boottime();
                show(&line, &call, &leases[kind]).await;
                times[kind].push(boottime() - started_at);
            }
        }
        let medians: Vec<_> = times.iter().map(|times| median(times)).collect();
        let (least, most) = (medians.iter().min(), medians.iter().max());
        let (least, most) = (*least.expect("some"), *most.expect("some"));
        let apart = most.as_secs_f64() / least.as_secs_f64();
        let consistency = most_consistent_order(&times);
        let way = call.1.as_ref().map(ToString::to_string).unwrap_or_default();
        print_figures(&format!(
            "authorization: leases shown by others: {} {way}: {calls} calls of each of {} kinds, \
             medians {} to {} us, one kind slower than another in {consistency:.2} of the rounds",
            call.0.name,
            leases.len(),
            least.as_micros(),
            most.as_micros()
        ));
        // On a busy machine medians differ by chance, but no kind is then slower in every round.
        assert!(
            apart <= RATIO_MAX || consistency < CONSISTENT,
            "{}: {medians:?}, {consistency}",
            call.0.name
        );
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the largest part of the rounds in which one kind of lease was slower than another.
fn most_consistent_order(times: &[Vec<Duration>]) -> f64 {
    let slower = |left: &[Duration], right: &[Duration]| {
        let rounds = left.iter().zip(right);
        let count = rounds.filter(|(left, right)| left > right).count();
        count as f64 / left.len() as f64
    };
    let pairs = times
        .iter()
        .flat_map(|left| times.iter().map(move |right| slower(left, right)));
    pairs.fold(0.0, f64::max)
}
