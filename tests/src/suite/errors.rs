//! Scenarios of invalid calls, whose errors have the specified class.

use serde_json::{Value, json};

use super::{language::Cast, messages::ProbeAcquire, probe::Probe, scenario::ScenarioFixture};
use crate::process::ports::free_port;

/// A probe reports the language and the version of its client.
pub async fn a_probe_reports_its_language(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let version = fixture
        .start_tested_probe()
        .await
        .run_command("version", json!({}))
        .await;
    let language = version["language"].as_str().expect("a name");
    assert_eq!(language, format!("{:?}", cast.one).to_lowercase());
    let number = version["version"].as_str().expect("a version");
    assert!(number.starts_with(|c: char| c.is_ascii_digit()), "{number}");
}

/// An invalid call is rejected with its class, and affects no other call.
pub async fn invalid_calls_are_rejected_with_their_error_class(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let all = |targets: Vec<Value>| ProbeAcquire::all("x", targets);
    let locks = |count| {
        (0..count)
            .map(|lock| json!({"name": format!("lock-{lock}")}))
            .collect()
    };
    one.expect_acquired(&ProbeAcquire::permits("gpu", 1, 5))
        .await;
    for (class, ask) in [
        ("Invalid", ProbeAcquire::exclusive("")),
        ("Invalid", ProbeAcquire::exclusive("a\nb")),
        ("Invalid", ProbeAcquire::exclusive(&"x".repeat(513))),
        (
            "Invalid",
            ProbeAcquire::exclusive("a").with_field("reason", "x".repeat(513)),
        ),
        ("Invalid", ProbeAcquire::permits("a", 2, 1)),
        ("Invalid", ProbeAcquire::permits("a", 1, 1_001)),
        (
            "Invalid",
            all(vec![json!({"name": "a", "namespace": "No"})]),
        ),
        (
            "Invalid",
            all(vec![json!({"name": "a"}), json!({"name": "a"})]),
        ),
        ("Invalid", all(vec![])),
        ("Invalid", all(locks(17))),
        (
            "LimitMismatch",
            ProbeAcquire::permits("gpu", 1, 6).with_lease_name("x"),
        ),
        (
            "LimitMismatch",
            ProbeAcquire::shared("gpu").with_lease_name("x"),
        ),
    ] {
        let failure = one.acquire(&ask).await.expect_err("it is not legal");
        assert_eq!(failure.class, class, "{ask:?}: {failure:?}");
        assert!(!failure.message.is_empty() && failure.holders.is_empty());
    }
    one.expect_acquired(&all(locks(16)).with_lease_name("sixteen"))
        .await;
    assert!(one.state("gpu").await.valid);
}

/// A client that cannot be created reports the reason.
pub async fn invalid_endpoints_are_rejected_with_their_error_class(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let broker = format!("http://{}", fixture.deployment.addrs()[0]);
    let fails = async |env: &[(&str, &str)]| {
        let failed = Probe::start_with(cast.one.command(), env).await;
        failed.expect_err("it cannot connect")
    };
    for (class, endpoints) in [
        ("NoEndpoint", " , "),
        ("InvalidEndpoint", "ftp://broker:7070"),
        ("InvalidEndpoint", "127.0.0.1:7070"),
        ("Unreachable", &*nowhere),
    ] {
        let failure = fails(&[("LEASEHOLD_ENDPOINTS", endpoints)]).await;
        assert_eq!(failure.class, class, "{endpoints}: {failure:?}");
        let named = class == "NoEndpoint" || failure.message.contains(endpoints);
        assert!(named, "{failure:?}");
    }
    for (class, name, value) in [
        ("InvalidOwner", "LEASEHOLD_OWNER", ""),
        ("InvalidCredential", "LEASEHOLD_BEARER_TOKEN", "t\u{fc}r"),
        ("InvalidCredential", "LEASEHOLD_BEARER_TOKEN", "a\nb"),
    ] {
        let failure = fails(&[("LEASEHOLD_ENDPOINTS", &broker), (name, value)]).await;
        assert_eq!(failure.class, class, "{failure:?}");
    }
    // The broker responds; the other endpoint is in a network for documentation.
    let exposed = "http://192.0.2.1:7070";
    let urls = format!("{broker},{exposed}");
    let shown = [
        ("LEASEHOLD_ENDPOINTS", &*urls),
        ("LEASEHOLD_BEARER_TOKEN", "s3cret"),
    ];
    let failure = fails(&shown).await;
    assert_eq!(failure.class, "InsecureToken", "{failure:?}");
    assert!(failure.message.contains(exposed), "{failure:?}");
    let allowed = [&shown[..], &[("LEASEHOLD_ALLOW_INSECURE_TOKEN", "1")]].concat();
    let one = Probe::start_with(cast.one.command(), &allowed).await;
    one.expect("it is allowed")
        .expect_acquired(&ProbeAcquire::exclusive("b"))
        .await;
    let both = format!("{nowhere},{broker}");
    let one = Probe::start_with(cast.one.command(), &[("LEASEHOLD_ENDPOINTS", &both)]).await;
    one.expect("the second answers")
        .expect_acquired(&ProbeAcquire::exclusive("a"))
        .await;
}
