//! Places of connections: strangers who never call make room for callers.

use std::time::Duration;

use leasehold_proto::v1::{ListLocksRequest, inspection_service_client::InspectionServiceClient};
use leasehold_tests::{
    callers::Shows,
    clock::boottime,
    guarded::{EVERYTHING, Guarded},
    raw_http2::{Opening, RawHttp2},
};
use tokio::time::sleep;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

/// Places in all; three quarters of them are taken before they are scarce.
const PLACES: usize = 40;
const PER_ADDRESS: usize = 10;
/// How long a connection may be without an admitted call where places are scarce, and a little more.
const MAKES_ROOM: Duration = Duration::from_secs(20);
/// How often a caller without a place tries again.
const AGAIN: Duration = Duration::from_millis(250);

async fn site() -> Guarded {
    let (all, of_one) = (PLACES.to_string(), PER_ADDRESS.to_string());
    let settings = [
        ("SERVER__MAX_CONNECTIONS", all.as_str()),
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", &of_one),
    ];
    Guarded::start_with(EVERYTHING, &[("alice", "alice")], &settings).await
}

/// Connections without a call, of several addresses; those for which there is no place are left out.
async fn idle(site: &Guarded) -> Vec<RawHttp2> {
    let mut open = Vec::new();
    for number in 0..PLACES {
        let host = u8::try_from(2 + number / PER_ADDRESS).expect("a few");
        let opening = Opening {
            from: [127, 0, 0, host].into(),
            ..Opening::to(site.broker.addr())
        };
        open.extend(opening.open().await.ok());
    }
    open
}

/// A connection of a known caller, whose address is none of the others'.
fn caller(site: &Guarded) -> InspectionServiceClient<InterceptedService<Channel, Shows>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", site.broker.addr()));
    let endpoint = endpoint
        .expect("a URL")
        .local_address(Some([127, 0, 0, 99].into()));
    let shows = Shows(Some("alice".to_owned()));
    InspectionServiceClient::with_interceptor(endpoint.connect_lazy(), shows)
}

async fn is_served(
    looks: &mut InspectionServiceClient<InterceptedService<Channel, Shows>>,
) -> bool {
    looks.list_locks(ListLocksRequest::default()).await.is_ok()
}

#[tokio::test]
async fn connections_that_never_call_make_room_for_callers() {
    let site = site().await;
    let open = idle(&site).await;
    assert_eq!(open.len(), PLACES - PLACES / 10, "a tenth is reserved");
    let oldest = open.first().expect("many");
    let mut caller = caller(&site);
    assert!(!is_served(&mut caller).await, "all other places are taken");
    let began = boottime();
    while !is_served(&mut caller).await {
        assert!(boottime() - began < MAKES_ROOM, "no place");
        sleep(AGAIN).await;
    }
    let closed = oldest.closed(MAKES_ROOM).await;
    closed.expect("the oldest makes room");
    let newest = open.last().expect("many");
    assert!(newest.lives(MAKES_ROOM).await, "three quarters stay");
}

#[tokio::test]
async fn an_address_with_an_admitted_caller_has_a_reserved_place() {
    let site = site().await;
    let mut known = caller(&site);
    assert!(is_served(&mut known).await);
    let open = idle(&site).await;
    assert!(open.len() >= PLACES * 3 / 4, "{}", open.len());
    assert!(is_served(&mut known).await, "on the connection that it has");
    assert!(is_served(&mut caller(&site)).await, "on a new one");
}
