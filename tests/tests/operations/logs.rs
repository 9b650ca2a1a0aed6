//! Format of the log, redaction, rate limits, and changes of the filter at run time.

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc};

use leasehold_proto::{
    text::is_hidden,
    v1::{ForceReleaseLeaseRequest, LockRef, SetLockLimitRequest},
};
use leasehold_server::{
    config::{Config, Flags},
    telemetry,
};
use leasehold_tests::{
    access::{
        files_and_callers::AccessFiles,
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, REPLY_TIMEOUT, acquire_request, send_acquire,
        },
    },
    broker::{
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    client::traced_calls::{acquire_lease, request_with_wait},
    net::plain_http::post,
    process::{binaries::leasehold_server, terminal::Terminal},
    redis::server::RedisServer,
    until::until,
};
use serde_json::Value;
use tokio::{io::AsyncReadExt as _, net::TcpStream, process::Command};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};
use tonic::{Code, Request};
use uuid::Uuid;

const PATH: &str = "/log-filter";
const GRANT: &str = "a lock was granted";
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire"]
    names = ["a"]
    [[rule]]
    callers = ["token:dora"]
    verbs = ["admin"]
"#;

async fn broker(settings: &[(&str, &str)]) -> (BrokerProcess, RedisServer) {
    let redis = RedisServer::start_with(&["--requirepass", "a-password"]).await;
    let url = redis.url().replace("redis://", "redis://:a-password@");
    let mut options = BrokerOptions::for_store(url);
    let settings = settings.iter();
    let settings = settings.map(|(key, value)| (format!("LEASEHOLD__{key}"), (*value).to_owned()));
    options.env.extend(settings);
    options.init_store().await;
    (BrokerProcess::start(&options).await, redis)
}

#[tokio::test]
async fn log_lines_are_json_without_a_terminal() {
    let (broker, _redis) = broker(&[("LOG__FORMAT", "auto")]).await;
    let log = until("serving", async || {
        let log = broker.log();
        log.contains("serving").then_some(log)
    });
    let log = log.await;
    let lines = log.lines().map(serde_json::from_str::<Value>);
    // The broker prints its addresses to stdout, so they are not part of the log.
    let lines: Vec<_> = lines.map(|line| line.expect(&log)).collect();
    let first = &lines[0];
    assert_eq!(first["fields"]["message"], "starting");
    assert_eq!(first["level"], "INFO");
    let settings = first["fields"]["settings"].as_str().expect("a text");
    assert!(settings.contains("store.url=redis://:***@"), "{settings}");
    assert!(settings.contains("server.listen=127.0.0.1:"), "{settings}");
    assert!(
        !settings.contains("limits.ttl_max"),
        "a default: {settings}"
    );
    assert!(!log.contains("a-password"), "{log}");
    assert_eq!(log.matches("\"starting\"").count(), 1);
}

#[tokio::test]
async fn log_lines_are_text_on_a_terminal() {
    let leader = Path::new(env!("CARGO_BIN_EXE_on_terminal"));
    for (no_color, coloured) in [("", true), ("1", false)] {
        let mut dev = Command::new(leasehold_server());
        let anywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        dev.arg("dev").args(anywhere).env("NO_COLOR", no_color);
        let mut terminal = Terminal::start(leader, &dev, 200);
        let shown = terminal.wait_for_text("serving").await;
        assert!(!shown.contains("{\"timestamp\""), "{shown}");
        assert_eq!(shown.contains("\u{1b}[32m"), coloured, "{shown:?}");
        terminal.type_text("\u{3}");
        assert_eq!(terminal.wait_for_exit().await, Some(0));
    }
}

#[tokio::test]
async fn warnings_of_the_configuration_are_in_the_log_at_start() {
    let access_files = AccessFiles::new(ALLOW_ALL_POLICY, &[("alice", "alice")]);
    let options = access_files.options("memory".to_owned());
    let policy = options.env.iter().find(|(key, _)| key.contains("POLICY"));
    let policy = policy.map(|(_, path)| path.clone()).expect("a policy");
    let mode = fs::Permissions::from_mode(0o622);
    fs::set_permissions(&policy, mode).expect("a file of its own");
    let log = BrokerProcess::start(&options).await.log();
    let warning = format!(
        "WARN leasehold_server::serve: authorization.policy_file (from LEASEHOLD__AUTHORIZATION__POLICY_FILE): \
        every user of this machine can write {policy}: run chmod o-w {policy}"
    );
    assert_eq!(log.matches(&warning).count(), 1, "{log}");
}

#[tokio::test]
async fn the_filter_changes_by_a_post() {
    let (broker, _redis) = broker(&[]).await;
    let grants = || broker.log().matches(GRANT).count();
    acquire_lease(&broker, Request::new(request_with_wait("a", 0)))
        .await
        .expect("free");
    assert_eq!(grants(), 0);
    let set = async |headers: &[(&str, &str)], text: &str| {
        post(broker.admin(), PATH, headers, text).await.0
    };
    let debug = "info,leasehold_server=debug";
    // The headers of a page of another origin, and of a request that no page has sent.
    assert_eq!(set(&[("origin", "https://evil.test")], debug).await, 403);
    assert_eq!(set(&[("sec-fetch-site", "none")], debug).await, 403);
    for wrong in ["", "leasehold_server=loud", &"x".repeat(5_000)] {
        assert_eq!(set(&[], wrong).await, 400, "{wrong}");
    }
    acquire_lease(&broker, Request::new(request_with_wait("b", 0)))
        .await
        .expect("free");
    assert_eq!(grants(), 0);
    assert_eq!(set(&[], debug).await, 200);
    acquire_lease(&broker, Request::new(request_with_wait("c", 0)))
        .await
        .expect("free");
    assert_eq!(grants(), 1, "{}", broker.log());
    let audit = "an operator has changed the log filter";
    assert_eq!(broker.log().matches(audit).count(), 1, "{}", broker.log());
    assert_eq!(set(&[], "info").await, 200);
    acquire_lease(&broker, Request::new(request_with_wait("d", 0)))
        .await
        .expect("free");
    assert_eq!(grants(), 1);
}

#[tokio::test]
async fn the_filter_is_changed_by_operators_only() {
    let fixture = AccessControlFixture::start(RULES, &[("alice", "alice"), ("dora", "dora")]).await;
    let admin = fixture.broker.admin();
    for (token, code) in [("", 401), ("nobody", 401), ("alice", 403), ("dora", 200)] {
        let shown = format!("Bearer {token}");
        let headers = [("authorization", shown.as_str())];
        let headers = if token.is_empty() { &[] } else { &headers[..] };
        let (answered, reason) = post(admin, PATH, headers, "info,h2=info").await;
        assert_eq!(answered, code, "{token}: {reason}");
    }
    let log = fixture.broker.log();
    let line = log
        .lines()
        .find(|line| line.contains("changed the log filter"));
    let line = line.expect(&log);
    assert!(
        line.contains("audit") && line.contains(r#"caller="token:dora""#),
        "{line}"
    );
}

#[tokio::test]
async fn denials_are_audited_and_do_not_flood_the_log() {
    let fixture = AccessControlFixture::start(RULES, &[("alice", "alice")]).await;
    let denied = || {
        let log = fixture.broker.log();
        let lines = log.lines().filter(|line| line.contains(" audit: denied"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let alice = fixture.caller("alice");
    let refused = send_acquire(&alice, acquire_request("b", REPLY_TIMEOUT)).await;
    refused.expect_err("not hers");
    let [line] = &denied()[..] else {
        panic!("one line: {}", fixture.broker.log())
    };
    for part in [
        r#"caller="token:alice""#,
        "peer=127.",
        r#"lock="default/b""#,
        r#"what="acquire""#,
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let refused = send_acquire(
        &fixture.anonymous_caller(),
        acquire_request("a", REPLY_TIMEOUT),
    )
    .await;
    refused.expect_err("nobody");
    assert!(denied()[1].contains(r#"caller="""#), "{:?}", denied());
    let started_at = tokio::time::Instant::now();
    let flood = 1_000;
    for _ in 0..flood {
        let refused = send_acquire(&alice, acquire_request("b", REPLY_TIMEOUT)).await;
        refused.expect_err("not hers");
    }
    // The limit allows a burst, the first denial in a minute, and five lines per second.
    let maximum = 21 + started_at.elapsed().as_secs() * 5 + 5;
    let denied_lines = denied().len() as u64;
    assert!(
        (15..=maximum).contains(&denied_lines),
        "{denied_lines} lines, {maximum} at most"
    );
}

#[tokio::test]
async fn a_lock_name_does_not_forge_fields_of_audit_lines() {
    const NAME: &str = "x lease_id=aaaa owner=\"alice\" \u{202E}\u{2028}\u{3164}";
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("dora", "dora")]).await;
    let dora = fixture.caller("dora");
    let lease = send_acquire(&dora, acquire_request(NAME, REPLY_TIMEOUT))
        .await
        .expect("free");
    let lock = |name: &str| {
        Some(LockRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        })
    };
    let force = ForceReleaseLeaseRequest {
        lock: lock(NAME),
        lease_id: lease.lease_id,
        reason: "real".to_owned(),
        request_id: Uuid::new_v4().to_string(),
        ..ForceReleaseLeaseRequest::default()
    };
    let mut operator = dora.admin.clone();
    operator.force_release_lease(force).await.expect("done");
    let free = format!("{NAME} free");
    let limit = SetLockLimitRequest {
        lock: lock(&free),
        limit: 2,
    };
    let set = dora.locks.clone().set_lock_limit(limit).await;
    set.expect("done");
    fixture.access_files.set_policy(RULES);
    until("the new rules", async || {
        let refused = send_acquire(&dora, acquire_request(NAME, REPLY_TIMEOUT))
            .await
            .err();
        refused.filter(|status| status.code() == Code::PermissionDenied)
    })
    .await;
    let log = fixture.broker.log();
    for (event, name) in [
        ("an operator has revoked a lease", NAME),
        ("a limit was set", &free),
        ("denied", NAME),
    ] {
        let line = log
            .lines()
            .find(|line| line.contains(&format!(" audit: {event}")));
        let line = line.unwrap_or_else(|| panic!("{event}: {log}"));
        let quoted = format!("lock={:?}", format!("default/{name}"));
        let quoted = quoted.replace('\u{3164}', "‹U+3164›");
        assert_eq!(line.matches(&quoted).count(), 1, "{quoted}: {line}");
        let rest = line.replace(&quoted, "");
        assert!(!rest.contains("aaaa") && !rest.contains("alice"), "{line}");
        assert!(!line.chars().any(is_hidden), "{line:?}");
    }
}

#[tokio::test]
async fn denials_of_known_callers_are_audited_whatever_strangers_do() {
    const EACH: usize = 10;
    let callers = ["alice", "bob", "carol"];
    let fixture = AccessControlFixture::start(RULES, &callers.map(|name| (name, name))).await;
    let nobody = fixture.anonymous_caller();
    for _ in 0..EACH {
        // This number exceeds the rate limit of the log for unauthenticated callers.
        for _ in 0..50 {
            let refused = send_acquire(&nobody, acquire_request("a", REPLY_TIMEOUT)).await;
            refused.expect_err("nobody");
        }
        let refused = send_acquire(
            &fixture.caller("alice"),
            acquire_request("b", REPLY_TIMEOUT),
        )
        .await;
        refused.expect_err("not hers");
    }
    for name in callers {
        let refused =
            send_acquire(&fixture.caller(name), acquire_request("b", REPLY_TIMEOUT)).await;
        refused.expect_err("not theirs");
    }
    let log = fixture.broker.log();
    let denied = |name: &str| {
        let caller = format!(r#"caller="token:{name}""#);
        let lines = log.lines().filter(|line| line.contains(" audit: denied"));
        lines.filter(|line| line.contains(&caller)).count()
    };
    assert_eq!(callers.map(denied), [EACH + 1, 1, 1], "{log}");
}

#[tokio::test]
async fn clients_that_connect_to_addresses_do_not_flood_the_log() {
    let redis = RedisServer::start().await;
    let mut options = BrokerTls::create(false).options(redis.url());
    let tls = BrokerTls::create(false);
    options.env = tls.options(redis.url()).env;
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let warnings = || broker.log().matches("Illegal SNI").count();
    send_client_hello(&broker).await;
    assert_eq!(warnings(), 0, "{}", broker.log());
    // This filter logs the warning, which shows that the search finds it.
    let asked = (
        "LEASEHOLD__LOG__FILTER",
        "info,rustls::msgs::handshake=warn",
    );
    options.env.push((asked.0.to_owned(), asked.1.to_owned()));
    let broker = BrokerProcess::start(&options).await;
    send_client_hello(&broker).await;
    let log = broker.log();
    assert_eq!(log.matches("Illegal SNI").count(), 1, "{log}");
}

/// Sends a TLS ClientHello with an IP address as the server name, as some clients do.
async fn send_client_hello(broker: &BrokerProcess) {
    let trust = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
    let name = "abc.a.a.d".try_into().expect("a name");
    let client = ClientConnection::new(Arc::new(trust.with_no_client_auth()), name);
    let mut hello = Vec::new();
    let mut client = client.expect("a client");
    client.write_tls(&mut hello).expect("it fits");
    let at = hello.windows(9).position(|bytes| bytes == b"abc.a.a.d");
    let mut to = &mut hello[at.expect("it names the server")..];
    to.write_all(b"127.0.0.1").expect("it fits");
    let mut connection = TcpStream::connect(broker.addr()).await.expect("it listens");
    tokio::io::AsyncWriteExt::write_all(&mut connection, &hello)
        .await
        .expect("sent");
    let mut answer = [0; 1];
    let read = connection.read(&mut answer).await.expect("an answer");
    assert_eq!(read, 1, "the broker goes on with the handshake");
}

const PANICS: &str = "LEASEHOLD_TEST_PANICS";

/// Runs the panic in a separate process, because a panic hook applies to the whole process.
#[tokio::test]
async fn a_panic_is_one_line() {
    let test = std::env::current_exe().expect("a test knows its own path");
    let (_program, module) = module_path!().split_once("::").expect("a module");
    let panics = format!("{module}::panics_for_another_test");
    let mut command = Command::new(test);
    command.args(["--exact", &panics, "--nocapture"]);
    command.env(PANICS, "1").env("RUST_BACKTRACE", "0");
    let output = command.output().await.expect("it runs");
    let denied_lines = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = denied_lines.lines().filter(|line| line.contains("boom"));
    let lines: Vec<_> = lines.collect();
    let [line] = lines[..] else {
        panic!("one line: {denied_lines}")
    };
    let line: Value = serde_json::from_str(line).expect(line);
    assert_eq!(line["fields"]["message"], "internal error: panic: boom");
    assert_eq!(line["level"], "ERROR");
    let source_location = line["fields"]["place"].as_str().expect("a text");
    assert!(source_location.contains("logs.rs:"), "{source_location}");
}

#[test]
fn panics_for_another_test() {
    if std::env::var_os(PANICS).is_some() {
        let config = Config::load(&Flags::default(), true).expect("the defaults are legal");
        telemetry::init(config.log_format, &config.live.borrow().log_filter);
        let thread = std::thread::spawn(|| panic!("boom"));
        assert!(thread.join().is_err());
    }
}
