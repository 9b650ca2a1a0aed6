//! Authorization matrix: every method and message of the API, every field with a lock's name, every
//! kind of caller. Denied calls send nothing to Redis, change nothing and reveal nothing.
//! Authorized calls work.

use futures::future::join_all;
use leasehold_proto::v1::{Lease, LockRef};
use leasehold_tests::{
    access::matrix::{
        api_entries::{ApiEntry, LockPath, PathKind, entries},
        connection::RoleConnection,
        fixture::MatrixFixture,
        lease_stream::LeaseStream,
        raw_call::Reply,
        request_builder::{FieldValues, build_request},
        required_permissions::{RequiredPermission, required_permission, unused_rows},
        roles::{LOCK_GROUPS, LockGroup, OPEN_GROUPS, Permission, RESTRICTED_GROUPS, Role, roles},
    },
    scale::{print_figures, scale},
};

const TARGETS_MAX: usize = 16;

/// Results of the matrix.
#[derive(Debug, Default)]
struct MatrixResults {
    denied: usize,
    allowed: usize,
    commands: usize,
    /// Descriptions of violations.
    wrong: Vec<String>,
}

/// A cell of the matrix: one field of one method or message, for one lock.
struct Cell<'a> {
    entry: &'a ApiEntry,
    way: &'a LockPath,
    verb: Permission,
    part: LockGroup,
    lock: LockRef,
}

/// A generator of unused lock names.
#[derive(Default)]
struct NameGenerator(usize);

impl NameGenerator {
    fn lock(&mut self, part: LockGroup) -> LockRef {
        self.0 += 1;
        part.lock(&format!("fresh-{}", self.0))
    }

    fn lock_list(&mut self, part: LockGroup) -> Vec<LockRef> {
        (0..TARGETS_MAX).map(|_| self.lock(part)).collect()
    }
}

#[test]
fn every_api_entry_is_in_the_matrix() {
    let entries = entries();
    assert_eq!(
        unused_rows(&entries),
        [""; 0],
        "rows of calls that are no more"
    );
    for entry in entries {
        let ways = entry.lock_paths();
        let enters = |kind: fn(PathKind) -> bool| ways.iter().all(|way| kind(way.kind));
        let fits = match required_permission(&entry) {
            RequiredPermission::EachLock(_) => {
                !ways.is_empty() && enters(|enters| enters == PathKind::Lock)
            }
            RequiredPermission::ListedLocks => {
                !ways.is_empty() && enters(|enters| enters != PathKind::Lock)
            }
            RequiredPermission::Nothing => ways.is_empty(),
        };
        assert!(fits, "{}: {ways:?}", entry.name);
    }
}

#[tokio::test]
async fn calls_without_permission_are_denied_before_redis_and_permitted_calls_work() {
    let mut fixture = MatrixFixture::start(roles(scale() >= 1.0)).await;
    let own = leases_by_role(&fixture).await;
    let mut seen = MatrixResults::default();
    let entries = entries();
    for entry in &entries {
        let RequiredPermission::EachLock(verb) = required_permission(entry) else {
            continue;
        };
        for way in entry.lock_paths() {
            for (part, lock, twin) in hidden_locks() {
                let mut cell = Cell {
                    entry,
                    way: &way,
                    verb,
                    part,
                    lock,
                };
                let held = cell.denied(&mut fixture, &own, &mut seen).await;
                let name = std::mem::replace(&mut cell.lock, twin).name;
                let free = cell.denied(&mut fixture, &own, &mut seen).await;
                for ((who, held), (_, free)) in held.iter().zip(&free) {
                    if free.text().replace(&cell.lock.name, &name) != held.text() {
                        seen.add_violation(&cell, who, &format!("{held:?} but {free:?}"));
                    }
                }
            }
        }
    }
    let mut fresh = NameGenerator::default();
    for entry in &entries {
        let RequiredPermission::EachLock(verb) = required_permission(entry) else {
            continue;
        };
        for way in entry.lock_paths() {
            for part in LOCK_GROUPS {
                let may = fixture
                    .roles
                    .iter()
                    .filter(|role| role.has_permission(verb, part))
                    .cloned();
                for role in may.collect::<Vec<_>>() {
                    let cell = Cell {
                        entry,
                        way: &way,
                        verb,
                        part,
                        lock: fixture.held_in(part).lock.clone(),
                    };
                    cell.allowed(&fixture, &role, &mut fresh, &mut seen).await;
                }
            }
        }
    }
    assert!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
    assert!(seen.allowed > 0 && seen.denied > 0, "{seen:?}");
    print_figures(&format!(
        "authorization: cells={} denied={} allowed={} leaks={} commands to Redis for the denied={}",
        seen.denied + seen.allowed,
        seen.denied,
        seen.allowed,
        seen.wrong.len(),
        seen.commands
    ));
}

/// Returns the held locks that must not be revealed, in each spelling, each with a free lock whose
/// name has the same length.
fn hidden_locks() -> Vec<(LockGroup, LockRef, LockRef)> {
    let mut secrets = Vec::new();
    for part in RESTRICTED_GROUPS {
        let held = part.lock(&format!("canary-held-{part:?}"));
        let free = part.lock(&format!("canary-free-{part:?}"));
        if part == LockGroup::Closed {
            let spelt = |lock: &LockRef| LockRef {
                namespace: String::new(),
                ..lock.clone()
            };
            secrets.push((part, spelt(&held), spelt(&free)));
        }
        secrets.push((part, held, free));
    }
    secrets
}

/// Acquires an open lock for each role that may acquire one.
async fn leases_by_role(fixture: &MatrixFixture) -> Vec<(String, Lease)> {
    let mut leases = Vec::new();
    for role in &fixture.roles {
        let part = OPEN_GROUPS
            .into_iter()
            .find(|part| role.has_permission(Permission::Acquire, *part));
        if let Some(part) = part {
            let lock = part.lock(&format!("own-{}", role.name));
            let lease = fixture.connection_of(role).acquire(&[lock]).await;
            leases.push((role.name.clone(), lease.expect("it may, and it is free")));
        }
    }
    leases
}

impl MatrixResults {
    fn add_violation(&mut self, cell: &Cell<'_>, who: &str, what: &str) {
        let (entry, way, lock) = (&cell.entry.name, cell.way, &cell.lock);
        let wrong = format!(
            "{entry} {way} {}/{} {who}: {what}",
            lock.namespace, lock.name
        );
        self.wrong.push(wrong);
    }
}

impl Cell<'_> {
    /// Sends requests as each unauthorized role, with the holder's (stolen) lease and with the
    /// role's own lease, and asserts that all are denied.
    async fn denied(
        &self,
        fixture: &mut MatrixFixture,
        own: &[(String, Lease)],
        seen: &mut MatrixResults,
    ) -> Vec<(String, Reply)> {
        let before = fixture.lock_state(&self.lock).await;
        fixture.recorder.take_commands().await;
        let held = fixture.held_in(self.part);
        let mut calls = Vec::new();
        for role in fixture
            .roles
            .iter()
            .filter(|role| !role.has_permission(self.verb, self.part))
        {
            let theirs = own.iter().filter(|(name, _)| *name == role.name);
            let leases = [&held.lease]
                .into_iter()
                .chain(theirs.map(|(_, lease)| lease));
            for lease in leases {
                let part = OPEN_GROUPS
                    .into_iter()
                    .find(|part| role.has_permission(self.verb, *part));
                let part = part.unwrap_or(LockGroup::Open);
                let sample = FieldValues {
                    lock: self.lock.clone(),
                    is_semaphore: true,
                    fencing_token: held.lease.grants[0].fencing_token,
                    other_locks: (0..TARGETS_MAX)
                        .map(|at| part.lock(&format!("other-{at}")))
                        .collect(),
                    lease: lease.clone(),
                    ..FieldValues::default()
                };
                let filled = build_request(self.entry, Some(self.way), &sample).bytes;
                let line = fixture.connection_of(role);
                calls.push(async move { (role, line.call_entry(self.entry, filled).await) });
            }
        }
        let replies = join_all(calls).await;
        let replies: Vec<_> = replies
            .iter()
            .map(|(role, reply)| ((*role).clone(), reply.clone()))
            .collect();
        let commands = fixture.recorder.take_commands().await;
        seen.commands += commands.len();
        if !commands.is_empty() {
            seen.add_violation(
                self,
                "all of them",
                &format!("Redis was asked: {commands:?}"),
            );
        }
        let after = fixture.lock_state(&self.lock).await;
        if before != after {
            seen.add_violation(self, "all of them", &format!("{before} became {after}"));
        }
        for (role, reply) in &replies {
            seen.denied += 1;
            if let Some(what) = self.is_no_denial(fixture, role, reply) {
                seen.add_violation(self, &role.name, &what);
            }
        }
        replies
            .into_iter()
            .map(|(role, reply)| (role.name, reply))
            .collect()
    }

    /// Returns a description of the violation if the reply is not a correct denial.
    fn is_no_denial(&self, fixture: &MatrixFixture, role: &Role, reply: &Reply) -> Option<String> {
        let got = match reply.rejection(self.entry) {
            Some(refused) => refused,
            None => return Some(format!("it is not denied: {reply:?}")),
        };
        if got != role.rejection() {
            return Some(format!("{got:?}: {reply:?}"));
        }
        revealed_text(reply, &fixture.hidden_texts(role, Some(&self.lock)))
    }

    /// Sends a request as an authorized role, for a free lock or about the held one.
    async fn allowed(
        &self,
        fixture: &MatrixFixture,
        role: &Role,
        fresh: &mut NameGenerator,
        seen: &mut MatrixResults,
    ) {
        let held = fixture.held_in(self.part);
        let takes = self.verb == Permission::Acquire;
        let mut sample = FieldValues {
            lock: held.lock.clone(),
            fencing_token: held.lease.grants[0].fencing_token,
            other_locks: fresh.lock_list(self.part),
            lease: held.lease.clone(),
            is_dry_run: true,
            ..FieldValues::default()
        };
        let line = fixture.connection_of(role);
        if takes {
            sample.lock = fresh.lock(self.part);
        }
        let mut hidden = fixture.hidden_texts(role, Some(&sample.lock));
        let reply = match takes {
            true => self.with_a_lease(&line, sample).await,
            false => {
                let filled = build_request(self.entry, Some(self.way), &sample).bytes;
                let sent_text = String::from_utf8_lossy(&filled).into_owned();
                // A caller that sends the id of a lease may receive it in the reply.
                hidden.retain(|text| !sent_text.contains(text.as_str()));
                Ok(line.call_entry(self.entry, filled).await)
            }
        };
        seen.allowed += 1;
        let wrong = match &reply {
            Ok(reply) if reply.rejection(self.entry).is_none() => revealed_text(reply, &hidden),
            Ok(reply) => Some(format!("it is refused: {reply:?}")),
            Err(reply) => Some(format!("it gets no lease: {reply:?}")),
        };
        if let Some(wrong) = wrong {
            seen.add_violation(self, &role.name, &wrong);
        }
    }

    /// Sends a request with a lease of the caller on the locks that the request names.
    async fn with_a_lease(
        &self,
        line: &RoleConnection,
        mut sample: FieldValues,
    ) -> Result<Reply, Reply> {
        let mut locks = build_request(self.entry, Some(self.way), &sample).lease_locks;
        let message = self.entry.message.name();
        if message == "HoldRelease" {
            locks = vec![sample.lock.clone()];
        }
        if locks.is_empty() {
            sample.lease = Lease::default();
        } else if self.entry.name.contains("Hold/") && message != "AttachLease" {
            return Ok(self.send_on_stream(line, sample, &locks).await);
        } else {
            sample.lease = line.acquire(&locks).await?;
        }
        let filled = build_request(self.entry, Some(self.way), &sample).bytes;
        Ok(line.call_entry(self.entry, filled).await)
    }

    /// Sends the request on the lease stream that holds the lease.
    async fn send_on_stream(
        &self,
        line: &RoleConnection,
        mut sample: FieldValues,
        locks: &[LockRef],
    ) -> Reply {
        let mut stream = LeaseStream::open(line).await.expect("a stream");
        sample.lease = stream.acquire(locks).await;
        let filled = build_request(self.entry, Some(self.way), &sample).bytes;
        stream.send_encoded(filled).await;
        Reply::from_message(stream.next_encoded().await.to_vec())
    }
}

/// Returns a description of the violation if the reply contains a hidden text.
fn revealed_text(reply: &Reply, hidden: &[String]) -> Option<String> {
    let shown_text = reply.first_occurring(hidden);
    shown_text.map(|text| format!("it tells {text:?}: {reply:?}"))
}
