//! Messages of known callers that do not come: their calls end.

use std::time::Duration;

use leasehold_tests::{
    client::channel,
    guarded::{EVERYTHING, Guarded},
    unfinished::refused,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use tonic::Code;

/// How soon a message must be complete.
const WITHIN: Duration = Duration::from_secs(10);
/// On a busy machine.
const LATEST: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_call_whose_message_does_not_come_is_refused() {
    let site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let (api, admin) = (site.broker.addr(), site.broker.admin());
    let calls = [
        (api, "/leasehold.v1.LockService/Acquire"),
        (api, "/leasehold.v1.InspectionService/ListLocks"),
        (admin, "/leasehold.v1.AdminService/SetLockLimit"),
        (admin, "/grpc.health.v1.Health/Check"),
    ];
    let began = Instant::now();
    let calls = calls.map(|(listener, path)| async move {
        let answer = timeout(LATEST, refused(channel(listener), path, Some("alice"))).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
        assert_eq!(answer.code(), Code::DeadlineExceeded, "{path}: {answer:?}");
        assert!(began.elapsed() >= WITHIN, "{path}: {:?}", began.elapsed());
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn a_body_in_plain_http_that_does_not_come_is_refused() {
    let site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let began = Instant::now();
    let connection = TcpStream::connect(site.broker.admin()).await;
    let mut connection = connection.expect("a place");
    // One byte of five.
    let request = "POST /log-filter HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                   authorization: Bearer alice\r\ncontent-length: 5\r\n\r\ni";
    let sent = connection.write_all(request.as_bytes()).await;
    sent.expect("it is read");
    let mut answer = String::new();
    let read = timeout(LATEST, connection.read_to_string(&mut answer)).await;
    read.expect("an answer in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("they came too late"), "{answer}");
    assert!(began.elapsed() >= WITHIN, "{:?}", began.elapsed());
}
