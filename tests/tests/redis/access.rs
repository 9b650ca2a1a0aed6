//! Access to a protected Redis: TLS, users, and secrets in files.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use leasehold_proto::v1::{
    ListLocksRequest, LockRef, SetLockLimitRequest, hold_response::Message as Response,
    lock_service_client::LockServiceClient,
};
use leasehold_server::store::redis::{
    connection::RedisConfig,
    credentials::{Credentials, Secret},
    location::StoreLocation,
    tls::Tls,
};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    },
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, channel},
    },
    net::certificates::{Authority, SignedCertificate},
    process::{ports::free_port, temp_dir::TempDir},
    redis::{
        connection::RedisConnection,
        node_fixture::{NodeFixture, config, rejection_message, run_answer_script},
        server::RedisServer,
        shared_server::config_address,
    },
};

const TTL: Duration = Duration::from_secs(10);
const NAME: &str = "redis.test";
const OPERATING: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md"));

/// A Redis that accepts TLS on a separate port, and the files for its clients.
struct Guarded {
    server: RedisServer,
    tls_port: u16,
    authority: Authority,
    dir: TempDir,
}

impl Guarded {
    /// Starts the server. Clients need no certificate if `clients` is `no`.
    async fn start(clients: &str) -> Self {
        let (dir, authority) = (TempDir::new("tls"), Authority::new("the authority"));
        let tls_port = free_port();
        let (certificate, key) = files(&dir, "server", &authority.server(&[NAME]));
        let ca = file(&dir, "ca.pem", &authority.pem());
        let port = tls_port.to_string();
        let [certificate, key, ca] = [&certificate, &key, &ca].map(|path| path.to_string_lossy());
        let options = [
            ["--tls-port", &port],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
            ["--tls-auth-clients", clients],
        ];
        Self {
            server: RedisServer::start_with(options.as_flattened()).await,
            tls_port,
            authority,
            dir,
        }
    }

    fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.tls_port))
    }

    /// Returns the TLS settings for a server that requires no client certificate.
    fn tls(&self) -> Tls {
        Tls {
            ca_file: Some(self.dir.path().join("ca.pem")),
            client: None,
            server_name: Some(NAME.to_owned()),
        }
    }

    fn config(&self, tls: Option<Tls>) -> RedisConfig {
        RedisConfig {
            location: StoreLocation::Server(config_address(self.addr())),
            tls,
            ..config(&self.server)
        }
    }

    /// Returns the error of a broker that connects with these settings.
    async fn refusal(&self, tls: Option<Tls>) -> String {
        rejection_message(NodeFixture::try_start(self.config(tls)).await)
    }
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("write a file");
    path
}

fn files(dir: &TempDir, name: &str, signed: &SignedCertificate) -> (PathBuf, PathBuf) {
    let certificate = file(dir, &format!("{name}.pem"), &signed.pem());
    (
        certificate,
        file(dir, &format!("{name}.key"), &signed.key_pem()),
    )
}

fn setting(key: &str, value: &str) -> (String, String) {
    (format!("LEASEHOLD__STORE__{key}"), value.to_owned())
}

fn path_setting(key: &str, path: &std::path::Path) -> (String, String) {
    setting(key, &path.to_string_lossy())
}

#[tokio::test]
async fn a_broker_with_a_certificate_of_its_own_reaches_redis_by_tls_alone() {
    let redis = Guarded::start("yes").await;
    let own = redis.authority.client("broker");
    let (certificate, key) = files(&redis.dir, "broker", &own);
    let mut options = BrokerOptions::for_store(format!("rediss://{}/0", redis.addr()));
    options.env = vec![
        path_setting("TLS_CA_FILE", &redis.dir.path().join("ca.pem")),
        path_setting("TLS_CERT_FILE", &certificate),
        path_setting("TLS_KEY_FILE", &key),
        setting("TLS_SERVER_NAME", NAME),
    ];
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let client = Client::new("caller", &[broker.addr()], 0);
    let call = AcquireCall::new("a-lock", TTL, Duration::ZERO);
    client.acquire(&call).await.expect("by TLS");
    let mut raw = redis.server.connect().await;
    let connected = raw.must(&["CLIENT", "LIST"]).await;
    let at = |port: u16| format!("laddr=127.0.0.1:{port} ");
    let count = |port| connected.text().matches(&at(port)).count();
    assert!(count(redis.tls_port) >= 3, "{connected:?}");
    assert_eq!(count(redis.server.addr().port()), 1, "only this test's");
}

#[tokio::test]
async fn tls_that_does_not_fit_is_refused_with_a_sentence() {
    let redis = Guarded::start("no").await;
    let broker = NodeFixture::start(redis.config(Some(redis.tls()))).await;
    assert_eq!(run_answer_script(&*broker.node().await).await, Ok(42));
    let stranger = Authority::new("a stranger");
    let ca_file = Some(file(&redis.dir, "other-ca.pem", &stranger.pem()));
    let other_ca = Tls {
        ca_file,
        ..redis.tls()
    };
    let other_name = Tls {
        server_name: None,
        ..redis.tls()
    };
    for (tls, says) in [(other_ca, "store.tls_ca_file"), (other_name, "127.0.0.1")] {
        let refused = redis.refusal(Some(tls)).await;
        assert!(refused.contains("do not agree on TLS"), "{refused}");
        assert!(refused.contains(says), "{refused}");
    }
    let refused = redis.refusal(None).await;
    assert!(refused.contains("cannot be reached"), "{refused}");

    let strict = Guarded::start("yes").await;
    let refused = strict.refusal(Some(strict.tls())).await;
    assert!(refused.contains("store.tls_cert_file"), "{refused}");
}

#[tokio::test]
async fn credentials_are_used_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "open sesame"]).await;
    let refused = rejection_message(NodeFixture::try_start(config(&server)).await);
    assert!(refused.contains("rejects this broker's user"), "{refused}");
    let with = |password: &str| RedisConfig {
        credentials: Credentials {
            username: None,
            password: Some(Secret::Text(password.into())),
        },
        ..config(&server)
    };
    let wrong = with("wrong secret");
    assert!(!format!("{wrong:?}").contains("secret"));
    let refused = rejection_message(NodeFixture::try_start(wrong).await);
    assert!(!refused.contains("secret"), "{refused}");
    let broker = NodeFixture::start(with("open sesame")).await;
    assert_eq!(run_answer_script(&*broker.node().await).await, Ok(42));
}

#[tokio::test]
async fn a_changed_password_counts_from_the_next_connection_on() {
    let server = RedisServer::start_with(&["--requirepass", "first"]).await;
    let dir = TempDir::new("password");
    let path = file(&dir, "password", "first\n");
    let config = RedisConfig {
        credentials: Credentials {
            username: None,
            password: Some(Secret::File(path)),
        },
        ..config(&server)
    };
    let broker = NodeFixture::start(config).await;
    let node = broker.node().await;
    let mut raw = server.connect().await;
    raw.must(&["AUTH", "first"]).await;
    raw.must(&["CONFIG", "SET", "requirepass", "second"]).await;
    file(&dir, "password", "second\n");
    assert_eq!(run_answer_script(&node).await, Ok(42), "who is in stays in");
    raw.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    node.closed().await;
    assert_eq!(run_answer_script(&*broker.node().await).await, Ok(42));
}

/// Returns the ACL rules of the line that the documentation prints.
fn printed_rights() -> Vec<String> {
    let line = OPERATING
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER leasehold "))
        .expect("the documentation prints the line");
    let line = line.replace("leasehold:", KEY_PREFIX);
    line.split(' ').map(ToOwned::to_owned).collect()
}

/// Makes brokers send every kind of command: a wait, a hand-off from one broker to the other, a
/// stream, reads, and a limit that is set and removed.
async fn use_everything(deployment: &Deployment) {
    let addrs = deployment.addrs();
    let client = Client::new("caller", &addrs, 0);
    let now = AcquireCall::new("a-lock", TTL, Duration::ZERO);
    let held = client.acquire(&now).await.expect("it is free");
    let mut stream = StreamClient::open(addrs[1]).await;
    let call = stream
        .acquire(&AcquireCall::new("a-lock", TTL, TTL), 1)
        .await;
    stream.next_queue_position(call).await;
    client
        .get_lock_at(0, "a-lock")
        .await
        .expect("a caller holds it");
    let page = client.page_at(1, &ListLocksRequest::default()).await;
    assert_eq!(page.expect("a list").locks.len(), 1);
    client.release(&held).await.expect("it is ours");
    let lease = stream.expect_granted(call).await;
    let beat = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(beat).await, 1);
    stream.release(&lease.lease_id).await;
    let response = stream.next_event().await;
    assert!(matches!(response, Response::Released(_)), "{response:?}");
    let mut locks = LockServiceClient::new(channel(deployment.brokers[0].addr()));
    for limit in [2, 0] {
        let lock = LockRef {
            name: "a-semaphore".to_owned(),
            ..LockRef::default()
        };
        let request = SetLockLimitRequest {
            lock: Some(lock),
            limit,
        };
        locks.set_lock_limit(request).await.expect("it is set");
    }
}

#[tokio::test]
async fn the_printed_rights_of_a_redis_user_are_enough_and_none_is_too_much() {
    let server = RedisServer::start().await;
    let mut raw = server.connect().await;
    let rights = printed_rights();
    let mut words = vec!["ACL", "SETUSER", "leasehold"];
    words.extend(rights.iter().map(String::as_str));
    raw.must(&words).await;
    raw.must(&["ACL", "SETUSER", "leasehold", ">secret"]).await;
    raw.must(&["CONFIG", "RESETSTAT"]).await;

    let dir = TempDir::new("login");
    let mut options = BrokerOptions::for_store(server.url());
    options.env = vec![
        path_setting("USERNAME_FILE", &file(&dir, "user", "leasehold\n")),
        path_setting("PASSWORD_FILE", &file(&dir, "password", "secret\n")),
    ];
    let deployment = Deployment::start_on(server, &options, 2).await;
    use_everything(&deployment).await;
    let denied = raw.must(&["ACL", "LOG"]).await;
    assert!(denied.array().is_empty(), "{denied:?}");
    let used = raw.must(&["INFO", "commandstats"]).await;
    for right in rights.iter().filter_map(|right| right.strip_prefix('+')) {
        let is_used = used.text().contains(&format!("cmdstat_{right}:"));
        assert!(is_used, "{right} is granted and not used");
    }
    assert_is_confined(&mut raw, &deployment).await;
}

/// Asserts that the user can access neither keys outside the prefix nor commands for operators.
async fn assert_is_confined(raw: &mut RedisConnection, deployment: &Deployment) {
    let mut user = RedisConnection::open(deployment.redis.addr())
        .await
        .expect("connect");
    user.must(&["AUTH", "leasehold", "secret"]).await;
    raw.must(&["SET", "other", "1"]).await;
    for words in [&["GET", "other"][..], &["FLUSHALL"], &["EVAL", "", "0"]] {
        let reply = user.command(words).await.expect("an answer");
        let is_denied = format!("{reply:?}").contains("NOPERM");
        assert!(is_denied, "{words:?}: {reply:?}");
    }
}
