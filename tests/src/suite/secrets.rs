//! What a probe shows to whom: secrets to the broker alone, and certificates where they are asked for.

use std::time::Duration;

use super::{language::Cast, probe::Probe, scene::Scene, wire::Ask};
use crate::{
    certificates::Authority, recorder::Recorder, scale::figures, tap::Tap, temp_dir::TempDir,
    tls_relay::TlsRelay,
};

/// What shows it gives it away.
const CANARY: &str = "canary-7c1d20af";
const WAIT: Duration = Duration::from_secs(60);

/// The bearer token goes with every call. No secret is in anything that the program prints or logs, down
/// to the finest level.
pub async fn secrets_are_in_no_output(cast: Cast) {
    let mut scene = Scene::start(cast, 1).await;
    let recorder = Recorder::start(scene.deployment.addrs()[0]).await;
    let tap = Tap::start(recorder.addr()).await;
    let endpoint = format!("http://{}", tap.addr());
    let env = [
        ("LEASEHOLD_ENDPOINTS", &*endpoint),
        ("LEASEHOLD_BEARER_TOKEN", CANARY),
        ("LEASEHOLD_LOG", "trace"),
    ];
    let one = Probe::start_with(cast.one.command(), &env).await;
    let one = one.expect("a broker that runs");

    one.takes(&Ask::one("a")).await;
    one.takes(&Ask::one("b").under("a")).await;
    let held = scene.takes("c").await;
    let call = one.asks(&Ask::one("c").wait(WAIT));
    one.queued(&call, 1).await;
    one.cancel(&call).await;
    one.acquire(&Ask::one("c").wait(Duration::ZERO))
        .await
        .expect_err("it is held");
    assert!(one.observe("c").await.is_some());
    scene.gives(&held).await;
    one.gives("b").await;
    scene
        .deployment
        .redis
        .connect()
        .await
        .must(&["FLUSHALL"])
        .await;
    assert_eq!(one.lost("a").await.reason, "StoreLost");
    one.release("a").await.expect_err("it was lost");
    one.acquire(&Ask::one("d").wait(Duration::ZERO))
        .await
        .expect_err("not safe");
    scene.deployment.brokers[0].kill().await;
    one.acquire(&Ask::one("e").wait(Duration::ZERO))
        .await
        .expect_err("no broker");

    let output = one.output();
    let leases = tap.leases();
    let secrets = leases.iter().map(|lease| lease.lease_token.clone());
    let secrets: Vec<_> = secrets
        .chain(tap.request_ids())
        .chain([CANARY.to_owned()])
        .collect();
    let shown = secrets.iter().filter(|secret| output.contains(&***secret));
    let shown = shown.count();
    figures(&format!(
        "suite {:?}: output={}B secrets={} shown={shown}",
        cast.one,
        output.len(),
        secrets.len()
    ));
    assert!(leases.len() >= 2 && secrets.len() > 6 && secrets.iter().all(|one| one.len() > 8));
    assert!(output.contains(&leases[0].lease_id), "something is printed");
    assert_eq!(shown, 0);
    let credential = Some(format!("Bearer {CANARY}"));
    for (method, shown) in recorder.seen() {
        let all = shown.iter().all(|shown| *shown == credential);
        assert!(all, "{method}: {shown:?}");
    }
    for method in ["LockService/Hold", "InspectionService/GetLock"] {
        let method = format!("/leasehold.v1.{method}");
        assert!(recorder.seen().contains_key(&method), "no {method}");
    }
}

/// A broker is believed if the authority that was given has signed its certificate; the probe shows its
/// own.
pub async fn tls_shows_a_certificate_and_is_checked(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = ours.server(&["127.0.0.1"]);
    let relay = TlsRelay::start(scene.deployment.addrs()[0], &server, Some(&ours)).await;
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
    let lease = one.takes(&Ask::one("a")).await;
    assert_eq!(scene.held("a").await.token, lease.token());
    let handshakes = relay.seen().handshakes;
    let by_us = handshakes
        .iter()
        .flatten()
        .all(|seen| *seen == client.certificate());
    assert!(!handshakes.is_empty() && by_us);
}
