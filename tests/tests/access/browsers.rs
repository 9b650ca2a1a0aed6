//! Web pages cannot make gRPC calls with the credentials of a browser.

use std::{future::poll_fn, net::SocketAddr};

use leasehold_proto::v1::{LockRef, OpenLockRequest};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::channel,
    net::{plain_http::post, raw_http2::frames::message_prefix},
    telemetry::scrape::scrape,
};
use prost::Message as _;
use tonic::{body::Body, client::GrpcService};

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const OPEN: &str = "/leasehold.v1.AdminService/OpenLock";
const CONTENT_TYPE: &str = "content-type";
const GRPC: (&str, &str) = (CONTENT_TYPE, "application/grpc");

/// Sends a request over HTTP/2, and returns the status of the response.
async fn status_of(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> u16 {
    let mut channel = channel(to);
    let ready = poll_fn(|cx| GrpcService::<Body>::poll_ready(&mut channel, cx)).await;
    ready.expect("a connection");
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let answer = channel.call(request).await.expect("an answer");
    answer.status().as_u16()
}

#[tokio::test]
async fn only_calls_of_grpc_reach_its_services() {
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let mut refusals = 0.0;
    for (listener, path) in [(broker.addr(), ACQUIRE), (broker.admin(), OPEN)] {
        for (method, headers, status) in [
            (
                "POST",
                &[(CONTENT_TYPE, "text/plain;charset=UTF-8")][..],
                415,
            ),
            (
                "POST",
                &[(CONTENT_TYPE, "application/x-www-form-urlencoded")],
                415,
            ),
            ("POST", &[(CONTENT_TYPE, "application/json")], 415),
            ("POST", &[(CONTENT_TYPE, "application/grpc-web+proto")], 415),
            ("POST", &[], 415),
            ("GET", &[GRPC], 405),
            ("OPTIONS", &[GRPC], 405),
            ("POST", &[GRPC, ("origin", "https://evil.example")], 403),
            ("POST", &[GRPC, ("origin", "null")], 403),
            ("POST", &[GRPC, ("sec-fetch-site", "same-origin")], 403),
        ] {
            let answered = status_of(listener, method, path, headers).await;
            assert_eq!(answered, status, "{path} {method} {headers:?}");
            refusals += 1.0;
        }
        let answered = status_of(listener, "POST", path, &[GRPC]).await;
        assert_eq!(answered, 200, "{path}");
        let proto = [(CONTENT_TYPE, "application/grpc+proto")];
        assert_eq!(
            status_of(listener, "POST", path, &proto).await,
            200,
            "{path}"
        );
    }
    let counted = scrape(broker).await;
    let labels = [("reason", "not_grpc")];
    let counted = counted.sum("leasehold_access_refusals_total", &labels);
    assert!((counted - refusals).abs() < f64::EPSILON, "{counted}");
}

#[tokio::test]
async fn grpc_is_not_served_over_http_1() {
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let open = OpenLockRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: "invoices".to_owned(),
        }),
    };
    let open = open.encode_to_vec();
    let body = [message_prefix(open.len()).as_slice(), &open].concat();
    let body = String::from_utf8(body).expect("short lengths are ASCII");
    for (headers, status) in [
        (&[GRPC][..], 505),
        (&[(CONTENT_TYPE, "text/plain;charset=UTF-8")], 505),
        (
            &[
                (CONTENT_TYPE, "text/plain;charset=UTF-8"),
                ("origin", "https://evil.example"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
            403,
        ),
    ] {
        let (answered, reason) = post(broker.admin(), OPEN, headers, &body).await;
        assert_eq!(answered, status, "{headers:?}: {reason}");
    }
    let log = broker.log();
    assert!(!log.contains("an operator has opened a lock"), "{log}");
}
