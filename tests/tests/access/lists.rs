//! What those who look are shown: lists, places in line and refusals tell nobody more than the rules
//! allow, and those who may see see all of it.

use std::{collections::BTreeSet, time::Duration};

use leasehold_proto::v1::{
    AcquireResponse, Close, HoldAcquire, ListLocksRequest, ListLocksResponse, LockMode, LockTarget,
    hold_request::Message as Ask,
};
use leasehold_tests::{
    matrix::{
        ask::{acquire, acquire_all, owner, target},
        fill::{Sample, fill},
        line::{ACQUIRE, ACQUIRE_ALL, LIST, Line},
        roles::{PARTS, Part, Role, Verb, roles},
        site::{Held, Site, canaries},
        stream::LeaseStream,
        walk::{Entry, Way, entry},
        wire::Reply,
    },
    scale::{figures, scale},
    status::reason,
};
use prost::Message as _;
use tonic::Code;

/// Whether the answer is that to somebody who may list nothing.
fn refuses(role: &Role, reply: &Reply) -> bool {
    let (code, why) = role.refusal();
    let status = reply.status();
    reply.code == code && reason(&status) == Some(why) && reply.messages.is_empty()
}

#[tokio::test]
async fn a_list_shows_what_its_caller_may_find() {
    let mut site = Site::start(roles(scale() >= 1.0)).await;
    let list = entry("InspectionService.ListLocks");
    let (mut cells, mut refused, mut shown) = (0, 0, 0);
    for way in list.ways() {
        for part in PARTS {
            let held = site.held_in(part).clone();
            let twin = Held {
                lock: part.lock(&format!("canary-free-{part:?}")),
                ..held.clone()
            };
            for role in site.roles.clone() {
                site.overheard.commands().await;
                let reply = asked(&site, &list, &way, &role, &held).await;
                cells += 1;
                let about = format!("{way} {part:?} {}: {reply:?}", role.name);
                let leak = reply.first_of(&site.hidden(&role, None)).cloned();
                assert_eq!(leak, None, "{about}");
                if !role.may_somewhere(Verb::List) {
                    assert!(refuses(&role, &reply), "{about}");
                    let commands = site.overheard.commands().await;
                    assert!(commands.is_empty(), "{about} {commands:?}");
                    refused += 1;
                    continue;
                }
                let found = is_allowed(&role, &reply, &about);
                let finds = role.may(Verb::List, part)
                    && (way.field() != "owner_id" || role.may(Verb::Observe, part));
                if way.field() != "page_token" {
                    assert_eq!(found.contains(&held.lock.name), finds, "{about}");
                }
                shown += found.len();
                if !finds && way.field() == "name_prefix" {
                    let other = asked(&site, &list, &way, &role, &twin).await;
                    assert_eq!(other.text(), reply.text(), "{about}");
                }
            }
        }
    }
    assert!(refused > 0 && shown > 0);
    figures(&format!(
        "authorization: lists: cells={cells} refused={refused} locks shown={shown} leaks=0"
    ));
}

/// Lists, with the text that finds that lock where the way ends.
async fn asked(site: &Site, list: &Entry, way: &Way, role: &Role, held: &Held) -> Reply {
    let text = match way.field() {
        "namespace" => held.lock.namespace.clone(),
        "name_prefix" => held.lock.name.clone(),
        "owner_id" => canaries(held.part).swap_remove(0),
        "page_token" => token_of_another(site).await,
        other => panic!("{other}: how does one find a lock by it?"),
    };
    let sample = Sample {
        text,
        ..Sample::default()
    };
    let filled = fill(list, Some(way), &sample).bytes;
    site.line(role).ask(list, filled).await
}

async fn token_of_another(site: &Site) -> String {
    let first = ListLocksRequest {
        page_size: 1,
        ..ListLocksRequest::default()
    };
    let first: Result<ListLocksResponse, _> = site.aside().call(LIST, &first).await;
    let token = first.expect("root may").next_page_token;
    assert!(!token.is_empty(), "four locks are no one page of one");
    token
}

/// Checks each lock of a page; their names.
fn is_allowed(role: &Role, reply: &Reply, about: &str) -> BTreeSet<String> {
    assert_eq!(reply.code, Code::Ok, "{about}");
    let page = ListLocksResponse::decode(reply.messages[0].as_slice()).expect("a page");
    let mut names = BTreeSet::new();
    for lock in page.locks {
        let target = lock.target.expect("which");
        let part = Part::of(&target).expect("no other locks are held");
        assert!(role.may(Verb::List, part), "{about}");
        let observes = role.may(Verb::Observe, part);
        assert_eq!(lock.holders.is_empty(), !observes, "{about}");
        names.insert(target.name);
    }
    names
}

#[tokio::test]
async fn who_may_not_observe_hears_that_a_lock_is_held_and_not_by_whom() {
    let site = Site::start(roles(scale() >= 1.0)).await;
    let (mut veiled, mut seen) = (0, 0);
    for part in PARTS {
        let held = site.held_in(part).lock.clone();
        let semaphore = LockTarget {
            mode: LockMode::Semaphore.into(),
            ..target(&held)
        };
        for role in site
            .roles
            .iter()
            .filter(|role| role.may(Verb::Acquire, part))
        {
            let line = site.line(role);
            let one = acquire(semaphore.clone(), owner("matrix"));
            let held_for_one: Result<AcquireResponse, _> = line.call(ACQUIRE, &one).await;
            let mut several = acquire_all(&[part.lock("free"), held.clone()]);
            several.targets[1] = semaphore.clone();
            let held_for_all: Result<AcquireResponse, _> = line.call(ACQUIRE_ALL, &several).await;
            let queued = in_line(&line, &semaphore).await;
            let replies = [
                held_for_one.expect_err("it is held"),
                held_for_all.expect_err("it is held"),
                queued,
            ];
            for reply in replies {
                let about = format!("{part:?} {}: {reply:?}", role.name);
                let leak = reply.first_of(&site.hidden(role, Some(&held))).cloned();
                assert_eq!(leak, None, "{about}");
                let holder = [format!("canary-owner-{part:?}")];
                let is_seen = reply.first_of(&holder).is_some();
                assert_eq!(is_seen, role.may(Verb::Observe, part), "{about}");
                *(if is_seen { &mut seen } else { &mut veiled }) += 1;
            }
        }
    }
    assert!(veiled > 0 && seen > 0);
    figures(&format!(
        "authorization: held locks asked for: veiled={veiled} seen={seen} leaks=0"
    ));
}

/// The place in line of somebody who waits.
async fn in_line(line: &Line, semaphore: &LockTarget) -> Reply {
    let mut stream = LeaseStream::open(line).await.expect("a stream");
    let mut request = acquire(semaphore.clone(), owner("matrix"));
    request.wait_timeout = Duration::from_secs(60).try_into().ok();
    let waits = Ask::Acquire(HoldAcquire {
        call_id: 1,
        attach_number: 1,
        request: Some(request),
        ..HoldAcquire::default()
    });
    stream.send(waits).await;
    let told = Reply::told(stream.next_encoded().await.to_vec());
    // Otherwise those who come later wait behind it.
    stream.send(Ask::Close(Close {})).await;
    told
}

/// Secret or not, the parts have the same shape.
#[test]
fn each_lock_is_of_one_part() {
    for part in PARTS {
        assert_eq!(Part::of(&target(&part.lock("a"))), Some(part));
    }
}
