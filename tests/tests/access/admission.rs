//! Authorization of calls by their headers. Incomplete calls of unauthenticated clients use no
//! resources of other callers.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, GetLockRequest, ListLocksRequest, OpenLockRequest};
use leasehold_tests::{
    access::fixture::{ALLOW_ALL_POLICY, AccessControlFixture, REPLY_TIMEOUT},
    client::unary::channel,
    net::{
        incomplete_call::send_without_message,
        raw_http2::{
            RawHttp2, RawHttp2Options,
            frames::{
                DATA, END_STREAM, FRAME_HEADER_BYTES, INITIAL_WINDOW_SIZE, call_headers,
                call_headers_with_token, frame, message,
            },
        },
    },
    status::error_reason,
    telemetry::scrape::scrape_at,
};
use tokio::time::timeout;
use tonic::Code;

const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const GET_LOCK: &str = "/leasehold.v1.InspectionService/GetLock";
/// Concurrent calls per connection, for `ListLocks` and for `GetLock`.
const CONCURRENT_CALLS: [(&str, u32); 2] = [(LIST, 8), (GET_LOCK, 64)];
/// Number of connections whose limits add up to the limit of the broker.
const CONNECTIONS: u32 = 4;
/// Rules that permit everything to alice and nothing to nil.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;

async fn fixture() -> AccessControlFixture {
    AccessControlFixture::start(RULES, &[("alice", "alice"), ("nil", "nil")]).await
}

#[tokio::test]
async fn unauthenticated_calls_are_rejected_before_their_messages_arrive() {
    let fixture = fixture().await;
    let (api, admin) = (fixture.broker.addr(), fixture.broker.admin());
    for (listener, path) in [
        (api, "/leasehold.v1.LockService/Acquire"),
        (api, "/leasehold.v1.LockService/Hold"),
        (api, LIST),
        (api, "/leasehold.v1.InspectionService/WatchLocks"),
        (api, "/leasehold.v1.NoService/Nothing"),
        (admin, "/leasehold.v1.AdminService/OpenLock"),
    ] {
        let answer = timeout(
            REPLY_TIMEOUT,
            send_without_message(channel(listener), path, None),
        )
        .await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
        assert_eq!(answer.code(), Code::Unauthenticated, "{path}: {answer:?}");
        assert_eq!(error_reason(&answer), Some(ErrorReason::Unauthenticated));
    }
}

/// Opens the maximum number of calls without messages, and returns their connections.
async fn open_all_calls(fixture: &AccessControlFixture, token: Option<&str>) -> Vec<RawHttp2> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let raw = RawHttp2Options::new(fixture.broker.addr()).open().await;
        let raw = raw.expect("a place");
        let mut stream = 1;
        for (path, places) in CONCURRENT_CALLS {
            for _ in 0..places {
                let head = match token {
                    Some(token) => call_headers_with_token(stream, path, token, 0),
                    None => call_headers(stream, path, 0),
                };
                assert!(raw.send(&head).await);
                stream += 2;
            }
        }
        assert!(raw.is_responding(REPLY_TIMEOUT).await);
        connections.push(raw);
    }
    connections
}

#[tokio::test]
async fn calls_without_messages_do_not_block_reads() {
    let fixture = fixture().await;
    for token in [None, Some("nil")] {
        let _unfinished = open_all_calls(&fixture, token).await;
        let mut looks = fixture.caller("alice").inspection;
        let listed = timeout(REPLY_TIMEOUT, looks.list_locks(ListLocksRequest::default())).await;
        listed.expect("a place").expect("a list");
        let lock = GetLockRequest {
            namespace: String::new(),
            name: "a".to_owned(),
        };
        let reply = timeout(REPLY_TIMEOUT, looks.get_lock(lock)).await;
        let idle = reply.expect("a place").expect_err("it is not held");
        assert_eq!(idle.code(), Code::NotFound, "{idle:?}");
    }
}

#[tokio::test]
async fn a_call_above_the_limit_is_rejected_as_overload() {
    /// Number of calls within the limit, plus one.
    const LISTS: usize = 9;
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let mut connection_options = RawHttp2Options::new(fixture.broker.addr());
    // With a window of 0 the broker can send only the headers of a response.
    connection_options.settings = vec![(INITIAL_WINDOW_SIZE, 0)];
    let raw = connection_options.open().await.expect("a place");
    for number in 0..u32::try_from(LISTS).expect("a few") {
        let stream = 2 * number + 1;
        let head = call_headers_with_token(stream, LIST, "alice", 0);
        let list = message(stream, &ListLocksRequest::default(), END_STREAM);
        assert!(raw.send(&[head, list].concat()).await);
    }
    let answered = raw
        .wait_until(REPLY_TIMEOUT, |seen| seen.headers >= LISTS)
        .await;
    assert!(answered.is_some(), "{:?}", raw.received());
    let counted = scrape_at(fixture.broker.admin(), Some("alice")).await;
    let lists = [("grpc_method", "ListLocks"), ("grpc_code", "Unavailable")];
    let refusals = counted.sum("grpc_server_handled_total", &lists);
    assert!((refusals - 1.0).abs() < f64::EPSILON, "{refusals}");
}

#[tokio::test]
async fn unread_data_is_bounded_by_the_flow_control_windows() {
    const STREAM_WINDOW: u32 = 64 << 10;
    const CONNECTION_WINDOW: usize = 4 << 20;
    /// Initial window of RFC 9113, before the broker changes it.
    const FIRST_WINDOW: usize = 65_535;
    let fixture = fixture().await;
    for listener in [fixture.broker.addr(), fixture.broker.admin()] {
        let raw = RawHttp2Options::new(listener)
            .open()
            .await
            .expect("a place");
        let widened = raw
            .wait_until(REPLY_TIMEOUT, |seen| seen.window_granted > 0)
            .await;
        let seen = widened.unwrap_or_else(|| panic!("{:?}", raw.received()));
        assert_eq!(seen.window_granted + FIRST_WINDOW, CONNECTION_WINDOW);
        assert_eq!(seen.stream_window, Some(STREAM_WINDOW));
    }
}

#[tokio::test]
async fn a_connection_of_the_admin_listener_has_64_calls() {
    const CALLS: u32 = 64;
    const OPEN: &str = "/leasehold.v1.AdminService/OpenLock";
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let raw = RawHttp2Options::new(fixture.broker.admin()).open().await;
    let raw = raw.expect("a place");
    // After an authorized call, a connection may have as many calls as HTTP/2 allows.
    let open = OpenLockRequest::default();
    let head = call_headers_with_token(1, OPEN, "alice", 0);
    let admitted = [head, message(1, &open, END_STREAM)].concat();
    assert!(raw.send(&admitted).await);
    let answered = raw.wait_until(REPLY_TIMEOUT, |seen| seen.headers > 0).await;
    assert!(answered.is_some(), "{:?}", raw.received());
    for number in 1..=CALLS {
        let head = call_headers_with_token(2 * number + 1, OPEN, "alice", 0);
        assert!(raw.send(&head).await);
    }
    assert!(raw.is_responding(REPLY_TIMEOUT).await);
    assert_eq!(raw.received().resets, 0, "{:?}", raw.received());
    let one_more = call_headers_with_token(2 * CALLS + 3, OPEN, "alice", 0);
    assert!(raw.send(&one_more).await);
    let refused = raw.wait_until(REPLY_TIMEOUT, |seen| seen.resets == 1).await;
    assert!(refused.is_some(), "{:?}", raw.received());
}

/// Sends the parts well within the time limit of a message.
#[tokio::test]
async fn a_message_in_pieces_is_one_message() {
    let fixture = fixture().await;
    let raw = RawHttp2Options::new(fixture.broker.addr()).open().await;
    let raw = raw.expect("a place");
    assert!(
        raw.send(&call_headers_with_token(1, LIST, "alice", 0))
            .await
    );
    let list = ListLocksRequest {
        page_size: 7,
        ..ListLocksRequest::default()
    };
    let list = message(1, &list, END_STREAM);
    let [rest @ .., last] = &list[FRAME_HEADER_BYTES..] else {
        panic!("a message");
    };
    assert!(raw.send(&frame(DATA, 0, 1, rest)).await);
    let early = raw.wait_until(Duration::from_millis(200), |seen| seen.headers > 0);
    assert!(early.await.is_none(), "answered before it is complete");
    assert!(raw.send(&frame(DATA, END_STREAM, 1, &[*last])).await);
    let answered = raw
        .wait_until(REPLY_TIMEOUT, |seen| seen.headers == 2)
        .await;
    assert!(answered.is_some(), "{:?}", raw.received());
}
