//! A lease is its holder's: shown by anybody else it is as good as one that never was, whatever it is
//! shown to, and however long one looks.

use std::{collections::BTreeMap, time::Duration};

use leasehold_proto::v1::{
    AcquireResponse, ErrorReason, ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, Lease,
    LockRef, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use leasehold_tests::{
    clock::boottime,
    matrix::{
        ask::{acquire, owner, target},
        fill::{Sample, fill},
        line::{ACQUIRE, Line},
        roles::{Part, Role, Shows, VERBS, Verb, root},
        site::Site,
        walk::{Entry, Way, entries},
        wire::Reply,
    },
    scale::{count, figures},
    until::until,
};

const RENEW: &str = "/leasehold.v1.LockService/Renew";
const RELEASE: &str = "/leasehold.v1.LockService/Release";
const FORCE: &str = "/leasehold.v1.AdminService/ForceReleaseLease";
/// Calls for each kind of lease, by which their times are compared.
const CALLS: usize = 200;
const CALLS_LEAST: usize = 50;
/// Medians of calls that do the same work differ less, on a machine that is busy.
const APART_MOST: f64 = 2.0;
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(1);

/// A lease that is not the caller's, and the lock that it is shown for.
struct Shown {
    kind: &'static str,
    lease: Lease,
    lock: LockRef,
}

fn people() -> Vec<Role> {
    let may = || vec![(Part::Open, VERBS.to_vec())];
    let takes = || vec![(Part::Open, vec![Verb::Acquire])];
    vec![
        root(),
        Role::new("holder", Shows::Token, may()),
        Role::new("other", Shows::Token, takes()),
        Role::new("signed", Shows::Signed, takes()),
        Role::new("certified", Shows::Certificate, takes()),
    ]
}

/// Everything in the API that takes a lease or its id, and the way by which the lease's lock enters.
fn that_take_a_lease() -> Vec<(Entry, Option<Way>)> {
    let mut found = Vec::new();
    for entry in entries().into_iter().filter(Entry::shows_a_lease) {
        let ways = entry.ways();
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

/// The holder's lease, and others; of each the names are as long as of the others.
async fn shown(site: &mut Site, holder: &Line) -> Vec<Shown> {
    let live_lock = lock("live");
    let live = taken(holder, &live_lock, LONG).await;
    let another = taken(holder, &lock("more"), LONG).await;
    let with = |lease_id: &str, lease_token: &str| Lease {
        lease_id: lease_id.to_owned(),
        lease_token: lease_token.to_owned(),
        ..live.clone()
    };
    let never = |text: &str| text.chars().rev().collect::<String>();
    let (id, token) = (live.lease_id.as_str(), live.lease_token.as_str());
    let made_up = with(&never(id), &never(token));
    let (back_lock, back) = given_back(holder).await;
    let (gone_lock, gone) = taken_away(site, holder).await;
    let (late_lock, late) = run_out(site, holder).await;
    let shown = [
        ("another's", live.clone(), &live_lock),
        ("one that never was", made_up, &live_lock),
        ("a wrong token", with(id, &never(token)), &live_lock),
        (
            "the token of another lease",
            with(id, &another.lease_token),
            &live_lock,
        ),
        ("one that was given back", back, &back_lock),
        ("one that was taken away", gone, &gone_lock),
        ("one that ran out", late, &late_lock),
    ];
    let shown = shown.map(|(kind, lease, lock)| Shown {
        kind,
        lease,
        lock: lock.clone(),
    });
    shown.into()
}

fn lock(name: &str) -> LockRef {
    Part::Open.lock(&format!("lease-{name}"))
}

async fn taken(line: &Line, lock: &LockRef, ttl: Duration) -> Lease {
    let mut request = acquire(target(lock), owner("matrix"));
    request.ttl = ttl.try_into().ok();
    let taken: Result<AcquireResponse, _> = line.call(ACQUIRE, &request).await;
    taken
        .expect("it is free")
        .lease
        .expect("a grant has a lease")
}

async fn given_back(holder: &Line) -> (LockRef, Lease) {
    let lock = lock("back");
    let lease = taken(holder, &lock, LONG).await;
    let release = ReleaseRequest {
        lease: Some(lease.clone()),
        ..ReleaseRequest::default()
    };
    let released: Result<ReleaseResponse, _> = holder.call(RELEASE, &release).await;
    released.expect("it is the holder's");
    (lock, lease)
}

async fn taken_away(site: &Site, holder: &Line) -> (LockRef, Lease) {
    let lock = lock("gone");
    let lease = taken(holder, &lock, LONG).await;
    let force = ForceReleaseLeaseRequest {
        lease_id: lease.lease_id.clone(),
        lock: Some(lock.clone()),
        reason: "the test".to_owned(),
        unsafe_now: true,
        ..ForceReleaseLeaseRequest::default()
    };
    let operator = Line {
        api: site.aside().admin.clone(),
        ..site.aside().clone()
    };
    let forced: Result<ForceReleaseLeaseResponse, _> = operator.call(FORCE, &force).await;
    forced.expect("root may");
    (lock, lease)
}

async fn run_out(site: &mut Site, holder: &Line) -> (LockRef, Lease) {
    let lock = lock("late");
    let lease = taken(holder, &lock, SHORT).await;
    site.overheard.commands().await;
    // Its broker looks after it by itself then, so that the end is counted.
    until("it has run out, and was looked after", async || {
        let commands = site.overheard.commands().await;
        let is_touched = commands
            .iter()
            .any(|command| command.contains("lease-late"));
        is_touched.then_some(())
    })
    .await;
    let gone = site.aside().look(&lock).await;
    gone.expect_err("nobody has it any more");
    (lock, lease)
}

async fn show(line: &Line, (entry, way): &(Entry, Option<Way>), shown: &Shown) -> Reply {
    let sample = Sample {
        lock: shown.lock.clone(),
        others: (0..2)
            .map(|at| Part::Open.lock(&format!("other-{at}")))
            .collect(),
        lease: shown.lease.clone(),
        ..Sample::default()
    };
    let filled = fill(entry, way.as_ref(), &sample).bytes;
    line.ask(entry, filled).await
}

/// The answer, but for what the caller has said itself.
fn answer(reply: &Reply, shown: &Shown) -> String {
    let text = reply.text();
    let text = text.replace(&shown.lock.name, "LOCK");
    text.replace(&shown.lease.lease_id, "LEASE")
}

#[tokio::test]
async fn anothers_lease_and_a_guess_are_answered_alike() {
    let mut site = Site::start(people()).await;
    let holder = site.line(&site.roles[1]);
    let leases = shown(&mut site, &holder).await;
    let asked = that_take_a_lease();
    assert!(
        asked.len() >= 7,
        "Renew, Release, under, attach, release, detach, and by force"
    );
    let before = site.state(&leases[0].lock).await;
    assert!(before.contains(&leases[0].lease.lease_id), "{before}");
    let (mut cells, mut reasons) = (0, BTreeMap::new());
    let others: Vec<_> = site.roles[2..].to_vec();
    for role in others {
        let line = site.line(&role);
        for call in &asked {
            site.overheard.commands().await;
            let mut answers = Vec::new();
            for shown in &leases {
                let reply = show(&line, call, shown).await;
                answers.push((shown.kind, answer(&reply, shown)));
                cells += 1;
                *reasons.entry(refused(&call.0, &reply)).or_insert(0) += 1;
            }
            let (_, first) = &answers[0];
            for (kind, answer) in &answers {
                assert_eq!(answer, first, "{} by {}: {kind}", call.0.name, role.name);
            }
            let commands = site.overheard.commands().await;
            assert!(commands.is_empty(), "{}: {commands:?}", call.0.name);
        }
    }
    assert_eq!(site.state(&leases[0].lock).await, before);
    let lease = Some(leases[0].lease.clone());
    let renewed: Result<RenewResponse, _> =
        holder.call(RENEW, &RenewRequest { lease, ttl: None }).await;
    renewed.expect("its holder may");
    figures(&format!(
        "authorization: leases shown by others: cells={cells} {reasons:?} apart=0"
    ));
}

/// Why it was refused.
fn refused(entry: &Entry, reply: &Reply) -> String {
    let refusal = reply.refusal(entry);
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
async fn looking_longer_tells_no_more() {
    let mut site = Site::start(people()).await;
    let holder = site.line(&site.roles[1]);
    let leases = shown(&mut site, &holder).await;
    let line = site.line(&site.roles[2]);
    let calls = count(CALLS, CALLS_LEAST);
    for call in that_take_a_lease() {
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); leases.len()];
        for round in 0..calls {
            // None is always the one after a pause.
            for kind in 0..leases.len() {
                let kind = (round + kind) % leases.len();
                let began = boottime();
                show(&line, &call, &leases[kind]).await;
                times[kind].push(boottime() - began);
            }
        }
        let medians: Vec<_> = times.iter_mut().map(|times| median(times)).collect();
        let (least, most) = (medians.iter().min(), medians.iter().max());
        let (least, most) = (*least.expect("some"), *most.expect("some"));
        let apart = most.as_secs_f64() / least.as_secs_f64();
        let way = call.1.as_ref().map(ToString::to_string).unwrap_or_default();
        figures(&format!(
            "authorization: leases shown by others: {} {way}: {calls} calls of each of {} kinds, \
             medians {} to {} us",
            call.0.name,
            leases.len(),
            least.as_micros(),
            most.as_micros()
        ));
        assert!(apart <= APART_MOST, "{}: {medians:?}", call.0.name);
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
