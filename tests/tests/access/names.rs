//! Names that look alike: what the store takes for one lock is judged as one, and what it keeps apart
//! is judged apart. And what is told without a name: pages that go on, reflection, health.

use leasehold_proto::v1::{
    ErrorReason, ListLocksRequest, ListLocksResponse, LockRef, WatchLocksRequest,
};
use leasehold_tests::{
    callers::Caller,
    client::channel,
    health::{LIVENESS, READINESS, check},
    matrix::{
        line::{LIST, Line},
        roles::{PARTS, Part, Role, Shows, VERBS, Verb, root},
        site::Site,
        wire::{Listens, exchange},
    },
    scale::figures,
    status::reason,
};
use tonic::Code;

const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// What becomes of somebody who may use `shared/*` in the namespace `default`, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// It may.
    Allowed,
    /// It may not.
    Denied,
    /// Nobody may: it is no name.
    NoName,
}

const NAMES: &[(&str, &str, Judged)] = &[
    ("", "shared/a", Judged::Allowed),
    ("default", "shared/a", Judged::Allowed),
    ("", "shared/", Judged::Allowed),
    ("", "shared/a ", Judged::Allowed),
    ("", "shared/../closed/a", Judged::Allowed),
    ("", "shared//a", Judged::Allowed),
    ("", "shared/A", Judged::Allowed),
    ("", "shared/{a}", Judged::Allowed),
    ("", "shared/%7Ba%7D", Judged::Allowed),
    ("", "shared/é", Judged::Allowed),
    ("", "shared/e\u{301}", Judged::Allowed),
    ("", "shared/*", Judged::Allowed),
    ("", "shared", Judged::Denied),
    ("", "shared\\a", Judged::Denied),
    ("", "Shared/a", Judged::Denied),
    ("", "SHARED/a", Judged::Denied),
    ("", " shared/a", Judged::Denied),
    ("", "/shared/a", Judged::Denied),
    ("", "./shared/a", Judged::Denied),
    ("", "xshared/a", Judged::Denied),
    ("", "closed/.././shared/a", Judged::Denied),
    ("", "closed/shared/a", Judged::Denied),
    ("", "default:shared/a", Judged::Denied),
    ("", "default/shared/a", Judged::Denied),
    ("", "{default:shared/a}", Judged::Denied),
    ("", "%73hared/a", Judged::Denied),
    ("", "ſhared/a", Judged::Denied),
    ("", "ｓhared/a", Judged::Denied),
    ("", "\u{200b}shared/a", Judged::Denied),
    ("", "*", Judged::Denied),
    ("", "shared%2Fa", Judged::Denied),
    ("open", "shared/a", Judged::Denied),
    ("default-", "shared/a", Judged::Denied),
    ("-", "shared/a", Judged::Denied),
    ("DEFAULT", "shared/a", Judged::NoName),
    (" default", "shared/a", Judged::NoName),
    ("default ", "shared/a", Judged::NoName),
    (" ", "shared/a", Judged::NoName),
    ("default/shared", "a", Judged::NoName),
    ("default:shared", "a", Judged::NoName),
    ("*", "shared/a", Judged::NoName),
    ("", "shared/\n", Judged::NoName),
    ("", "shared/a\0", Judged::NoName),
    ("", "\tshared/a", Judged::NoName),
    ("", "", Judged::NoName),
];

fn people() -> Vec<Role> {
    vec![
        root(),
        Role::new("named", Shows::Token, vec![(Part::Shared, VERBS.to_vec())]),
        Role::new(
            "finder",
            Shows::Token,
            vec![(Part::Shared, vec![Verb::List])],
        ),
    ]
}

async fn seen(line: &Line, lock: &LockRef) -> Option<LockRef> {
    let target = line.look(lock).await.ok()?.target?;
    Some(LockRef {
        namespace: target.namespace,
        name: target.name,
    })
}

#[tokio::test]
async fn what_the_store_takes_for_one_lock_is_judged_as_one() {
    let mut site = Site::start(people()).await;
    let line = site.line(&site.roles[1]);
    let mut held: Vec<LockRef> = Vec::new();
    for (namespace, name, judged) in NAMES {
        let lock = LockRef {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
        };
        let about = format!("{lock:?}");
        site.overheard.commands().await;
        let taken = line.take(std::slice::from_ref(&lock)).await;
        let commands = site.overheard.commands().await;
        let why = taken
            .as_ref()
            .err()
            .and_then(|reply| reason(&reply.status()));
        assert_eq!(why.is_some(), taken.is_err(), "{about}: {taken:?}");
        // What root finds under that name says which lock the store takes it for.
        let is_held = seen(site.aside(), &lock).await;
        match judged {
            Judged::Allowed => {
                let stored = is_held.expect("somebody holds it now");
                let again = held.contains(&stored);
                assert_eq!(why, again.then_some(ErrorReason::LockHeld), "{about}");
                assert!(stored.namespace == "default", "{about}: {stored:?}");
                assert!(stored.name.starts_with("shared/"), "{about}: {stored:?}");
                assert!(seen(&line, &lock).await.is_some(), "{about}");
                held.push(stored);
            }
            Judged::Denied => {
                assert_eq!(why, Some(ErrorReason::PermissionDenied), "{about}");
                assert_eq!(is_held, None, "{about}: no lock that it holds");
                assert!(commands.is_empty(), "{about}: {commands:?}");
            }
            Judged::NoName => {
                assert_eq!(why, Some(ErrorReason::InvalidField), "{about}");
                assert!(commands.is_empty(), "{about}: {commands:?}");
            }
        }
    }
    figures(&format!(
        "authorization: names: {} spellings, {} locks",
        NAMES.len(),
        held.len()
    ));
}

#[tokio::test]
async fn a_page_that_goes_on_is_its_filters_and_tells_no_name() {
    let site = Site::start(people()).await;
    let page = async |line: &Line, request: &ListLocksRequest| {
        let page: Result<ListLocksResponse, _> = line.call(LIST, request).await;
        page
    };
    let first = ListLocksRequest {
        page_size: 1,
        ..ListLocksRequest::default()
    };
    let token = page(site.aside(), &first).await.expect("root may");
    let token = token.next_page_token;
    assert!(!token.is_empty(), "there are {} locks", PARTS.len());
    // Another caller may go on with it, and finds what it may.
    let line = site.line(&site.roles[2]);
    let goes_on = ListLocksRequest {
        page_token: token.clone(),
        ..ListLocksRequest::default()
    };
    let found = page(&line, &goes_on).await.expect("it may list");
    let shared = Part::Shared.lock("");
    for lock in found.locks {
        let name = lock.target.expect("which").name;
        assert!(name.starts_with(&shared.name), "{name}");
    }
    for (namespace, name_prefix, owner_id) in [
        ("vault", "", ""),
        ("", "closed/", ""),
        ("", "", "canary-owner-Vault"),
        ("default", "shared/", ""),
    ] {
        let other = ListLocksRequest {
            namespace: namespace.to_owned(),
            name_prefix: name_prefix.to_owned(),
            owner_id: owner_id.to_owned(),
            ..goes_on.clone()
        };
        for line in [&line, site.aside()] {
            let refused = page(line, &other).await.expect_err("another filter");
            let why = reason(&refused.status());
            assert_eq!(why, Some(ErrorReason::InvalidField), "{refused:?}");
            assert_eq!(refused.code, Code::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn without_a_credential_there_is_health_and_nothing_else() {
    let site = Site::start(people()).await;
    let nobody = Caller::new(site.plain.addr(), site.plain.admin(), None);
    for listener in [site.plain.addr(), site.plain.admin()] {
        for name in READINESS.into_iter().chain([LIVENESS]) {
            check(listener, name).await.expect("health answers anybody");
        }
    }
    let all = WatchLocksRequest::default();
    let watch = nobody.looks.clone().watch_locks(all).await;
    let refused = watch.expect_err("nobody may watch");
    assert_eq!(reason(&refused), Some(ErrorReason::Unauthenticated));
    let api = channel(site.plain.addr());
    for path in REFLECTION {
        let call = (Vec::new(), Listens::ToTheFirst);
        let reply = exchange(&api, path, None, call).await;
        assert_eq!(reply.code, Code::Unauthenticated, "{path}: {reply:?}");
        assert!(reply.messages.is_empty(), "{path}: {reply:?}");
    }
}
