//! Calls are admitted by their headers: what strangers leave unfinished takes nothing from others.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, GetLockRequest, ListLocksRequest, SetLockLimitRequest};
use leasehold_tests::{
    client::channel,
    guarded::{EVERYTHING, Guarded, SOON},
    raw_http2::{
        Opening, RawHttp2,
        frames::{DATA, END_STREAM, HEAD, INITIAL_WINDOW_SIZE, call, call_with, frame, message},
    },
    scrape::scrape_at,
    status::reason,
    unfinished::refused,
};
use tokio::time::timeout;
use tonic::Code;

const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const LOOK: &str = "/leasehold.v1.InspectionService/GetLock";
/// Places of a connection, for lists and for looks.
const PLACES: [(&str, u32); 2] = [(LIST, 8), (LOOK, 64)];
/// Connections whose places are those of all.
const CONNECTIONS: u32 = 4;
/// alice may do everything; nobody's rule names nil.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;

async fn site() -> Guarded {
    Guarded::start(RULES, &[("alice", "alice"), ("nil", "nil")]).await
}

#[tokio::test]
async fn strangers_are_answered_before_their_messages_come() {
    let site = site().await;
    let (api, admin) = (site.broker.addr(), site.broker.admin());
    for (listener, path) in [
        (api, "/leasehold.v1.LockService/Acquire"),
        (api, "/leasehold.v1.LockService/Hold"),
        (api, LIST),
        (api, "/leasehold.v1.InspectionService/WatchLocks"),
        (api, "/leasehold.v1.NoService/Nothing"),
        (admin, "/leasehold.v1.AdminService/SetLockLimit"),
    ] {
        let answer = timeout(SOON, refused(channel(listener), path, None)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
        assert_eq!(answer.code(), Code::Unauthenticated, "{path}: {answer:?}");
        assert_eq!(reason(&answer), Some(ErrorReason::Unauthenticated));
    }
}

/// Takes all places there are, if heads of calls take any. Returns the connections, which keep them.
async fn take_all(site: &Guarded, token: Option<&str>) -> Vec<RawHttp2> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let raw = Opening::to(site.broker.addr()).open().await;
        let raw = raw.expect("a place");
        let mut stream = 1;
        for (path, places) in PLACES {
            for _ in 0..places {
                let head = match token {
                    Some(token) => call_with(stream, path, token, 0),
                    None => call(stream, path, 0),
                };
                assert!(raw.send(&head).await);
                stream += 2;
            }
        }
        assert!(raw.lives(SOON).await);
        connections.push(raw);
    }
    connections
}

#[tokio::test]
async fn calls_without_messages_keep_nobody_from_looking() {
    let site = site().await;
    for token in [None, Some("nil")] {
        let _unfinished = take_all(&site, token).await;
        let mut looks = site.caller("alice").looks;
        let listed = timeout(SOON, looks.list_locks(ListLocksRequest::default())).await;
        listed.expect("a place").expect("a list");
        let lock = GetLockRequest {
            namespace: String::new(),
            name: "a".to_owned(),
        };
        let looked = timeout(SOON, looks.get_lock(lock)).await;
        let idle = looked.expect("a place").expect_err("nobody holds it");
        assert_eq!(idle.code(), Code::NotFound, "{idle:?}");
    }
}

#[tokio::test]
async fn a_call_that_finds_no_place_is_refused_as_overload() {
    /// Those that find a place, and one more.
    const LISTS: usize = 9;
    let site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let mut opening = Opening::to(site.broker.addr());
    // The broker may send nothing of an answer but its headers.
    opening.settings = vec![(INITIAL_WINDOW_SIZE, 0)];
    let raw = opening.open().await.expect("a place");
    for number in 0..u32::try_from(LISTS).expect("a few") {
        let stream = 2 * number + 1;
        let head = call_with(stream, LIST, "alice", 0);
        let list = message(stream, &ListLocksRequest::default(), END_STREAM);
        assert!(raw.send(&[head, list].concat()).await);
    }
    let answered = raw.until(SOON, |seen| seen.heads >= LISTS).await;
    assert!(answered.is_some(), "{:?}", raw.seen());
    let counted = scrape_at(site.broker.admin(), Some("alice")).await;
    let lists = [("grpc_method", "ListLocks"), ("grpc_code", "Unavailable")];
    let refusals = counted.sum("grpc_server_handled_total", &lists);
    assert!((refusals - 1.0).abs() < f64::EPSILON, "{refusals}");
}

#[tokio::test]
async fn so_much_may_be_sent_that_is_not_read() {
    const STREAM_WINDOW: u32 = 64 << 10;
    const CONNECTION_WINDOW: usize = 4 << 20;
    /// Of RFC 9113, before the broker changes it.
    const FIRST_WINDOW: usize = 65_535;
    let site = site().await;
    for listener in [site.broker.addr(), site.broker.admin()] {
        let raw = Opening::to(listener).open().await.expect("a place");
        let widened = raw.until(SOON, |seen| seen.leave > 0).await;
        let seen = widened.unwrap_or_else(|| panic!("{:?}", raw.seen()));
        assert_eq!(seen.leave + FIRST_WINDOW, CONNECTION_WINDOW);
        assert_eq!(seen.stream_window, Some(STREAM_WINDOW));
    }
}

#[tokio::test]
async fn a_connection_of_the_admin_listener_has_64_calls() {
    const CALLS: u32 = 64;
    const SET_LIMIT: &str = "/leasehold.v1.AdminService/SetLockLimit";
    let site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let raw = Opening::to(site.broker.admin()).open().await;
    let raw = raw.expect("a place");
    // An admitted call, after which the connection may have as many in progress as HTTP/2 allows.
    let limit = SetLockLimitRequest::default();
    let head = call_with(1, SET_LIMIT, "alice", 0);
    let admitted = [head, message(1, &limit, END_STREAM)].concat();
    assert!(raw.send(&admitted).await);
    let answered = raw.until(SOON, |seen| seen.heads > 0).await;
    assert!(answered.is_some(), "{:?}", raw.seen());
    for number in 1..=CALLS {
        let head = call_with(2 * number + 1, SET_LIMIT, "alice", 0);
        assert!(raw.send(&head).await);
    }
    assert!(raw.lives(SOON).await);
    assert_eq!(raw.seen().resets, 0, "{:?}", raw.seen());
    let one_more = call_with(2 * CALLS + 3, SET_LIMIT, "alice", 0);
    assert!(raw.send(&one_more).await);
    let refused = raw.until(SOON, |seen| seen.resets == 1).await;
    assert!(refused.is_some(), "{:?}", raw.seen());
}

/// Well below the time that a message may take.
#[tokio::test]
async fn a_message_in_pieces_is_one_message() {
    let site = site().await;
    let raw = Opening::to(site.broker.addr()).open().await;
    let raw = raw.expect("a place");
    assert!(raw.send(&call_with(1, LIST, "alice", 0)).await);
    let list = ListLocksRequest {
        page_size: 7,
        ..ListLocksRequest::default()
    };
    let list = message(1, &list, END_STREAM);
    let [rest @ .., last] = &list[HEAD..] else {
        panic!("a message");
    };
    assert!(raw.send(&frame(DATA, 0, 1, rest)).await);
    let early = raw.until(Duration::from_millis(200), |seen| seen.heads > 0);
    assert!(early.await.is_none(), "answered before it is complete");
    assert!(raw.send(&frame(DATA, END_STREAM, 1, &[*last])).await);
    let answered = raw.until(SOON, |seen| seen.heads == 2).await;
    assert!(answered.is_some(), "{:?}", raw.seen());
}
