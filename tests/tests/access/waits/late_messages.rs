//! Calls of authenticated callers without their message, which time out.

use std::time::Duration;

use leasehold_tests::{
    access::fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    client::unary::channel,
    net::incomplete_call::send_without_message,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use tonic::Code;

/// Time within which a message must be complete.
const WITHIN: Duration = Duration::from_secs(10);
/// Upper bound on a busy machine.
const LATEST: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_call_whose_message_does_not_come_is_refused() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let (api, admin) = (fixture.broker.addr(), fixture.broker.admin());
    let calls = [
        (api, "/leasehold.v1.LockService/Acquire"),
        (api, "/leasehold.v1.InspectionService/ListLocks"),
        (admin, "/leasehold.v1.AdminService/OpenLock"),
        (admin, "/grpc.health.v1.Health/Check"),
    ];
    let started_at = Instant::now();
    let calls = calls.map(|(listener, path)| async move {
        let answer = timeout(
            LATEST,
            send_without_message(channel(listener), path, Some("alice")),
        )
        .await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
        assert_eq!(answer.code(), Code::DeadlineExceeded, "{path}: {answer:?}");
        assert!(
            started_at.elapsed() >= WITHIN,
            "{path}: {:?}",
            started_at.elapsed()
        );
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn a_body_in_plain_http_that_does_not_come_is_refused() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let started_at = Instant::now();
    let connection = TcpStream::connect(fixture.broker.admin()).await;
    let mut connection = connection.expect("a place");
    // The body has one of five bytes.
    let request = "POST /log-filter HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                   authorization: Bearer alice\r\ncontent-length: 5\r\n\r\ni";
    let sent = connection.write_all(request.as_bytes()).await;
    sent.expect("it is read");
    let mut answer = String::new();
    let read = timeout(LATEST, connection.read_to_string(&mut answer)).await;
    read.expect("an answer in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("was not received in time"), "{answer}");
    assert!(started_at.elapsed() >= WITHIN, "{:?}", started_at.elapsed());
}
