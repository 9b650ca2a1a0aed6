//! What callers do wrong, told by the class of the error.

use serde_json::{Value, json};

use super::{language::Cast, probe::Probe, scene::Scene, wire::Ask};
use crate::port::free_port;

/// A probe says which client it is.
pub async fn a_probe_is_of_its_language(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let version = scene.one().await.told("version", json!({})).await;
    let language = version["language"].as_str().expect("a name");
    assert_eq!(language, format!("{:?}", cast.one).to_lowercase());
    let number = version["version"].as_str().expect("a version");
    assert!(number.starts_with(|c: char| c.is_ascii_digit()), "{number}");
}

/// A call that is not legal is told so, and harms nothing else.
pub async fn calls_that_are_not_legal_are_told_by_their_class(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let all = |targets: Vec<Value>| Ask::all("x", targets);
    let locks = |count| {
        (0..count)
            .map(|lock| json!({"name": format!("lock-{lock}")}))
            .collect()
    };
    one.takes(&Ask::permits("gpu", 1, 5)).await;
    for (class, ask) in [
        ("Invalid", Ask::one("")),
        ("Invalid", Ask::one("a\nb")),
        ("Invalid", Ask::one(&"x".repeat(513))),
        ("Invalid", Ask::one("a").with("reason", "x".repeat(513))),
        ("Invalid", Ask::permits("a", 2, 1)),
        ("Invalid", Ask::permits("a", 1, 1_001)),
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
        ("LimitMismatch", Ask::permits("gpu", 1, 6).called("x")),
        ("LimitMismatch", Ask::shared("gpu").called("x")),
    ] {
        let failure = one.acquire(&ask).await.expect_err("it is not legal");
        assert_eq!(failure.class, class, "{ask:?}: {failure:?}");
        assert!(!failure.message.is_empty() && failure.holders.is_empty());
    }
    one.takes(&all(locks(16)).called("sixteen")).await;
    assert!(one.state("gpu").await.valid);
}

/// A client that cannot be made says why.
pub async fn an_endpoint_that_is_none_is_told_by_its_class(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let broker = format!("http://{}", scene.deployment.addrs()[0]);
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
    // The broker answers; the other endpoint is of a network for documentation.
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
    one.expect("it is allowed").takes(&Ask::one("b")).await;
    let both = format!("{nowhere},{broker}");
    let one = Probe::start_with(cast.one.command(), &[("LEASEHOLD_ENDPOINTS", &both)]).await;
    one.expect("the second answers").takes(&Ask::one("a")).await;
}
