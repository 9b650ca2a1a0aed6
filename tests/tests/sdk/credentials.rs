//! The Rust client's bearer token: every call shows it to the broker, and nothing shows it to anybody
//! else.

use std::time::Duration;

use leasehold::{Certificate, Client, ClientTlsConfig, ConnectError, Identity};
use leasehold_tests::{
    certificates::Authority, deployment::Deployment, log_capture::LogCapture, recorder::Recorder,
    scale::figures, sdk_broker::takes, tls_relay::TlsRelay,
};
use tokio::time::timeout;

/// The token. What logs it or shows it gives it away.
const CANARY: &str = "canary-5b1f0c8e";
const SOON: Duration = Duration::from_secs(5);

/// One test: the log is that of the process.
#[tokio::test]
async fn the_token_goes_with_every_call_and_nowhere_else() {
    let log = LogCapture::begin();
    let deployment = Deployment::start(1).await;
    let recorder = Recorder::start(deployment.addrs()[0]).await;
    let authority = Authority::new("brokers");
    let server = authority.server(&["127.0.0.1"]);
    let relay = TlsRelay::start(recorder.addr(), &server, None).await;
    let shown = authority.client("worker-1");
    let key = shown.key_pem();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .identity(Identity::from_pem(shown.pem(), &key));
    let open = format!("{tls:?}");
    let builder = Client::builder(&format!("https://{}", relay.addr()));
    let builder = builder.tls(tls).bearer_token(CANARY);
    let mut said = vec![format!("{builder:?}")];
    let client = builder.connect().await.expect("a broker that runs");
    said.push(format!("{client:?}"));

    let guard = client.lock("a").acquire().await.expect("it is free");
    said.push(format!(
        "{guard:?} {:?} {:?}",
        guard.held(),
        client.lock("a")
    ));
    let error = client.lock("a").wait(Duration::ZERO).acquire().await;
    let error = error.expect_err("it is held");
    said.push(format!("{error} {error:?}"));
    let leader = client.elect("a").observe().next().await.expect("a look");
    assert!(leader.is_some(), "a lock that is held");

    // A release that a break leaves open is a call of its own.
    relay.cut();
    let released = tokio::join!(guard.release(), async {
        // What is refused meanwhile is in the log.
        let log = || log.text().contains("a broker does not answer");
        let refused = async {
            while !log() {
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, refused).await.expect("it tries");
        relay.mend();
    });
    released.0.expect("it was held");
    takes(&client, "a").await;

    let seen = recorder.seen();
    let credential = Some(format!("Bearer {CANARY}"));
    for (method, least) in [
        ("/leasehold.v1.LockService/Hold", 2),
        ("/leasehold.v1.LockService/Release", 1),
        ("/leasehold.v1.InspectionService/GetLock", 1),
    ] {
        let calls = seen.get(method).map_or(&[][..], Vec::as_slice);
        assert!(calls.len() >= least, "{method}: {seen:?}");
        assert!(calls.iter().all(|shown| *shown == credential), "{seen:?}");
    }
    client.shutdown().await;
    drop(relay);
    said.push(unreachable(recorder.addr()).await);
    said.push(invalid(&format!("{CANARY}\n")).await);

    let log = log.text();
    // What is not kept secret is there.
    assert!(has_bytes_of(&open, &key), "{open}");
    assert!(log.contains("h2::") && log.contains("TRACE"), "all of it");
    for line in log.lines().chain(said.iter().map(String::as_str)) {
        assert!(!line.contains(CANARY), "{line}");
        assert!(!has_bytes_of(line, &key), "{line}");
    }
    figures(&format!(
        "sdk_credentials: calls={} log_lines={} texts={}",
        seen.values().map(Vec::len).sum::<usize>(),
        log.lines().count(),
        said.len()
    ));
}

/// The error of a client with the token to which nobody answers.
async fn unreachable(in_plain: std::net::SocketAddr) -> String {
    let client = Client::builder(&format!("https://{in_plain}")).bearer_token(CANARY);
    let error = client.connect().await.expect_err("no TLS is spoken there");
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error:?}");
    format!("{error} {error:?}")
}

/// The error of a client with a token that no header may have.
async fn invalid(token: &str) -> String {
    let client = Client::builder("http://127.0.0.1:1").bearer_token(token);
    let error = client.connect().await.expect_err("no header");
    assert!(
        matches!(error, ConnectError::InvalidCredential(_)),
        "{error:?}"
    );
    format!("{error} {error:?}")
}

/// Whether a line has the key as text or as the bytes that Debug shows of a vector.
fn has_bytes_of(line: &str, key: &str) -> bool {
    let body: String = key.chars().skip_while(|c| *c != '\n').skip(1).collect();
    let some = body.get(..32).expect("a key is longer");
    let bytes = format!("{:?}", some.as_bytes());
    line.contains(some) || line.contains(bytes.trim_matches(['[', ']']))
}
