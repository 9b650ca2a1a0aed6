//! Names in client certificates. A certificate counts only by its single SPIFFE ID, and never as
//! the caller of a token.

use leasehold_proto::v1::{ErrorReason, LockRef};
use leasehold_tests::{
    access::{
        fixture::REPLY_TIMEOUT,
        mutual_tls_fixture::{MutualTlsFixture, client_tls_config},
    },
    net::certificates::spiffe_id,
    status::error_reason,
};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Endpoint};

use leasehold_proto::v1::{CheckFencingTokenRequest, lock_service_client::LockServiceClient};

/// Rules for all callers for which a certificate could be mistaken.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:ops", "jwt:alice", "dns:worker", "spiffe://leasehold.test/*", "https://*"]
    verbs = ["observe"]
"#;

#[tokio::test]
async fn only_one_spiffe_id_is_a_name() {
    let fixture = MutualTlsFixture::start(&[]).await;
    fixture.access_files.set_policy(RULES);
    let clients = fixture.tls.client_authority.as_ref().expect("mutual");
    let worker = spiffe_id("worker");
    let look = async |uris: &[&str], hosts: &[&str]| -> Status {
        let identity = clients.client_with_names(uris, hosts);
        let endpoint = Endpoint::from_shared(fixture.url()).expect("a URL");
        let tls = client_tls_config(&[&fixture.tls.authority], &identity);
        let endpoint = endpoint.tls_config(tls).expect("good certificates");
        let channel = endpoint.connect().await.expect("the authority counts");
        let check = CheckFencingTokenRequest {
            lock: Some(LockRef {
                name: "a".to_owned(),
                ..LockRef::default()
            }),
            fencing_token: 1,
        };
        let mut locks = LockServiceClient::new(channel);
        let checked = timeout(REPLY_TIMEOUT, locks.check_fencing_token(check)).await;
        checked.expect("an answer").expect_err("it is not held")
    };
    for (uris, hosts) in [
        (&[&*worker][..], &[][..]),
        (&[&*worker], &["worker", "a.example"]),
    ] {
        let known = look(uris, hosts).await;
        assert_eq!(known.code(), Code::NotFound, "{uris:?}: {known:?}");
    }
    let other = spiffe_id("other");
    for (uris, hosts, reason) in [
        (&[][..], &[][..], "it has no URI"),
        (&[], &["worker"], "it has no URI"),
        (&["token:ops"], &[], "its URI is not the SPIFFE ID"),
        (&["jwt:alice"], &["worker"], "its URI is not the SPIFFE ID"),
        (
            &["https://leasehold.test/worker"],
            &[],
            "its URI is not the SPIFFE ID",
        ),
        (
            &["spiffe://leasehold.test"],
            &[],
            "its URI is not the SPIFFE ID",
        ),
        (&[&*worker, "token:ops"], &[], "it has several URIs"),
        (&["token:ops", &*worker], &[], "it has several URIs"),
        (&[&*worker, &*other], &[], "it has several URIs"),
        (&[&*worker, &*worker], &[], "it has several URIs"),
    ] {
        let refused = loop {
            let refused = look(uris, hosts).await;
            // Requests from this address may be rate limited.
            if error_reason(&refused) != Some(ErrorReason::QuotaExceeded) {
                break refused;
            }
        };
        assert_eq!(refused.code(), Code::Unauthenticated, "{uris:?} {hosts:?}");
        assert!(refused.message().contains(reason), "{uris:?}: {refused:?}");
    }
    let log = fixture.broker.log();
    assert!(log.contains(
        "to call with a certificate that does not identify a caller: it has several URIs"
    ));
}
