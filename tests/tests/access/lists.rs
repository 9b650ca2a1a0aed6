//! Authorization of lists, queue positions and rejections. They contain all locks that the caller
//! may see, and nothing else.

use std::{collections::BTreeSet, time::Duration};

use leasehold_proto::v1::{
    AcquireResponse, Close, HoldAcquire, ListLocksRequest, ListLocksResponse, LockMode, LockTarget,
    hold_request::Message as Ask,
};
use leasehold_tests::{
    access::matrix::{
        api_entries::{ApiEntry, LockPath, entry},
        connection::{ACQUIRE, ACQUIRE_ALL, LIST, RoleConnection},
        fixture::{HeldLock, MatrixFixture, canaries},
        lease_stream::LeaseStream,
        raw_call::Reply,
        request_builder::{FieldValues, build_request},
        requests::{acquire_all_request, acquire_request, owner, target},
        roles::{LOCK_GROUPS, LockGroup, Permission, Role, roles},
    },
    scale::{print_figures, scale},
    status::error_reason,
};
use prost::Message as _;
use tonic::Code;

/// Returns true if the reply rejects the list request of this role.
fn refuses(role: &Role, reply: &Reply) -> bool {
    let (code, reason) = role.rejection();
    let status = reply.status();
    reply.code == code && error_reason(&status) == Some(reason) && reply.messages.is_empty()
}

#[tokio::test]
async fn a_list_shows_what_its_caller_may_find() {
    let mut fixture = MatrixFixture::start(roles(scale() >= 1.0)).await;
    let list = entry("InspectionService.ListLocks");
    let (mut cells, mut refused, mut shown) = (0, 0, 0);
    for way in list.lock_paths() {
        for part in LOCK_GROUPS {
            let held = fixture.held_in(part).clone();
            let twin = HeldLock {
                lock: part.lock(&format!("canary-free-{part:?}")),
                ..held.clone()
            };
            for role in fixture.roles.clone() {
                fixture.recorder.take_commands().await;
                let reply = list_with_filter(&fixture, &list, &way, &role, &held).await;
                cells += 1;
                let about = format!("{way} {part:?} {}: {reply:?}", role.name);
                let leak = reply
                    .first_occurring(&fixture.hidden_texts(&role, None))
                    .cloned();
                assert_eq!(leak, None, "{about}");
                if !role.has_permission_anywhere(Permission::List) {
                    assert!(refuses(&role, &reply), "{about}");
                    let commands = fixture.recorder.take_commands().await;
                    assert!(commands.is_empty(), "{about} {commands:?}");
                    refused += 1;
                    continue;
                }
                let found = is_allowed(&role, &reply, &about);
                let finds = role.has_permission(Permission::List, part)
                    && (way.last_field() != "owner_id"
                        || role.has_permission(Permission::Observe, part));
                if way.last_field() != "page_token" {
                    assert_eq!(found.contains(&held.lock.name), finds, "{about}");
                }
                shown += found.len();
                if !finds && way.last_field() == "name_prefix" {
                    let other = list_with_filter(&fixture, &list, &way, &role, &twin).await;
                    assert_eq!(other.text(), reply.text(), "{about}");
                }
            }
        }
    }
    assert!(refused > 0 && shown > 0);
    print_figures(&format!(
        "authorization: lists: cells={cells} refused={refused} locks shown={shown} leaks=0"
    ));
}

/// Lists locks with a filter that matches the held lock.
async fn list_with_filter(
    fixture: &MatrixFixture,
    list: &ApiEntry,
    way: &LockPath,
    role: &Role,
    held: &HeldLock,
) -> Reply {
    let text = match way.last_field() {
        "namespace" => held.lock.namespace.clone(),
        "name_prefix" => held.lock.name.clone(),
        "owner_id" => canaries(held.part).swap_remove(0),
        "page_token" => token_of_another(fixture).await,
        other => panic!("{other}: how does one find a lock by it?"),
    };
    let sample = FieldValues {
        text,
        ..FieldValues::default()
    };
    let filled = build_request(list, Some(way), &sample).bytes;
    fixture.connection_of(role).call_entry(list, filled).await
}

async fn token_of_another(fixture: &MatrixFixture) -> String {
    let first = ListLocksRequest {
        page_size: 1,
        ..ListLocksRequest::default()
    };
    let first: Result<ListLocksResponse, _> = fixture.observer().call(LIST, &first).await;
    let token = first.expect("root may").next_page_token;
    assert!(!token.is_empty(), "four locks are no one page of one");
    token
}

/// Asserts that the role may see each lock of a page, and returns the names of the locks.
fn is_allowed(role: &Role, reply: &Reply, about: &str) -> BTreeSet<String> {
    assert_eq!(reply.code, Code::Ok, "{about}");
    let page = ListLocksResponse::decode(reply.messages[0].as_slice()).expect("a page");
    let mut names = BTreeSet::new();
    for lock in page.locks {
        let target = lock.target.expect("which");
        let part = LockGroup::group_of(&target).expect("no other locks are held");
        assert!(role.has_permission(Permission::List, part), "{about}");
        let observes = role.has_permission(Permission::Observe, part);
        assert_eq!(lock.holders.is_empty(), !observes, "{about}");
        names.insert(target.name);
    }
    names
}

#[tokio::test]
async fn a_caller_without_observe_learns_that_a_lock_is_held_but_not_its_holder() {
    let fixture = MatrixFixture::start(roles(scale() >= 1.0)).await;
    let (mut veiled, mut seen) = (0, 0);
    for part in LOCK_GROUPS {
        let held = fixture.held_in(part).lock.clone();
        let semaphore = LockTarget {
            mode: LockMode::Semaphore.into(),
            ..target(&held)
        };
        for role in fixture
            .roles
            .iter()
            .filter(|role| role.has_permission(Permission::Acquire, part))
        {
            let line = fixture.connection_of(role);
            let one = acquire_request(semaphore.clone(), owner("matrix"));
            let held_for_one: Result<AcquireResponse, _> = line.call(ACQUIRE, &one).await;
            let mut several = acquire_all_request(&[part.lock("free"), held.clone()]);
            several.targets[1] = semaphore.clone();
            let held_for_all: Result<AcquireResponse, _> = line.call(ACQUIRE_ALL, &several).await;
            let queued = first_queue_position(&line, &semaphore).await;
            let replies = [
                held_for_one.expect_err("it is held"),
                held_for_all.expect_err("it is held"),
                queued,
            ];
            for reply in replies {
                let about = format!("{part:?} {}: {reply:?}", role.name);
                let leak = reply
                    .first_occurring(&fixture.hidden_texts(role, Some(&held)))
                    .cloned();
                assert_eq!(leak, None, "{about}");
                let holder = [format!("canary-owner-{part:?}")];
                let is_seen = reply.first_occurring(&holder).is_some();
                assert_eq!(
                    is_seen,
                    role.has_permission(Permission::Observe, part),
                    "{about}"
                );
                *(if is_seen { &mut seen } else { &mut veiled }) += 1;
            }
        }
    }
    assert!(veiled > 0 && seen > 0);
    print_figures(&format!(
        "authorization: held locks asked for: veiled={veiled} seen={seen} leaks=0"
    ));
}

/// Returns the first message with the queue position of a waiting call.
async fn first_queue_position(line: &RoleConnection, semaphore: &LockTarget) -> Reply {
    let mut stream = LeaseStream::open(line).await.expect("a stream");
    let mut request = acquire_request(semaphore.clone(), owner("matrix"));
    request.wait_timeout = Duration::from_secs(60).try_into().ok();
    let waits = Ask::Acquire(HoldAcquire {
        call_id: 1,
        attach_number: 1,
        request: Some(request),
        ..HoldAcquire::default()
    });
    stream.send(waits).await;
    let reply = Reply::from_message(stream.next_encoded().await.to_vec());
    // An open stream would keep its queue position, and later callers would wait behind it.
    stream.send(Ask::Close(Close {})).await;
    reply
}

/// All parts have the same shape, whether secret or not.
#[test]
fn each_lock_is_in_one_group() {
    for part in LOCK_GROUPS {
        assert_eq!(LockGroup::group_of(&target(&part.lock("a"))), Some(part));
    }
}
