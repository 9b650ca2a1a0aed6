//! Comparison of the error table with the exact replies of real servers, and with the documentation
//! for operators.

use std::{fs, path::Path};

use fred::{
    clients::Client as Fred,
    error::Error,
    interfaces::{ClientLike as _, LuaInterface as _},
    types::{
        Builder, RespVersion, Value,
        config::{Config, ServerConfig},
    },
};
use leasehold_server::store::redis::{
    error_table::{CallerError, ErrorClass, Executed, NodeAction},
    init::{check_store, init_store},
};
use leasehold_tests::{
    process::ports::free_port,
    redis::{
        connection::RedisConnection,
        node_fixture::config,
        rejecting_fixture::{repeat_until_accepted, repeat_until_rejected},
        server::RedisServer,
    },
};

const WRITES: &str = "#!lua\nreturn redis.call('SET', KEYS[1], 'x')";

/// Opens a connection with the settings of a node.
async fn fred(server: &RedisServer) -> Fred {
    let mut builder = Builder::from_config(Config {
        server: ServerConfig::new_centralized("127.0.0.1", server.addr().port()),
        version: RespVersion::RESP2,
        ..Config::default()
    });
    builder.with_connection_config(|connection| {
        connection.max_command_attempts = 1;
        connection.disable_cluster_health_check = true;
    });
    let client = builder.build().expect("a client");
    client.init().await.expect("it connects");
    client
}

/// Returns the error that a script on these keys receives on a new connection.
async fn refused(server: &RedisServer, keys: &[&str]) -> Error {
    let client = fred(server).await;
    let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
    let answer = client.eval::<Value, _, _, _>(WRITES, keys, Vec::<Value>::new());
    answer.await.expect_err("a refusal")
}

async fn cluster_node() -> (RedisServer, RedisConnection, u16) {
    let bus = free_port();
    let options = ["--cluster-enabled", "yes", "--cluster-port"];
    let bus_text = bus.to_string();
    let server = RedisServer::start_with(&[&options[..], &[&bus_text]].concat()).await;
    let raw = server.connect().await;
    (server, raw, bus)
}

/// Returns a key in the lower or the upper half of the slots, and its slot.
async fn key_in(raw: &mut RedisConnection, upper: bool) -> (String, String) {
    for index in 0.. {
        let key = format!("key-{index}");
        let slot = raw.must(&["CLUSTER", "KEYSLOT", &key]).await.integer();
        if (slot >= 8_192) == upper {
            return (key, slot.to_string());
        }
    }
    unreachable!("both halves have keys")
}

#[tokio::test]
async fn what_servers_of_a_cluster_say() {
    let (one, mut raw, _) = cluster_node().await;
    let (other, mut other_raw, bus) = cluster_node().await;
    let output = |error: &Error, word: &str| {
        assert!(error.details().starts_with(word), "{error:?}");
        let refusal = ErrorClass::classify(error);
        (refusal.executed, refusal.action, refusal.caller_error)
    };
    let down = refused(&one, &["a"]).await;
    let unknown = (
        Executed::Unknown,
        NodeAction::Close,
        CallerError::Unavailable,
    );
    assert_eq!(output(&down, "CLUSTERDOWN "), unknown);

    raw.must(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]).await;
    other_raw
        .must(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"])
        .await;
    let (port, bus) = (other.addr().port().to_string(), bus.to_string());
    raw.must(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
        .await;
    let (lower, slot) = key_in(&mut raw, false).await;
    let (upper, _) = key_in(&mut raw, true).await;
    repeat_until_accepted(&mut raw, &["SET", &lower, "x"]).await;
    raw.must(&["DEL", &lower]).await;
    repeat_until_rejected(&mut raw, &["GET", &upper], "MOVED").await;

    let elsewhere = (Executed::No, NodeAction::Redirect, CallerError::Unavailable);
    assert_eq!(output(&refused(&one, &[&upper]).await, "MOVED "), elsewhere);
    let cross = refused(&one, &[&lower, &upper]).await;
    let ends = (Executed::No, NodeAction::Close, CallerError::Unavailable);
    assert_eq!(output(&cross, "CROSSSLOT "), ends);

    let id = other_raw.must(&["CLUSTER", "MYID"]).await;
    raw.must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", id.text()])
        .await;
    assert_eq!(output(&refused(&one, &[&lower]).await, "ASK "), elsewhere);
    let (there, absent) = (format!("{{{lower}}}1"), format!("{{{lower}}}2"));
    raw.must(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).await;
    raw.must(&["SET", &there, "x"]).await;
    raw.must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", id.text()])
        .await;
    let again = refused(&one, &[&there, &absent]).await;
    let keeps = (Executed::No, NodeAction::Keep, CallerError::Unavailable);
    assert_eq!(output(&again, "TRYAGAIN "), keeps);
}

/// Checks the messages for operators about a store that rejects commands.
#[tokio::test]
async fn what_is_said_when_a_store_is_opened() {
    let mut redis = RedisServer::start_with(&[
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
        "--enable-debug-command",
        "yes",
    ])
    .await;
    let says = async |redis: &RedisServer, expected: &str| {
        let problems = check_store(config(redis)).await.expect_err(expected);
        let address = format!("Redis at {}", redis.addr());
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(&address), "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    };
    let mut raw = redis.connect().await;
    let mut absent = config(&redis);
    absent.database = 16;
    let problem = check_store(absent).await.expect_err("it has 0 to 15");
    assert!(
        problem[0].contains("no database with that number"),
        "{problem:?}"
    );

    raw.must(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    fs::create_dir(redis.snapshot_path()).expect("nothing is saved yet");
    raw.must(&["BGSAVE"]).await;
    repeat_until_rejected(&mut raw, &["SET", "x", "x"], "MISCONF").await;
    says(
        &redis,
        "rejects writes, because it cannot save its data: MISCONF",
    )
    .await;
    fs::remove_dir(redis.snapshot_path()).expect("it is empty");
    raw.must(&["BGSAVE"]).await;
    repeat_until_accepted(&mut raw, &["SET", "x", "x"]).await;

    raw.must(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let few = init_store(config(&redis)).await.expect_err("it has none");
    assert!(few.to_string().contains("min-replicas-to-write"), "{few}");
    raw.must(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;

    raw.must(&["CONFIG", "SET", "maxclients", "1"]).await;
    says(&redis, "accepts no more connections: ERR max").await;
    raw.must(&["CONFIG", "SET", "maxclients", "1000"]).await;

    raw.must(&["DEBUG", "POPULATE", "2000"]).await;
    raw.must(&["SAVE"]).await;
    redis.restart_loading().await;
    let mut raw = redis.connect().await;
    repeat_until_rejected(&mut raw, &["PING"], "LOADING").await;
    says(&redis, "is loading its data: LOADING").await;
}

fn page() -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(tests.join("../docs/operating.md")).expect("the page")
}

#[test]
fn the_page_knows_every_answer() {
    let page = page();
    let missing = ErrorClass::by_prefix().filter(|words| !page.contains(&format!("`{words}`")));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:?}");
}
