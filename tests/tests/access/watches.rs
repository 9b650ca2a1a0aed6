//! What those who watch are told: of the locks that they may list, and by whom only where they may
//! observe.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use leasehold_proto::v1::{AcquireResponse, LockRef, WatchLocksResponse};
use leasehold_tests::{
    matrix::{
        ask::{acquire, owner, target},
        fill::{Sample, fill},
        line::ACQUIRE,
        roles::{PARTS, Part, Role, Verb, roles},
        site::Site,
        walk::{Entry, Way, entry},
        wire::{Reply, open},
    },
    scale::{figures, scale},
    status::reason,
    until::until,
};
use prost::Message as _;
use tokio::{sync::mpsc, task::JoinSet};

/// Whether the answer is that to somebody who may list nothing.
fn refuses(role: &Role, reply: &Reply) -> bool {
    let (code, why) = role.refusal();
    let status = reply.status();
    reply.code == code && reason(&status) == Some(why) && reply.messages.is_empty()
}

/// Somebody who watches, and what was told so far.
struct Watcher {
    role: Role,
    about: String,
    /// The locks of which parts it shall hear of.
    expects: Vec<Part>,
    heard: Arc<Mutex<Vec<WatchLocksResponse>>>,
}

impl Watcher {
    fn heard(&self) -> Vec<WatchLocksResponse> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.clone()
    }

    /// Of which parts it has heard of a lock of such a name.
    fn parts(&self, name: &str) -> BTreeSet<String> {
        let heard = self.heard().into_iter();
        let locks = heard.filter_map(|event| event.subject?.target);
        let locks = locks.filter(|lock| lock.name.contains(name));
        locks.map(|lock| format!("{:?}", Part::of(&lock))).collect()
    }

    fn expected(&self) -> BTreeSet<String> {
        let parts = self.expects.iter();
        parts.map(|part| format!("{:?}", Some(part))).collect()
    }
}

#[tokio::test]
async fn a_watch_tells_what_its_caller_may_find() {
    let site = Site::start(roles(scale() >= 1.0)).await;
    let watch = entry("InspectionService.WatchLocks");
    let mut reading = JoinSet::new();
    let (mut watchers, mut refused) = (Vec::new(), 0);
    for role in &site.roles {
        for (way, text) in filters(&watch) {
            let about = format!("{} {:?} {text}", role.name, way.as_ref().map(Way::field));
            match watching(&site, (&watch, way.as_ref()), role, &text, &mut reading).await {
                Ok(heard) => watchers.push(Watcher {
                    role: role.clone(),
                    about,
                    expects: expected(role, way.as_ref(), &text),
                    heard,
                }),
                Err(reply) => {
                    assert!(!role.may_somewhere(Verb::List), "{about}: {reply:?}");
                    assert!(refuses(role, &reply), "{about}: {reply:?}");
                    refused += 1;
                }
            }
        }
    }
    let all_hear = |name: &str| {
        let mut hear = watchers.iter();
        hear.all(|watcher| watcher.parts(name).is_superset(&watcher.expected()))
    };
    let mut probes = 0;
    until("the broker beside tells what it does", async || {
        probes += 1;
        happens(&site, &format!("canary-probe-{probes}-")).await;
        all_hear("canary-probe").then_some(())
    })
    .await;
    happens(&site, "canary-event-").await;
    happens(&site, "canary-marker-").await;
    until("everybody has heard the last", async || {
        all_hear("canary-marker").then_some(())
    })
    .await;
    let mut events = 0;
    for watcher in &watchers {
        assert_eq!(
            watcher.parts("canary-event"),
            watcher.expected(),
            "{}",
            watcher.about
        );
        for event in watcher.heard() {
            events += usize::from(event.subject.is_some());
            shows_no_more(&site, watcher, &event);
        }
    }
    assert!(refused > 0 && events > 0);
    figures(&format!(
        "authorization: watches: watchers={} refused={refused} events={events} leaks=0",
        watchers.len()
    ));
}

/// No filter, and every text that the ways of a watch can have.
fn filters(watch: &Entry) -> Vec<(Option<Way>, String)> {
    let mut filters = vec![(None, String::new())];
    for way in watch.ways() {
        let texts: &[&str] = match way.field() {
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

fn expected(role: &Role, way: Option<&Way>, text: &str) -> Vec<Part> {
    let passes = |part: &Part| {
        let lock = part.lock("canary-");
        match way.map(Way::field) {
            Some("namespace") => lock.namespace == text,
            Some("name_prefix") => lock.name.starts_with(text),
            Some(_) | None => true,
        }
    };
    let parts = PARTS.into_iter().filter(|part| role.may(Verb::List, *part));
    parts.filter(passes).collect()
}

async fn watching(
    site: &Site,
    (watch, way): (&Entry, Option<&Way>),
    role: &Role,
    text: &str,
    reading: &mut JoinSet<()>,
) -> Result<Arc<Mutex<Vec<WatchLocksResponse>>>, Reply> {
    let sample = Sample {
        text: text.to_owned(),
        ..Sample::default()
    };
    let filled = fill(watch, way, &sample).bytes;
    let line = site.line(role);
    let (asks, asked) = mpsc::channel(1);
    asks.send(filled.clone()).await.expect("there is room");
    drop(asks);
    let opened = open(
        &line.api,
        &watch.path(),
        line.authorization.as_deref(),
        asked,
    )
    .await;
    let Ok((mut told, _)) = opened else {
        // Once more, for all that comes back.
        return Err(line.ask(watch, filled).await);
    };
    let heard = Arc::<Mutex<Vec<WatchLocksResponse>>>::default();
    let keeps = Arc::clone(&heard);
    reading.spawn(async move {
        while let Ok(Some(event)) = told.message().await {
            let event = WatchLocksResponse::decode(event).expect("an event");
            keeps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event);
        }
    });
    Ok(heard)
}

/// One grant in each part.
async fn happens(site: &Site, name: &str) {
    for part in PARTS {
        let lock: LockRef = part.lock(&format!("{name}{part:?}"));
        let request = acquire(target(&lock), owner(&format!("canary-owner-{part:?}")));
        let taken: Result<AcquireResponse, _> = site.aside().call(ACQUIRE, &request).await;
        taken.expect("it is free");
    }
}

fn shows_no_more(site: &Site, watcher: &Watcher, event: &WatchLocksResponse) {
    let about = format!("{}: {event:?}", watcher.about);
    let reply = Reply::told(event.encode_to_vec());
    let leak = reply.first_of(&site.hidden(&watcher.role, None)).cloned();
    assert_eq!(leak, None, "{about}");
    let Some(subject) = &event.subject else {
        return;
    };
    let part = subject
        .target
        .as_ref()
        .and_then(Part::of)
        .expect("a lock of the tests");
    assert!(watcher.expects.contains(&part), "{about}");
    let observes = watcher.role.may(Verb::Observe, part);
    assert_eq!(subject.owner.is_some(), observes, "{about}");
    assert_eq!(!subject.lease_id.is_empty(), observes, "{about}");
}
