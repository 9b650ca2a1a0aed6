//! Events of `WatchLocks`. A watcher receives events of the locks that it may list, with holders
//! only of locks that it may observe.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use leasehold_proto::v1::{AcquireResponse, LockRef, WatchLocksResponse};
use leasehold_tests::{
    access::matrix::{
        api_entries::{ApiEntry, LockPath, entry},
        connection::ACQUIRE,
        fixture::MatrixFixture,
        raw_call::{Reply, open_call},
        request_builder::{FieldValues, build_request},
        requests::{acquire_request, owner, target},
        roles::{LOCK_GROUPS, LockGroup, Permission, Role, roles},
    },
    scale::{print_figures, scale},
    status::error_reason,
    until::until,
};
use prost::Message as _;
use tokio::{sync::mpsc, task::JoinSet};

/// Returns true if the reply rejects the list request of this role.
fn refuses(role: &Role, reply: &Reply) -> bool {
    let (code, reason) = role.rejection();
    let status = reply.status();
    reply.code == code && error_reason(&status) == Some(reason) && reply.messages.is_empty()
}

/// A watcher, and the events that it has received.
struct Watcher {
    role: Role,
    about: String,
    /// Parts of the site whose events the watcher must receive.
    expects: Vec<LockGroup>,
    heard: Arc<Mutex<Vec<WatchLocksResponse>>>,
}

impl Watcher {
    fn received(&self) -> Vec<WatchLocksResponse> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.clone()
    }

    /// Returns the parts with an event for a lock whose name contains `name`.
    fn parts_with_events(&self, name: &str) -> BTreeSet<String> {
        let heard = self.received().into_iter();
        let locks = heard.filter_map(|event| event.subject?.target);
        let locks = locks.filter(|lock| lock.name.contains(name));
        locks
            .map(|lock| format!("{:?}", LockGroup::group_of(&lock)))
            .collect()
    }

    fn expected(&self) -> BTreeSet<String> {
        let parts = self.expects.iter();
        parts.map(|part| format!("{:?}", Some(part))).collect()
    }
}

#[tokio::test]
async fn a_watch_sends_only_events_that_its_caller_may_list() {
    let fixture = MatrixFixture::start(roles(scale() >= 1.0)).await;
    let watch = entry("InspectionService.WatchLocks");
    let mut reading = JoinSet::new();
    let (mut watchers, mut refused) = (Vec::new(), 0);
    for role in &fixture.roles {
        for (way, text) in filters(&watch) {
            let about = format!(
                "{} {:?} {text}",
                role.name,
                way.as_ref().map(LockPath::last_field)
            );
            match watching(&fixture, (&watch, way.as_ref()), role, &text, &mut reading).await {
                Ok(heard) => watchers.push(Watcher {
                    role: role.clone(),
                    about,
                    expects: expected(role, way.as_ref(), &text),
                    heard,
                }),
                Err(reply) => {
                    assert!(
                        !role.has_permission_anywhere(Permission::List),
                        "{about}: {reply:?}"
                    );
                    assert!(refuses(role, &reply), "{about}: {reply:?}");
                    refused += 1;
                }
            }
        }
    }
    let all_hear = |name: &str| {
        let mut hear = watchers.iter();
        hear.all(|watcher| {
            watcher
                .parts_with_events(name)
                .is_superset(&watcher.expected())
        })
    };
    let mut probes = 0;
    until("the broker beside tells what it does", async || {
        probes += 1;
        acquire_in_each_part(&fixture, &format!("canary-probe-{probes}-")).await;
        all_hear("canary-probe").then_some(())
    })
    .await;
    acquire_in_each_part(&fixture, "canary-event-").await;
    acquire_in_each_part(&fixture, "canary-marker-").await;
    until("everybody has heard the last", async || {
        all_hear("canary-marker").then_some(())
    })
    .await;
    let mut events = 0;
    for watcher in &watchers {
        assert_eq!(
            watcher.parts_with_events("canary-event"),
            watcher.expected(),
            "{}",
            watcher.about
        );
        for event in watcher.received() {
            events += usize::from(event.subject.is_some());
            assert_reveals_no_more(&fixture, watcher, &event);
        }
    }
    assert!(refused > 0 && events > 0);
    print_figures(&format!(
        "authorization: watches: watchers={} refused={refused} events={events} leaks=0",
        watchers.len()
    ));
}

/// Returns no filter, and every filter value for each field of a watch.
fn filters(watch: &ApiEntry) -> Vec<(Option<LockPath>, String)> {
    let mut filters = vec![(None, String::new())];
    for way in watch.lock_paths() {
        let texts: &[&str] = match way.last_field() {
            "namespace" => &["vault", "default", "open"],
            "name_prefix" => &["canary-", "closed/canary-", "shared/"],
            "resume_token" => &["1"],
            other => panic!("{other}: how does one watch a lock by it?"),
        };
        let texts = texts.iter().map(|text| (*text).to_owned());
        filters.extend(texts.map(|text| (Some(way.clone()), text)));
    }
    filters
}

fn expected(role: &Role, way: Option<&LockPath>, text: &str) -> Vec<LockGroup> {
    let passes = |part: &LockGroup| {
        let lock = part.lock("canary-");
        match way.map(LockPath::last_field) {
            Some("namespace") => lock.namespace == text,
            Some("name_prefix") => lock.name.starts_with(text),
            Some(_) | None => true,
        }
    };
    let parts = LOCK_GROUPS
        .into_iter()
        .filter(|part| role.has_permission(Permission::List, *part));
    parts.filter(passes).collect()
}

async fn watching(
    fixture: &MatrixFixture,
    (watch, way): (&ApiEntry, Option<&LockPath>),
    role: &Role,
    text: &str,
    reading: &mut JoinSet<()>,
) -> Result<Arc<Mutex<Vec<WatchLocksResponse>>>, Reply> {
    let sample = FieldValues {
        text: text.to_owned(),
        ..FieldValues::default()
    };
    let filled = build_request(watch, way, &sample).bytes;
    let line = fixture.connection_of(role);
    let (requests, outgoing) = mpsc::channel(1);
    requests.send(filled.clone()).await.expect("there is room");
    drop(requests);
    let opened = open_call(
        &line.api,
        &watch.path(),
        line.authorization.as_deref(),
        outgoing,
    )
    .await;
    let Ok((mut events, _)) = opened else {
        // The request is repeated to obtain the complete reply.
        return Err(line.call_entry(watch, filled).await);
    };
    let heard = Arc::<Mutex<Vec<WatchLocksResponse>>>::default();
    let keeps = Arc::clone(&heard);
    reading.spawn(async move {
        while let Ok(Some(event)) = events.message().await {
            let event = WatchLocksResponse::decode(event).expect("an event");
            keeps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event);
        }
    });
    Ok(heard)
}

/// Acquires one lock in each part.
async fn acquire_in_each_part(fixture: &MatrixFixture, name: &str) {
    for part in LOCK_GROUPS {
        let lock: LockRef = part.lock(&format!("{name}{part:?}"));
        let request = acquire_request(target(&lock), owner(&format!("canary-owner-{part:?}")));
        let result: Result<AcquireResponse, _> = fixture.observer().call(ACQUIRE, &request).await;
        result.expect("it is free");
    }
}

fn assert_reveals_no_more(fixture: &MatrixFixture, watcher: &Watcher, event: &WatchLocksResponse) {
    let about = format!("{}: {event:?}", watcher.about);
    let reply = Reply::from_message(event.encode_to_vec());
    let leak = reply
        .first_occurring(&fixture.hidden_texts(&watcher.role, None))
        .cloned();
    assert_eq!(leak, None, "{about}");
    let Some(subject) = &event.subject else {
        return;
    };
    let part = subject
        .target
        .as_ref()
        .and_then(LockGroup::group_of)
        .expect("a lock of the tests");
    assert!(watcher.expects.contains(&part), "{about}");
    let observes = watcher.role.has_permission(Permission::Observe, part);
    assert_eq!(subject.owner.is_some(), observes, "{about}");
    assert_eq!(!subject.lease_id.is_empty(), observes, "{about}");
}
