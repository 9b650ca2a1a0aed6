//! Settings `store.*`: the URL of the store, and the settings of its connections.

mod url;

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use leasehold_proto::address::is_loopback;
use serde_json::json;

use super::{
    reader::Reader,
    reloadable::HOUR,
    setting_def::{SettingDef, ValueType, boolean, duration, file, number, setting, text},
};
use crate::{
    lock::{DeploymentKey, Limits},
    store::redis::{
        connection::RedisConfig,
        credentials::{Credentials, Secret},
        era::EraBounds,
        location::{Address, StoreLocation},
        tls::Tls,
    },
    time::millis,
};

const KEY_PREFIX_MAX_BYTES: usize = 64;
const WAIT_REPLICAS_MAX: u32 = 1_000;
/// File mode bit: readable by all users.
const READABLE_BY_ALL: u32 = 0o004;
/// File mode bit: writable by all users.
const WRITABLE_BY_ALL: u32 = 0o002;

const USERNAME: SettingDef = setting("store.username_file", "User name for Redis");
const PASSWORD: SettingDef = setting("store.password_file", "Password for Redis");
const SENTINEL_USERNAME: SettingDef = setting(
    "store.sentinel_username_file",
    "User name for the Sentinels",
);
const SENTINEL_PASSWORD: SettingDef =
    setting("store.sentinel_password_file", "Password for the Sentinels");
const TLS_CA: SettingDef = setting(
    "store.tls_ca_file",
    "Certificate authorities for the servers' certificates (PEM); default: the system trust store",
);
const TLS_CERT: SettingDef = setting(
    "store.tls_cert_file",
    "Client certificate of the broker (PEM), for servers that require one",
);
const TLS_KEY: SettingDef = setting(
    "store.tls_key_file",
    "Private key of the broker's certificate (PEM)",
);
const TLS_SERVER_NAME: SettingDef = setting(
    "store.tls_server_name",
    "Name in the servers' certificates; default: the host of the address",
);

/// Kind of store, with its settings.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// A store in the memory of this process.
    Memory {
        /// Time after the start in which nothing is granted, because the previous process may have
        /// granted leases.
        quarantine: Duration,
    },
    /// Redis: a single server, a master found by Sentinel, or a cluster.
    Redis(Box<RedisConfig>),
    /// RedLock: several independent Redis servers.
    Redlock {
        /// Settings of all servers, except their addresses.
        common: Box<RedisConfig>,
        /// Addresses of the servers.
        addresses: Vec<Address>,
    },
}

impl StoreSettings {
    /// Returns a description of the store and its address, for users.
    pub fn description(&self) -> String {
        match self {
            Self::Memory { .. } => "in the memory of this process".to_owned(),
            Self::Redis(redis) => match &redis.location {
                StoreLocation::Server(address) => format!("Redis at {address}"),
                StoreLocation::Sentinel(sentinel) => {
                    format!("Redis, the master {} of Sentinel", sentinel.master)
                }
                StoreLocation::Cluster(addresses) => {
                    format!("Redis Cluster, by {}", join_addresses(addresses))
                }
            },
            Self::Redlock { addresses, .. } => format!("RedLock on {}", join_addresses(addresses)),
        }
    }

    /// Reads the bounds that are recorded in the store's era.
    pub(super) fn bounds(reader: &mut Reader, limits: &Limits) -> EraBounds {
        let about = "Time for which a replaced master may still accept writes; after a promotion \
            no lease is renewed for that time; at least 5s with Sentinel";
        let former_master_max = setting("store.former_master_max", about).with_default("12s");
        EraBounds {
            ttl_max_ms: limits.ttl_max_ms,
            lock_delay_max_ms: limits.lock_delay_max_ms,
            former_master_max_ms: millis(
                reader.read(former_master_max, duration(Duration::ZERO, HOUR)),
            ),
        }
    }

    /// Reads the settings of the store. All keys are read for every kind of store, otherwise they
    /// would be reported as unknown.
    pub(super) fn read(reader: &mut Reader, dev: bool, bounds: EraBounds) -> Self {
        let mut settings = Self::from_url(reader, dev);
        let about = "Prefix of every key and channel in the store";
        let key_prefix = setting("store.key_prefix", about).with_default("leasehold:");
        let key_prefix = reader.read(key_prefix, self::key_prefix());
        let about = "Key of lease tokens, the same for all brokers: 64 hexadecimal digits";
        let deployment_key = setting("store.deployment_key_file", about);
        let deployment_key = read_deployment_key(reader, deployment_key);
        let login = read_credential_files(reader, USERNAME, PASSWORD);
        let sentinel_login =
            self::read_credential_files(reader, SENTINEL_USERNAME, SENTINEL_PASSWORD);
        let tls = tls(reader, &settings);
        let about = "Number of replicas that must acknowledge a grant or renewal before the caller \
            is notified";
        let wait_replicas = setting("store.wait_replicas", about).with_default("0");
        let wait_replicas = reader.read(wait_replicas, number(0, WAIT_REPLICAS_MAX));
        let about = "Use sharded channels for messages between brokers of a cluster";
        let sharded_pubsub = read_switch(reader, "store.sharded_pubsub", about);
        let about = "Grant at once in a store without an era, although it may have lost leases";
        let trust_empty_store = read_switch(reader, "store.trust_empty_store", about);
        let about = "Start although the store is unreachable, and wait for it";
        let wait_for_store = read_switch(reader, "store.wait_for_store", about);
        let about = "Accept a Redis that may lose locks because it evicts keys, is too old, or is \
            a replica";
        let allow_unsafe = read_switch(reader, "store.allow_unsafe_redis", about);
        if let Self::Redlock { .. } = settings {
            check_redlock_settings(reader, trust_empty_store, wait_replicas);
        }
        let is_cluster = matches!(
            &settings,
            Self::Redis(redis) if matches!(redis.location, StoreLocation::Cluster(_))
        );
        if sharded_pubsub && !is_cluster {
            let message = "requires redis-cluster://: with any other store a message reaches only \
                one server anyway";
            reader.problem("store.sharded_pubsub", message);
        }
        match &mut settings {
            Self::Memory { .. } if dev => {}
            Self::Memory { quarantine } => {
                let unreplicated = EraBounds {
                    former_master_max_ms: 0,
                    ..bounds
                };
                *quarantine = Duration::from_millis(unreplicated.quarantine_ms());
            }
            Self::Redis(redis) | Self::Redlock { common: redis, .. } => {
                redis.key_prefix = key_prefix;
                redis.bounds = bounds;
                redis.deployment_key = deployment_key;
                redis.tls = tls;
                redis.wait_replicas = wait_replicas;
                redis.sharded_pubsub = sharded_pubsub;
                redis.trust_empty_store = trust_empty_store;
                redis.wait_for_store = wait_for_store;
                redis.allow_unsafe = allow_unsafe;
                if is_cluster && !reader.is_set("store.deployment_key_file") {
                    let message = "required with redis-cluster://, which does not store a \
                        deployment key: 64 hexadecimal digits, the same for all brokers";
                    reader.problem("store.deployment_key_file", message);
                }
                add_file_credentials(reader, &mut redis.credentials, login);
                if let StoreLocation::Sentinel(sentinel) = &mut redis.location {
                    sentinel.credentials = sentinel_login;
                }
            }
        }
        if let Some(host) = settings.plaintext_host() {
            let message = format!(
                "the connection to {host} is not encrypted: passwords, the deployment key and all \
                 grants can be read and changed on the network; set store.tls = true"
            );
            reader.warn("store.url", &message);
        }
        settings
    }

    /// Returns a host that is reached without TLS over a network, if there is one.
    fn plaintext_host(&self) -> Option<&str> {
        let (redis, addresses) = match self {
            Self::Memory { .. } => return None,
            Self::Redis(redis) => (redis, redis.location.addresses()),
            Self::Redlock { common, addresses } => (common, addresses.as_slice()),
        };
        let mut hosts = addresses.iter().map(|address| address.host.as_str());
        let host = hosts.find(|host| !is_loopback(host))?;
        redis.tls.is_none().then_some(host)
    }

    fn from_url(reader: &mut Reader, dev: bool) -> Self {
        let about = "URL of the store; keep its password in store.password_file instead";
        let settings = reader.find(setting("store.url", about), &url::value_type());
        if settings.is_none() && !dev && !reader.is_set("store.url") {
            let required = "required: memory, or redis://host:port/db (flag --store)";
            reader.require("store.url", required);
        }
        settings.unwrap_or(Self::Memory {
            quarantine: Duration::ZERO,
        })
    }
}

/// Reports missing and unsuitable settings of RedLock.
fn check_redlock_settings(reader: &mut Reader, trust_empty_store: bool, wait_replicas: u32) {
    let key = "store.deployment_key_file";
    if !reader.is_set(key) {
        let message = "required with redlock://, because no single server can store the key: write \
            64 random hexadecimal digits to a file, the same for all brokers";
        reader.problem(key, message);
    }
    if trust_empty_store {
        let message = "is not supported with redlock://: a server that has lost its locks would \
            vote at once; run init-store once instead";
        reader.problem("store.trust_empty_store", message);
    }
    if wait_replicas > 0 {
        let message = "is not supported with redlock://: replicas of its servers do not count";
        reader.problem("store.wait_replicas", message);
    }
}

/// Adds credentials from files where the URL contains none.
fn add_file_credentials(reader: &mut Reader, of_url: &mut Credentials, of_files: Credentials) {
    for (own, file, key) in [
        (&mut of_url.username, of_files.username, USERNAME.name),
        (&mut of_url.password, of_files.password, PASSWORD.name),
    ] {
        if own.is_some() && file.is_some() {
            reader.problem(key, "is also set in store.url: remove one of them");
        }
        *own = own.take().or(file);
    }
}

/// Reads the paths of files with user and password.
fn read_credential_files(
    reader: &mut Reader,
    username: SettingDef,
    password: SettingDef,
) -> Credentials {
    Credentials {
        username: protected_file(reader, username).map(Secret::File),
        password: secret_file(reader, password).map(Secret::File),
    }
}

fn read_deployment_key(reader: &mut Reader, key: SettingDef) -> Option<DeploymentKey> {
    let path = secret_file(reader, key)?;
    let path_text = path.display().to_string();
    let text = Secret::File(path).read();
    let parsed = text.and_then(|text| {
        let problem = || format!("{path_text} must contain 64 hexadecimal digits");
        DeploymentKey::parse(&text).ok_or_else(problem)
    });
    parsed
        .map_err(|problem| reader.problem(key.name, &problem))
        .ok()
}

/// Reads the path of a file that only the broker should be able to read.
pub(super) fn secret_file(reader: &mut Reader, key: SettingDef) -> Option<PathBuf> {
    let path = protected_file(reader, key)?;
    if fs::metadata(&path).is_ok_and(|file| file.mode() & READABLE_BY_ALL != 0) {
        let path = path.display();
        let message = format!("every user of this machine can read {path}: run chmod o-r {path}");
        reader.warn(key.name, &message);
    }
    Some(path)
}

/// Reads the path of a file that only the operator should be able to write.
pub(super) fn protected_file(reader: &mut Reader, key: SettingDef) -> Option<PathBuf> {
    let kind = file(|path| Secret::File(path.clone()).read().map(|_| path));
    let path = reader.find(key, &kind)?;
    if fs::metadata(&path).is_ok_and(|file| file.mode() & WRITABLE_BY_ALL != 0) {
        let path = path.display();
        let message = format!("every user of this machine can write {path}: run chmod o-w {path}");
        reader.warn(key.name, &message);
    }
    Some(path)
}

fn read_switch(reader: &mut Reader, name: &'static str, about: &'static str) -> bool {
    reader.read(setting(name, about).with_default("false"), boolean())
}

fn tls(reader: &mut Reader, settings: &StoreSettings) -> Option<Tls> {
    let is_rediss = matches!(settings, StoreSettings::Redis(redis) if redis.tls.is_some());
    let about = "Use TLS for every server, including Sentinels; rediss:// enables it";
    let is_on = setting("store.tls", about).with_default("false");
    let is_on = reader.read_or(is_on, boolean(), if is_rediss { "true" } else { "false" });
    if is_rediss && !is_on {
        reader.problem(
            "store.tls",
            "rediss:// requires TLS: remove this key, or use redis://",
        );
    }
    let ca_file = protected_file(reader, TLS_CA);
    let (certificate, private_key) = (
        protected_file(reader, TLS_CERT),
        secret_file(reader, TLS_KEY),
    );
    let server_name = reader.find(TLS_SERVER_NAME, &text("a name"));
    let is_set = [TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME].map(|key| reader.is_set(key.name));
    if !is_on {
        for key in [TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME] {
            if reader.is_set(key.name) {
                let message = "is not used without TLS: set store.tls = true, or use rediss://";
                reader.problem(key.name, message);
            }
        }
        return None;
    }
    if reader.is_set(TLS_CERT.name) != reader.is_set(TLS_KEY.name) {
        let message = "store.tls_cert_file and store.tls_key_file belong together: set both";
        reader.problem(TLS_CERT.name, message);
    }
    let are_read = [&ca_file, &certificate, &private_key].map(Option::is_some) == is_set[..3];
    let tls = Tls {
        ca_file,
        client: certificate.zip(private_key),
        server_name,
    };
    if let Some(problem) = tls.connector().err().filter(|_| are_read) {
        reader.problem("store.tls", &problem);
    }
    Some(tls)
}

fn key_prefix() -> ValueType<String> {
    let schema = json!({
        "type": "string",
        "pattern": "^[^{}*?\\[\\]\\\\]+$",
        "maxLength": KEY_PREFIX_MAX_BYTES,
    });
    let expected = "1 to 64 bytes without { } * ? [ ] \\ and control characters";
    ValueType::new(expected, schema, |text| {
        let is_legal = |c: char| !c.is_control() && !"{}*?[]\\".contains(c);
        let has_length = (1..=KEY_PREFIX_MAX_BYTES).contains(&text.len());
        (has_length && text.chars().all(is_legal)).then(|| text.to_owned())
    })
}

fn join_addresses(addresses: &[Address]) -> String {
    let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
    addresses.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that can be read.
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

    /// Reads the lines of a section `[store]`.
    fn read(lines: &str, dev: bool) -> (StoreSettings, Reader) {
        let mut reader = Reader::from_text(&format!("[store]\n{lines}"), []);
        let bounds = StoreSettings::bounds(&mut reader, &Limits::default());
        let settings = StoreSettings::read(&mut reader, dev, bounds);
        (settings, reader)
    }

    fn redis(lines: &str) -> RedisConfig {
        match read(lines, false) {
            (StoreSettings::Redis(redis), reader) if reader.problems.is_empty() => *redis,
            (settings, reader) => panic!("{lines}: {settings:?}, {:?}", reader.problems),
        }
    }

    #[test]
    fn settings_have_defaults() {
        let redis = redis("url = 'redis://localhost'");
        assert_eq!(redis.key_prefix, "leasehold:");
        assert_eq!(redis.bounds.former_master_max_ms, 12_000);
        assert_eq!(redis.wait_replicas, 0);
        assert!(redis.deployment_key.is_none() && redis.tls.is_none());
        assert!(!redis.sharded_pubsub && !redis.trust_empty_store);
        assert!(!redis.wait_for_store && !redis.allow_unsafe);
    }

    #[test]
    fn a_memory_store_grants_nothing_while_earlier_leases_may_be_valid() {
        for (lines, dev, quarantine_ms) in [("url = 'memory'", false, 83_250), ("", true, 0)] {
            let (settings, _) = read(lines, dev);
            let StoreSettings::Memory { quarantine } = settings else {
                panic!("{settings:?}");
            };
            assert_eq!(millis(quarantine), quarantine_ms);
        }
    }

    #[test]
    fn each_setting_is_checked() {
        let prefix = |text: &str| format!("key_prefix = {text:?}");
        let replicas = |count: u32| format!("wait_replicas = {count}");
        let former_master = |text: &str| format!("former_master_max = {text:?}");
        for (line, problem) in [
            (prefix(&"p".repeat(64)), ""),
            (prefix(&"p".repeat(65)), "must be 1 to 64 bytes"),
            (prefix(""), "must be 1 to 64 bytes"),
            (prefix("a{b"), "must be 1 to 64 bytes"),
            (prefix("a\tb"), "must be 1 to 64 bytes"),
            (replicas(1_000), ""),
            (replicas(1_001), "must be a number from 0 to 1000"),
            (former_master("1h"), ""),
            (former_master("61m"), "must be a time from 0s to 1h"),
        ] {
            let (_, reader) = read(&format!("url = 'memory'\n{line}"), false);
            let name = line.split(' ').next().expect("a name");
            let expected = format!("store.{name} (from leasehold.toml): {problem}");
            let problems = reader.problems.join("\n");
            assert_eq!(
                problems.is_empty(),
                problem.is_empty(),
                "{line}: {problems}"
            );
            assert!(
                problem.is_empty() || problems.starts_with(&expected),
                "{line}: {problems}"
            );
        }
    }

    #[test]
    fn combinations_are_checked() {
        for (lines, problem) in [
            (
                "url = 'redlock://a,b,c'\ntrust_empty_store = true",
                "vote at once",
            ),
            ("url = 'redlock://a,b,c'\nwait_replicas = 1", "do not count"),
            (
                "url = 'rediss://h'\ntls_key_file = '{file}'",
                "belong together",
            ),
            (
                "url = 'redis://u@h'\nusername_file = '{file}'",
                "remove one",
            ),
        ] {
            let (_, reader) = read(&lines.replace("{file}", FILE), false);
            let problems = reader.problems.join("\n");
            assert!(problems.contains(problem), "{lines}: {problems}");
        }
    }

    #[test]
    fn files_add_credentials_that_the_url_does_not_contain() {
        let url = "url = 'redis-sentinel://user@localhost/m'";
        let redis = redis(&format!(
            "{url}\npassword_file = '{FILE}'\nsentinel_username_file = '{FILE}'"
        ));
        let file = || Some(Secret::File(FILE.into()));
        let text = Some(Secret::Text("user".to_owned().into()));
        assert_eq!(
            (redis.credentials.username, redis.credentials.password),
            (text, file())
        );
        let StoreLocation::Sentinel(sentinel) = redis.location else {
            panic!("{:?}", redis.location);
        };
        assert_eq!(sentinel.credentials.username, file());
        assert_eq!(sentinel.credentials.password, None);
    }

    #[test]
    fn a_plaintext_connection_over_a_network_is_reported_without_the_password() {
        for (host, warnings) in [("localhost", 0), ("[::1]", 0), ("h", 1)] {
            let (_, reader) = read(&format!("url = 'redis://user:canary@{host}'"), false);
            assert_eq!(reader.warnings.len(), warnings, "{:?}", reader.warnings);
            let shown = format!("{}{:?}", reader.settings.to_toml(), reader.warnings);
            assert!(shown.contains("redis://user:***@"), "{shown}");
            assert!(!shown.contains("canary"), "{shown}");
        }
    }
}
