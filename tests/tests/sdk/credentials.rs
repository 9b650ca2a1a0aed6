//! The bearer token of the Rust client, which every call sends to the broker, and which no log,
//! debug output or error contains.

use std::time::Duration;

use leasehold::{Certificate, Client, ClientTlsConfig, ConnectError, Identity};
use leasehold_tests::{
    broker::deployment::Deployment,
    net::{certificates::Authority, credential_recorder::CredentialRecorder, tls_relay::TlsRelay},
    process::log_capture::LogCapture,
    scale::print_figures,
    sdk::broker::acquire_and_release,
};
use tokio::time::timeout;

/// The token. Each log line or text that contains it is a leak.
const CANARY: &str = "canary-5b1f0c8e";
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// A single test, because the log belongs to the process.
#[tokio::test]
async fn the_token_goes_with_every_call_and_nowhere_else() {
    let log = LogCapture::start();
    let deployment = Deployment::start(1).await;
    let recorder = CredentialRecorder::start(deployment.addrs()[0]).await;
    let authority = Authority::new("brokers");
    let server = authority.server(&["127.0.0.1"]);
    let relay = TlsRelay::start(recorder.addr(), &server, None).await;
    let identity = authority.client("worker-1");
    let key = identity.key_pem();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .identity(Identity::from_pem(identity.pem(), &key));
    let open = format!("{tls:?}");
    let builder = Client::builder(&format!("https://{}", relay.addr()));
    let builder = builder.tls(tls).bearer_token(CANARY);
    let mut messages = vec![format!("{builder:?}")];
    let client = builder.connect().await.expect("a broker that runs");
    messages.push(format!("{client:?}"));

    let guard = client.lock("a").acquire().await.expect("it is free");
    messages.push(format!(
        "{guard:?} {:?} {:?}",
        guard.held(),
        client.lock("a")
    ));
    let error = client.lock("a").wait(Duration::ZERO).acquire().await;
    let error = error.expect_err("it is held");
    messages.push(format!("{error} {error:?}"));
    let leader = client.elect("a").observe().next().await.expect("a look");
    assert!(leader.is_some(), "a lock that is held");

    // A release without an answer when the stream breaks is repeated as a unary call.
    relay.close_connections();
    let released = tokio::join!(guard.release(), async {
        // Failed attempts to connect are logged.
        let log = || log.text().contains("a broker does not answer");
        let refused = async {
            while !log() {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIME_LIMIT, refused).await.expect("it tries");
        relay.reopen();
    });
    released.0.expect("it was held");
    acquire_and_release(&client, "a").await;

    let seen = recorder.recorded();
    let credential = Some(format!("Bearer {CANARY}"));
    for (method, least) in [
        ("/leasehold.v1.LockService/Hold", 2),
        ("/leasehold.v1.LockService/Release", 1),
        ("/leasehold.v1.InspectionService/GetLock", 1),
    ] {
        let calls = seen.get(method).map_or(&[][..], Vec::as_slice);
        assert!(calls.len() >= least, "{method}: {seen:?}");
        assert!(
            calls.iter().all(|identity| *identity == credential),
            "{seen:?}"
        );
    }
    client.shutdown().await;
    drop(relay);
    messages.push(unreachable(recorder.addr()).await);
    messages.push(invalid(&format!("{CANARY}\n")).await);

    let log = log.text();
    // Control: the debug output of the TLS configuration contains the key, and the check finds it.
    assert!(has_bytes_of(&open, &key), "{open}");
    assert!(log.contains("h2::") && log.contains("TRACE"), "all of it");
    for line in log.lines().chain(messages.iter().map(String::as_str)) {
        assert!(!line.contains(CANARY), "{line}");
        assert!(!has_bytes_of(line, &key), "{line}");
    }
    print_figures(&format!(
        "sdk_credentials: calls={} log_lines={} texts={}",
        seen.values().map(Vec::len).sum::<usize>(),
        log.lines().count(),
        messages.len()
    ));
}

/// Returns the error of a client with the token that finds no broker.
async fn unreachable(in_plain: std::net::SocketAddr) -> String {
    let client = Client::builder(&format!("https://{in_plain}")).bearer_token(CANARY);
    let error = client.connect().await.expect_err("no TLS is spoken there");
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error:?}");
    format!("{error} {error:?}")
}

/// Returns the error of a client whose token is not a valid header value.
async fn invalid(token: &str) -> String {
    let client = Client::builder("http://127.0.0.1:1").bearer_token(token);
    let error = client.connect().await.expect_err("no header");
    assert!(
        matches!(error, ConnectError::InvalidCredential(_)),
        "{error:?}"
    );
    format!("{error} {error:?}")
}

/// Returns true if a line has the key as text, or as the bytes in the `Debug` format of a vector.
fn has_bytes_of(line: &str, key: &str) -> bool {
    let body: String = key.chars().skip_while(|c| *c != '\n').skip(1).collect();
    let some = body.get(..32).expect("a key is longer");
    let bytes = format!("{:?}", some.as_bytes());
    line.contains(some) || line.contains(bytes.trim_matches(['[', ']']))
}
