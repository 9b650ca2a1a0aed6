//! Who may do what: every call and message of the API, every way by which a lock's name enters, every
//! kind of caller. What is not allowed is denied before Redis, changes nothing and tells nothing; what
//! is allowed works.

use futures::future::join_all;
use leasehold_proto::v1::{Lease, LockRef};
use leasehold_tests::{
    matrix::{
        fill::{Sample, fill},
        line::Line,
        needs::{Needs, left_over, needs},
        roles::{OPEN, PARTS, Part, Role, SECRET, Verb, roles},
        site::Site,
        stream::LeaseStream,
        walk::{Enters, Entry, Way, entries},
        wire::Reply,
    },
    scale::{figures, scale},
};

const TARGETS_MOST: usize = 16;

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    denied: usize,
    allowed: usize,
    commands: usize,
    /// What should not be.
    wrong: Vec<String>,
}

/// One way into one entry, for one of the locks.
struct Cell<'a> {
    entry: &'a Entry,
    way: &'a Way,
    verb: Verb,
    part: Part,
    lock: LockRef,
}

/// Names of locks that nobody has used.
#[derive(Default)]
struct Fresh(usize);

impl Fresh {
    fn lock(&mut self, part: Part) -> LockRef {
        self.0 += 1;
        part.lock(&format!("fresh-{}", self.0))
    }

    fn several(&mut self, part: Part) -> Vec<LockRef> {
        (0..TARGETS_MOST).map(|_| self.lock(part)).collect()
    }
}

#[test]
fn nothing_in_the_api_is_left_out() {
    let entries = entries();
    assert_eq!(
        left_over(&entries),
        [""; 0],
        "rows of calls that are no more"
    );
    for entry in entries {
        let ways = entry.ways();
        let enters = |kind: fn(Enters) -> bool| ways.iter().all(|way| kind(way.enters));
        let fits = match needs(&entry) {
            Needs::Verb(_) => !ways.is_empty() && enters(|enters| enters == Enters::Lock),
            Needs::Finds => !ways.is_empty() && enters(|enters| enters != Enters::Lock),
            Needs::Nothing => ways.is_empty(),
        };
        assert!(fits, "{}: {ways:?}", entry.name);
    }
}

#[tokio::test]
async fn what_no_rule_allows_is_denied_before_redis_and_what_one_allows_works() {
    let mut site = Site::start(roles(scale() >= 1.0)).await;
    let own = own_leases(&site).await;
    let mut seen = Seen::default();
    let entries = entries();
    for entry in &entries {
        let Needs::Verb(verb) = needs(entry) else {
            continue;
        };
        for way in entry.ways() {
            for (part, lock, twin) in secrets() {
                let mut cell = Cell {
                    entry,
                    way: &way,
                    verb,
                    part,
                    lock,
                };
                let held = cell.denied(&mut site, &own, &mut seen).await;
                let name = std::mem::replace(&mut cell.lock, twin).name;
                let free = cell.denied(&mut site, &own, &mut seen).await;
                for ((who, held), (_, free)) in held.iter().zip(&free) {
                    if free.text().replace(&cell.lock.name, &name) != held.text() {
                        seen.wrong(&cell, who, &format!("{held:?} but {free:?}"));
                    }
                }
            }
        }
    }
    let mut fresh = Fresh::default();
    for entry in &entries {
        let Needs::Verb(verb) = needs(entry) else {
            continue;
        };
        for way in entry.ways() {
            for part in PARTS {
                let may = site
                    .roles
                    .iter()
                    .filter(|role| role.may(verb, part))
                    .cloned();
                for role in may.collect::<Vec<_>>() {
                    let cell = Cell {
                        entry,
                        way: &way,
                        verb,
                        part,
                        lock: site.held_in(part).lock.clone(),
                    };
                    cell.allowed(&site, &role, &mut fresh, &mut seen).await;
                }
            }
        }
    }
    assert!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
    assert!(seen.allowed > 0 && seen.denied > 0, "{seen:?}");
    figures(&format!(
        "authorization: cells={} denied={} allowed={} leaks={} commands to Redis for the denied={}",
        seen.denied + seen.allowed,
        seen.denied,
        seen.allowed,
        seen.wrong.len(),
        seen.commands
    ));
}

/// The locks that are held and not to be told about, in each spelling, and one beside each that does
/// not exist, with a name of the same length.
fn secrets() -> Vec<(Part, LockRef, LockRef)> {
    let mut secrets = Vec::new();
    for part in SECRET {
        let held = part.lock(&format!("canary-held-{part:?}"));
        let free = part.lock(&format!("canary-free-{part:?}"));
        if part == Part::Closed {
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

/// A lease on an open lock for each role that may have one.
async fn own_leases(site: &Site) -> Vec<(String, Lease)> {
    let mut leases = Vec::new();
    for role in &site.roles {
        let part = OPEN.into_iter().find(|part| role.may(Verb::Acquire, *part));
        if let Some(part) = part {
            let lock = part.lock(&format!("own-{}", role.name));
            let lease = site.line(role).take(&[lock]).await;
            leases.push((role.name.clone(), lease.expect("it may, and it is free")));
        }
    }
    leases
}

impl Seen {
    fn wrong(&mut self, cell: &Cell<'_>, who: &str, what: &str) {
        let (entry, way, lock) = (&cell.entry.name, cell.way, &cell.lock);
        let wrong = format!(
            "{entry} {way} {}/{} {who}: {what}",
            lock.namespace, lock.name
        );
        self.wrong.push(wrong);
    }
}

impl Cell<'_> {
    /// Asks as each role that may not, with the lease of the holder, stolen, and with its own.
    async fn denied(
        &self,
        site: &mut Site,
        own: &[(String, Lease)],
        seen: &mut Seen,
    ) -> Vec<(String, Reply)> {
        let before = site.state(&self.lock).await;
        site.overheard.commands().await;
        let held = site.held_in(self.part);
        let mut asked = Vec::new();
        for role in site
            .roles
            .iter()
            .filter(|role| !role.may(self.verb, self.part))
        {
            let theirs = own.iter().filter(|(name, _)| *name == role.name);
            let leases = [&held.lease]
                .into_iter()
                .chain(theirs.map(|(_, lease)| lease));
            for lease in leases {
                let part = OPEN.into_iter().find(|part| role.may(self.verb, *part));
                let part = part.unwrap_or(Part::Open);
                let sample = Sample {
                    lock: self.lock.clone(),
                    is_semaphore: true,
                    fencing_token: held.lease.grants[0].fencing_token,
                    others: (0..TARGETS_MOST)
                        .map(|at| part.lock(&format!("other-{at}")))
                        .collect(),
                    lease: lease.clone(),
                    ..Sample::default()
                };
                let filled = fill(self.entry, Some(self.way), &sample).bytes;
                let line = site.line(role);
                asked.push(async move { (role, line.ask(self.entry, filled).await) });
            }
        }
        let replies = join_all(asked).await;
        let replies: Vec<_> = replies
            .iter()
            .map(|(role, reply)| ((*role).clone(), reply.clone()))
            .collect();
        let commands = site.overheard.commands().await;
        seen.commands += commands.len();
        if !commands.is_empty() {
            seen.wrong(
                self,
                "all of them",
                &format!("Redis was asked: {commands:?}"),
            );
        }
        let after = site.state(&self.lock).await;
        if before != after {
            seen.wrong(self, "all of them", &format!("{before} became {after}"));
        }
        for (role, reply) in &replies {
            seen.denied += 1;
            if let Some(what) = self.is_no_denial(site, role, reply) {
                seen.wrong(self, &role.name, &what);
            }
        }
        replies
            .into_iter()
            .map(|(role, reply)| (role.name, reply))
            .collect()
    }

    /// What is wrong with the answer to somebody who may not.
    fn is_no_denial(&self, site: &Site, role: &Role, reply: &Reply) -> Option<String> {
        let got = match reply.refusal(self.entry) {
            Some(refused) => refused,
            None => return Some(format!("it is not denied: {reply:?}")),
        };
        if got != role.refusal() {
            return Some(format!("{got:?}: {reply:?}"));
        }
        told(reply, &site.hidden(role, Some(&self.lock)))
    }

    /// Asks as somebody who may: for a lock that is free, or about the one that is held.
    async fn allowed(&self, site: &Site, role: &Role, fresh: &mut Fresh, seen: &mut Seen) {
        let held = site.held_in(self.part);
        let takes = self.verb == Verb::Acquire;
        let mut sample = Sample {
            lock: held.lock.clone(),
            fencing_token: held.lease.grants[0].fencing_token,
            others: fresh.several(self.part),
            lease: held.lease.clone(),
            only_tells: true,
            ..Sample::default()
        };
        let line = site.line(role);
        if takes {
            sample.lock = fresh.lock(self.part);
        }
        let mut hidden = site.hidden(role, Some(&sample.lock));
        let reply = match takes {
            true => self.with_a_lease(&line, sample).await,
            false => {
                let filled = fill(self.entry, Some(self.way), &sample).bytes;
                let asked = String::from_utf8_lossy(&filled).into_owned();
                // Who names a lease may hear its name.
                hidden.retain(|text| !asked.contains(text.as_str()));
                Ok(line.ask(self.entry, filled).await)
            }
        };
        seen.allowed += 1;
        let wrong = match &reply {
            Ok(reply) if reply.refusal(self.entry).is_none() => told(reply, &hidden),
            Ok(reply) => Some(format!("it is refused: {reply:?}")),
            Err(reply) => Some(format!("it gets no lease: {reply:?}")),
        };
        if let Some(wrong) = wrong {
            seen.wrong(self, &role.name, &wrong);
        }
    }

    /// Asks with a lease of the caller's own on the locks that the request shows.
    async fn with_a_lease(&self, line: &Line, mut sample: Sample) -> Result<Reply, Reply> {
        let mut locks = fill(self.entry, Some(self.way), &sample).leased;
        let message = self.entry.message.name();
        if message == "HoldRelease" {
            locks = vec![sample.lock.clone()];
        }
        if locks.is_empty() {
            sample.lease = Lease::default();
        } else if self.entry.name.contains("Hold/") && message != "AttachLease" {
            return Ok(self.on_a_stream(line, sample, &locks).await);
        } else {
            sample.lease = line.take(&locks).await?;
        }
        let filled = fill(self.entry, Some(self.way), &sample).bytes;
        Ok(line.ask(self.entry, filled).await)
    }

    /// The lease is on the stream on which it is asked.
    async fn on_a_stream(&self, line: &Line, mut sample: Sample, locks: &[LockRef]) -> Reply {
        let mut stream = LeaseStream::open(line).await.expect("a stream");
        sample.lease = stream.take(locks).await;
        let filled = fill(self.entry, Some(self.way), &sample).bytes;
        stream.send_encoded(filled).await;
        Reply::told(stream.next_encoded().await.to_vec())
    }
}

/// What it tells that it should not.
fn told(reply: &Reply, hidden: &[String]) -> Option<String> {
    let told = reply.first_of(hidden);
    told.map(|text| format!("it tells {text:?}: {reply:?}"))
}
