//! What a client certificate is taken for: the one SPIFFE ID in it, and never the caller of a token.

use leasehold_proto::v1::{ErrorReason, LockRef};
use leasehold_tests::{
    certificates::spiffe,
    guarded::SOON,
    locked_site::{LockedSite, trust},
    status::reason,
};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Endpoint};

use leasehold_proto::v1::{CheckFencingTokenRequest, lock_service_client::LockServiceClient};

/// For whom a certificate could pass.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:ops", "jwt:alice", "dns:worker", "spiffe://leasehold.test/*", "https://*"]
    verbs = ["observe"]
"#;

#[tokio::test]
async fn only_one_spiffe_id_is_a_name() {
    let site = LockedSite::start(&[]).await;
    site.doors.set_policy(RULES);
    let clients = site.tls.clients.as_ref().expect("mutual");
    let worker = spiffe("worker");
    let look = async |uris: &[&str], hosts: &[&str]| -> Status {
        let shown = clients.client_of(uris, hosts);
        let endpoint = Endpoint::from_shared(site.url()).expect("a URL");
        let tls = trust(&[&site.tls.authority], &shown);
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
        let checked = timeout(SOON, locks.check_fencing_token(check)).await;
        checked.expect("an answer").expect_err("nobody holds it")
    };
    for (uris, hosts) in [
        (&[&*worker][..], &[][..]),
        (&[&*worker], &["worker", "a.example"]),
    ] {
        let known = look(uris, hosts).await;
        assert_eq!(known.code(), Code::NotFound, "{uris:?}: {known:?}");
    }
    let other = spiffe("other");
    for (uris, hosts, why) in [
        (&[][..], &[][..], "it has no URI"),
        (&[], &["worker"], "it has no URI"),
        (&["token:ops"], &[], "its URI is no SPIFFE ID"),
        (&["jwt:alice"], &["worker"], "its URI is no SPIFFE ID"),
        (
            &["https://leasehold.test/worker"],
            &[],
            "its URI is no SPIFFE ID",
        ),
        (&["spiffe://leasehold.test"], &[], "its URI is no SPIFFE ID"),
        (&[&*worker, "token:ops"], &[], "it has several URIs"),
        (&["token:ops", &*worker], &[], "it has several URIs"),
        (&[&*worker, &*other], &[], "it has several URIs"),
        (&[&*worker, &*worker], &[], "it has several URIs"),
    ] {
        let refused = loop {
            let refused = look(uris, hosts).await;
            // Many come from here.
            if reason(&refused) != Some(ErrorReason::QuotaExceeded) {
                break refused;
            }
        };
        assert_eq!(refused.code(), Code::Unauthenticated, "{uris:?} {hosts:?}");
        assert!(refused.message().contains(why), "{uris:?}: {refused:?}");
    }
    let log = site.broker.log();
    assert!(log.contains("to call by a certificate that names no caller: it has several URIs"));
}
