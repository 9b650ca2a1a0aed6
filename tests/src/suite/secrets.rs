//! Scenarios of secrets: a probe sends them to the broker only, and presents certificates on
//! request.

use std::time::Duration;

use super::{language::Cast, messages::ProbeAcquire, probe::Probe, scenario::ScenarioFixture};
use crate::{
    net::{
        capturing_proxy::CapturingProxy, certificates::Authority,
        credential_recorder::CredentialRecorder, tls_relay::TlsRelay,
    },
    process::temp_dir::TempDir,
    scale::print_figures,
};

/// The bearer token. Its occurrence in an output is a leak.
const CANARY: &str = "canary-7c1d20af";
const WAIT: Duration = Duration::from_secs(60);

/// Every call carries the bearer token. No secret occurs in the output or the log of the program,
/// even at the finest log level.
pub async fn secrets_are_in_no_output(cast: Cast) {
    let mut fixture = ScenarioFixture::start(cast, 1).await;
    let recorder = CredentialRecorder::start(fixture.deployment.addrs()[0]).await;
    let capture = CapturingProxy::start(recorder.addr()).await;
    let endpoint = format!("http://{}", capture.addr());
    let env = [
        ("LEASEHOLD_ENDPOINTS", &*endpoint),
        ("LEASEHOLD_BEARER_TOKEN", CANARY),
        ("LEASEHOLD_LOG", "trace"),
    ];
    let one = Probe::start_with(cast.one.command(), &env).await;
    let one = one.expect("a broker that runs");

    one.expect_acquired(&ProbeAcquire::exclusive("a")).await;
    one.expect_acquired(&ProbeAcquire::exclusive("b").under_lease("a"))
        .await;
    let held = fixture.expect_acquired("c").await;
    let call = one.start_acquire(&ProbeAcquire::exclusive("c").with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    one.cancel(&call).await;
    one.acquire(&ProbeAcquire::exclusive("c").with_wait(Duration::ZERO))
        .await
        .expect_err("it is held");
    assert!(one.observe("c").await.is_some());
    fixture.expect_released(&held).await;
    one.expect_released("b").await;
    fixture
        .deployment
        .redis
        .connect()
        .await
        .must(&["FLUSHALL"])
        .await;
    assert_eq!(one.wait_for_loss("a").await.reason, "StoreLost");
    one.release("a").await.expect_err("it was lost");
    one.acquire(&ProbeAcquire::exclusive("d").with_wait(Duration::ZERO))
        .await
        .expect_err("not safe");
    fixture.deployment.brokers[0].kill().await;
    one.acquire(&ProbeAcquire::exclusive("e").with_wait(Duration::ZERO))
        .await
        .expect_err("no broker");

    let output = one.output();
    let leases = capture.granted_leases();
    let secrets = leases.iter().map(|lease| lease.lease_token.clone());
    let secrets: Vec<_> = secrets
        .chain(capture.request_ids())
        .chain([CANARY.to_owned()])
        .collect();
    let shown = secrets.iter().filter(|secret| output.contains(&***secret));
    let shown = shown.count();
    print_figures(&format!(
        "suite {:?}: output={}B secrets={} shown={shown}",
        cast.one,
        output.len(),
        secrets.len()
    ));
    assert!(leases.len() >= 2 && secrets.len() > 6 && secrets.iter().all(|one| one.len() > 8));
    assert!(output.contains(&leases[0].lease_id), "something is printed");
    assert_eq!(shown, 0);
    let credential = Some(format!("Bearer {CANARY}"));
    for (method, shown) in recorder.recorded() {
        let all = shown.iter().all(|shown| *shown == credential);
        assert!(all, "{method}: {shown:?}");
    }
    for method in ["LockService/Hold", "InspectionService/GetLock"] {
        let method = format!("/leasehold.v1.{method}");
        assert!(recorder.recorded().contains_key(&method), "no {method}");
    }
}

/// The probe verifies the certificate of the broker against the given authority, and presents its
/// own.
pub async fn tls_shows_a_certificate_and_is_checked(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = ours.server(&["127.0.0.1"]);
    let relay = TlsRelay::start(fixture.deployment.addrs()[0], &server, Some(&ours)).await;
    let dir = TempDir::new("tls");
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write a file");
        path.to_str().expect("a plain path").to_owned()
    };
    let client = ours.client("worker");
    let (shown, key) = (
        file("client.pem", client.pem()),
        file("client.key", client.key_pem()),
    );
    let endpoint = format!("https://{}", relay.addr());
    let start = async |authority: &str| {
        let env = [
            ("LEASEHOLD_ENDPOINTS", &*endpoint),
            ("LEASEHOLD_TLS_CA", authority),
            ("LEASEHOLD_TLS_CERT", &shown),
            ("LEASEHOLD_TLS_KEY", &key),
        ];
        Probe::start_with(cast.one.command(), &env).await
    };
    let refused = start(&file("others.pem", others.pem())).await;
    assert_eq!(refused.expect_err("signed by others").class, "Unreachable");
    let one = start(&file("ours.pem", ours.pem())).await;
    let one = one.expect("signed by ours");
    let lease = one.expect_acquired(&ProbeAcquire::exclusive("a")).await;
    assert_eq!(fixture.expect_holder("a").await.token, lease.token());
    let handshakes = relay.handshakes().completed;
    let by_us = handshakes
        .iter()
        .flatten()
        .all(|seen| *seen == client.certificate());
    assert!(!handshakes.is_empty() && by_us);
}
