//! Similar lock names, which authorization and the store must distinguish in the same way, and
//! requests without a name: page tokens, reflection, health checks.

use leasehold_proto::v1::{
    ErrorReason, ListLocksRequest, ListLocksResponse, LockRef, WatchLocksRequest,
};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        matrix::{
            connection::{LIST, RoleConnection},
            fixture::MatrixFixture,
            raw_call::{ReplyMode, call_method},
            roles::{
                CredentialKind, LOCK_GROUPS, LockGroup, PERMISSIONS, Permission, Role, root_role,
            },
        },
    },
    client::unary::channel,
    net::health::{LIVENESS, READINESS, check},
    scale::print_figures,
    status::error_reason,
};
use tonic::Code;

const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Result for a caller that may use `shared/*` in the namespace `default`, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedResult {
    Allowed,
    Denied,
    /// Invalid for every caller, because the name is malformed.
    NoName,
}

const NAMES: &[(&str, &str, ExpectedResult)] = &[
    ("", "shared/a", ExpectedResult::Allowed),
    ("default", "shared/a", ExpectedResult::Allowed),
    ("", "shared/", ExpectedResult::Allowed),
    ("", "shared/a ", ExpectedResult::Allowed),
    ("", "shared/../closed/a", ExpectedResult::Allowed),
    ("", "shared//a", ExpectedResult::Allowed),
    ("", "shared/A", ExpectedResult::Allowed),
    ("", "shared/{a}", ExpectedResult::Allowed),
    ("", "shared/%7Ba%7D", ExpectedResult::Allowed),
    ("", "shared/é", ExpectedResult::Allowed),
    ("", "shared/e\u{301}", ExpectedResult::Allowed),
    ("", "shared/*", ExpectedResult::Allowed),
    ("", "shared", ExpectedResult::Denied),
    ("", "shared\\a", ExpectedResult::Denied),
    ("", "Shared/a", ExpectedResult::Denied),
    ("", "SHARED/a", ExpectedResult::Denied),
    ("", " shared/a", ExpectedResult::Denied),
    ("", "/shared/a", ExpectedResult::Denied),
    ("", "./shared/a", ExpectedResult::Denied),
    ("", "xshared/a", ExpectedResult::Denied),
    ("", "closed/.././shared/a", ExpectedResult::Denied),
    ("", "closed/shared/a", ExpectedResult::Denied),
    ("", "default:shared/a", ExpectedResult::Denied),
    ("", "default/shared/a", ExpectedResult::Denied),
    ("", "{default:shared/a}", ExpectedResult::Denied),
    ("", "%73hared/a", ExpectedResult::Denied),
    ("", "ſhared/a", ExpectedResult::Denied),
    ("", "ｓhared/a", ExpectedResult::Denied),
    ("", "\u{200b}shared/a", ExpectedResult::Denied),
    ("", "*", ExpectedResult::Denied),
    ("", "shared%2Fa", ExpectedResult::Denied),
    ("open", "shared/a", ExpectedResult::Denied),
    ("default-", "shared/a", ExpectedResult::Denied),
    ("-", "shared/a", ExpectedResult::Denied),
    ("DEFAULT", "shared/a", ExpectedResult::NoName),
    (" default", "shared/a", ExpectedResult::NoName),
    ("default ", "shared/a", ExpectedResult::NoName),
    (" ", "shared/a", ExpectedResult::NoName),
    ("default/shared", "a", ExpectedResult::NoName),
    ("default:shared", "a", ExpectedResult::NoName),
    ("*", "shared/a", ExpectedResult::NoName),
    ("", "shared/\n", ExpectedResult::NoName),
    ("", "shared/a\0", ExpectedResult::NoName),
    ("", "\tshared/a", ExpectedResult::NoName),
    ("", "", ExpectedResult::NoName),
];

fn test_roles() -> Vec<Role> {
    vec![
        root_role(),
        Role::new(
            "named",
            CredentialKind::StaticToken,
            vec![(LockGroup::Shared, PERMISSIONS.to_vec())],
        ),
        Role::new(
            "finder",
            CredentialKind::StaticToken,
            vec![(LockGroup::Shared, vec![Permission::List])],
        ),
    ]
}

async fn returned_lock(line: &RoleConnection, lock: &LockRef) -> Option<LockRef> {
    let target = line.get_lock(lock).await.ok()?.target?;
    Some(LockRef {
        namespace: target.namespace,
        name: target.name,
    })
}

#[tokio::test]
async fn names_of_the_same_lock_are_authorized_alike() {
    let mut fixture = MatrixFixture::start(test_roles()).await;
    let line = fixture.connection_of(&fixture.roles[1]);
    let mut held: Vec<LockRef> = Vec::new();
    for (namespace, name, judged) in NAMES {
        let lock = LockRef {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
        };
        let about = format!("{lock:?}");
        fixture.recorder.take_commands().await;
        let taken = line.acquire(std::slice::from_ref(&lock)).await;
        let commands = fixture.recorder.take_commands().await;
        let reason = taken
            .as_ref()
            .err()
            .and_then(|reply| error_reason(&reply.status()));
        assert_eq!(reason.is_some(), taken.is_err(), "{about}: {taken:?}");
        // The name that `root` finds is the lock that the store has used.
        let is_held = returned_lock(fixture.observer(), &lock).await;
        match judged {
            ExpectedResult::Allowed => {
                let stored = is_held.expect("a caller holds it now");
                let again = held.contains(&stored);
                assert_eq!(reason, again.then_some(ErrorReason::LockHeld), "{about}");
                assert!(stored.namespace == "default", "{about}: {stored:?}");
                assert!(stored.name.starts_with("shared/"), "{about}: {stored:?}");
                assert!(returned_lock(&line, &lock).await.is_some(), "{about}");
                held.push(stored);
            }
            ExpectedResult::Denied => {
                assert_eq!(reason, Some(ErrorReason::PermissionDenied), "{about}");
                assert_eq!(is_held, None, "{about}: no lock that it holds");
                assert!(commands.is_empty(), "{about}: {commands:?}");
            }
            ExpectedResult::NoName => {
                assert_eq!(reason, Some(ErrorReason::InvalidField), "{about}");
                assert!(commands.is_empty(), "{about}: {commands:?}");
            }
        }
    }
    print_figures(&format!(
        "authorization: names: {} spellings, {} locks",
        NAMES.len(),
        held.len()
    ));
}

#[tokio::test]
async fn a_page_token_is_bound_to_its_filters_and_reveals_no_name() {
    let fixture = MatrixFixture::start(test_roles()).await;
    let page = async |line: &RoleConnection, request: &ListLocksRequest| {
        let page: Result<ListLocksResponse, _> = line.call(LIST, request).await;
        page
    };
    let first = ListLocksRequest {
        page_size: 1,
        ..ListLocksRequest::default()
    };
    let token = page(fixture.observer(), &first).await.expect("root may");
    let token = token.next_page_token;
    assert!(!token.is_empty(), "there are {} locks", LOCK_GROUPS.len());
    // Another caller may use the page token, and finds only the locks that it may list.
    let line = fixture.connection_of(&fixture.roles[2]);
    let goes_on = ListLocksRequest {
        page_token: token.clone(),
        ..ListLocksRequest::default()
    };
    let found = page(&line, &goes_on).await.expect("it may list");
    let shared = LockGroup::Shared.lock("");
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
        for line in [&line, fixture.observer()] {
            let refused = page(line, &other).await.expect_err("another filter");
            let reason = error_reason(&refused.status());
            assert_eq!(reason, Some(ErrorReason::InvalidField), "{refused:?}");
            assert_eq!(refused.code, Code::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn without_a_credential_there_is_health_and_nothing_else() {
    let fixture = MatrixFixture::start(test_roles()).await;
    let nobody = Caller::new(
        fixture.plaintext_broker.addr(),
        fixture.plaintext_broker.admin(),
        None,
    );
    for listener in [
        fixture.plaintext_broker.addr(),
        fixture.plaintext_broker.admin(),
    ] {
        for name in READINESS.into_iter().chain([LIVENESS]) {
            check(listener, name).await.expect("health answers anybody");
        }
    }
    let all = WatchLocksRequest::default();
    let watch = nobody.inspection.clone().watch_locks(all).await;
    let refused = watch.expect_err("no caller may watch");
    assert_eq!(error_reason(&refused), Some(ErrorReason::Unauthenticated));
    let api = channel(fixture.plaintext_broker.addr());
    for path in REFLECTION {
        let call = (Vec::new(), ReplyMode::UntilFirstMessage);
        let reply = call_method(&api, path, None, call).await;
        assert_eq!(reply.code, Code::Unauthenticated, "{path}: {reply:?}");
        assert!(reply.messages.is_empty(), "{path}: {reply:?}");
    }
}
