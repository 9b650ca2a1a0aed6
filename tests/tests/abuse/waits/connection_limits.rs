//! Connection limits. Idle unauthenticated connections are closed in favor of callers.

use std::time::Duration;

use leasehold_proto::v1::{ListLocksRequest, inspection_service_client::InspectionServiceClient};
use leasehold_tests::{
    access::{
        files_and_callers::BearerTokenInterceptor,
        fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    },
    clock::boottime,
    net::raw_http2::{RawHttp2, RawHttp2Options},
};
use tokio::time::sleep;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

/// Connection limit. Connections are scarce when three quarters of it are in use.
const CONNECTION_LIMIT: usize = 40;
const PER_ADDRESS: usize = 10;
/// Time after which a connection without an authorized call can be closed while connections are
/// scarce, with a tolerance.
const CLOSED_WITHIN: Duration = Duration::from_secs(20);
/// Interval at which a rejected caller reconnects.
const AGAIN: Duration = Duration::from_millis(250);

async fn fixture() -> AccessControlFixture {
    let (all, of_one) = (CONNECTION_LIMIT.to_string(), PER_ADDRESS.to_string());
    let settings = [
        ("SERVER__MAX_CONNECTIONS", all.as_str()),
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", &of_one),
    ];
    AccessControlFixture::start_with(ALLOW_ALL_POLICY, &[("alice", "alice")], &settings).await
}

/// Opens connections without calls from several addresses, and returns those within the limit.
async fn idle(fixture: &AccessControlFixture) -> Vec<RawHttp2> {
    let mut open = Vec::new();
    for number in 0..CONNECTION_LIMIT {
        let host = u8::try_from(2 + number / PER_ADDRESS).expect("a few");
        let connection_options = RawHttp2Options {
            local_ip: [127, 0, 0, host].into(),
            ..RawHttp2Options::new(fixture.broker.addr())
        };
        open.extend(connection_options.open().await.ok());
    }
    open
}

/// Connects an authenticated caller from a separate address.
fn caller(
    fixture: &AccessControlFixture,
) -> InspectionServiceClient<InterceptedService<Channel, BearerTokenInterceptor>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", fixture.broker.addr()));
    let endpoint = endpoint
        .expect("a URL")
        .local_address(Some([127, 0, 0, 99].into()));
    let shows = BearerTokenInterceptor(Some("alice".to_owned()));
    InspectionServiceClient::with_interceptor(endpoint.connect_lazy(), shows)
}

async fn is_served(
    looks: &mut InspectionServiceClient<InterceptedService<Channel, BearerTokenInterceptor>>,
) -> bool {
    looks.list_locks(ListLocksRequest::default()).await.is_ok()
}

#[tokio::test]
async fn connections_that_never_call_are_closed_for_callers() {
    let fixture = fixture().await;
    let open = idle(&fixture).await;
    assert_eq!(
        open.len(),
        CONNECTION_LIMIT - CONNECTION_LIMIT / 10,
        "a tenth is reserved"
    );
    let oldest = open.first().expect("many");
    let mut caller = caller(&fixture);
    assert!(!is_served(&mut caller).await, "all other places are taken");
    let started_at = boottime();
    while !is_served(&mut caller).await {
        assert!(boottime() - started_at < CLOSED_WITHIN, "no place");
        sleep(AGAIN).await;
    }
    let closed = oldest.wait_until_closed(CLOSED_WITHIN).await;
    closed.expect("the oldest makes room");
    let newest = open.last().expect("many");
    assert!(
        newest.is_responding(CLOSED_WITHIN).await,
        "three quarters stay"
    );
}

#[tokio::test]
async fn an_address_with_an_admitted_caller_has_a_reserved_connection() {
    let fixture = fixture().await;
    let mut known = caller(&fixture);
    assert!(is_served(&mut known).await);
    let open = idle(&fixture).await;
    assert!(open.len() >= CONNECTION_LIMIT * 3 / 4, "{}", open.len());
    assert!(is_served(&mut known).await, "on the connection that it has");
    assert!(is_served(&mut caller(&fixture)).await, "on a new one");
}
