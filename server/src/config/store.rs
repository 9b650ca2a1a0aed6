//! Where locks are kept: the store's URL and the keys that go with it.

mod url;

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use leasehold_proto::address::is_loopback;
use serde_json::json;

use super::{
    key::{Key, Kind, file, key, number, switch, time},
    live::{HOUR, millis},
    reader::Reader,
};
use crate::{
    lock::{DeploymentKey, Limits},
    store::redis::{
        connection::RedisConfig,
        era::EraBounds,
        login::{Login, Secret},
        place::{Address, Place},
        tls::Tls,
    },
};

const KEY_PREFIX_MAX_BYTES: usize = 64;
const WAIT_REPLICAS_MOST: u32 = 1_000;
/// The bit of a file's mode by which all may read it.
const READABLE_BY_ALL: u32 = 0o004;
/// The bit of a file's mode by which all may write it.
const WRITABLE_BY_ALL: u32 = 0o002;

const USERNAME: Key = key("store.username_file", "The user in Redis");
const PASSWORD: Key = key("store.password_file", "The password in Redis");
const SENTINEL_USERNAME: Key = key("store.sentinel_username_file", "The user at the Sentinels");
const SENTINEL_PASSWORD: Key = key(
    "store.sentinel_password_file",
    "The password at the Sentinels",
);
const TLS_CA: Key = key(
    "store.tls_ca_file",
    "Who signs the servers' certificates (PEM); else whom the machine trusts",
);
const TLS_CERT: Key = key(
    "store.tls_cert_file",
    "The broker's certificate (PEM), where servers ask for one",
);
const TLS_KEY: Key = key(
    "store.tls_key_file",
    "The private key of the broker's certificate (PEM)",
);
const TLS_SERVER_NAME: Key = key(
    "store.tls_server_name",
    "The name in the servers' certificates; else the host of the address",
);

/// Which store.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// In this process.
    Memory {
        /// How long it grants nothing at first: the process before it may have granted leases.
        quarantine: Duration,
    },
    /// Redis: one server, the master that Sentinel names, or a cluster.
    Redis(Box<RedisConfig>),
    /// Several Redis servers that know nothing of each other.
    Redlock {
        /// All but where each is.
        common: Box<RedisConfig>,
        /// Where each is.
        addresses: Vec<Address>,
    },
}

impl StoreSettings {
    /// What it is and where, for people.
    pub fn described(&self) -> String {
        match self {
            Self::Memory { .. } => "in the memory of this process".to_owned(),
            Self::Redis(redis) => match &redis.place {
                Place::Server(address) => format!("Redis at {address}"),
                Place::Sentinel(sentinel) => {
                    format!("Redis, the master {} of Sentinel", sentinel.master)
                }
                Place::Cluster(addresses) => format!("Redis Cluster, by {}", several(addresses)),
            },
            Self::Redlock { addresses, .. } => format!("RedLock on {}", several(addresses)),
        }
    }

    /// What stands in the store's era.
    pub(super) fn bounds(reader: &mut Reader, limits: &Limits) -> EraBounds {
        let about = "How long a replaced master may still accept writes; no lease is renewed for that time \
                     after a promotion; behind Sentinel 5s or more";
        let former_master_max = key("store.former_master_max", about).or("12s");
        EraBounds {
            ttl_max_ms: limits.ttl_max_ms,
            lock_delay_max_ms: limits.lock_delay_max_ms,
            former_master_max_ms: millis(
                reader.read(former_master_max, time(Duration::ZERO, HOUR)),
            ),
        }
    }

    /// Every key is read whatever the URL is, or it would be reported as unknown.
    pub(super) fn read(reader: &mut Reader, dev: bool, bounds: EraBounds) -> Self {
        let mut settings = Self::of_url(reader, dev);
        let about = "What every key and channel in the store begins with";
        let key_prefix = key("store.key_prefix", about).or("leasehold:");
        let key_prefix = reader.read(key_prefix, self::key_prefix());
        let about = "The key of lease tokens, the same for all brokers: 64 hexadecimal digits";
        let deployment_key = key("store.deployment_key_file", about);
        let deployment_key = deployment_key_of(reader, deployment_key);
        let login = login(reader, USERNAME, PASSWORD);
        let sentinel_login = self::login(reader, SENTINEL_USERNAME, SENTINEL_PASSWORD);
        let tls = tls(reader, &settings);
        let about = "Replicas that must have a grant or a renewal before anybody is told";
        let wait_replicas = key("store.wait_replicas", about).or("0");
        let wait_replicas = reader.read(wait_replicas, number(0, WAIT_REPLICAS_MOST));
        let about = "Whether brokers of a cluster tell each other on sharded channels";
        let sharded_pubsub = on(reader, "store.sharded_pubsub", about);
        let about = "Grant at once in a store without an era; it may have lost leases";
        let trust_empty_store = on(reader, "store.trust_empty_store", about);
        let about = "Start although the store is out of reach, and wait for it";
        let wait_for_store = on(reader, "store.wait_for_store", about);
        let about = "Serve a Redis that may lose locks: evicting, too old, or a replica";
        let allow_unsafe = on(reader, "store.allow_unsafe_redis", about);
        if let Self::Redlock { .. } = settings {
            fits_redlock(reader, trust_empty_store, wait_replicas);
        }
        let is_cluster =
            matches!(&settings, Self::Redis(redis) if matches!(redis.place, Place::Cluster(_)));
        if sharded_pubsub && !is_cluster {
            let why =
                "is for redis-cluster:// only: elsewhere a message reaches one server as it is";
            reader.problem("store.sharded_pubsub", why);
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
                    let why = "required for redis-cluster://, which keeps no deployment key: 64 \
                        hexadecimal digits, the same for all brokers";
                    reader.problem("store.deployment_key_file", why);
                }
                complete(reader, &mut redis.login, login);
                if let Place::Sentinel(sentinel) = &mut redis.place {
                    sentinel.login = sentinel_login;
                }
            }
        }
        if let Some(host) = settings.plaintext_host() {
            let why = format!(
                "the connection to {host} is not encrypted: passwords, the deployment key and all \
                 grants can be read and changed on the network; set store.tls = true"
            );
            reader.warn("store.url", &why);
        }
        settings
    }

    /// Returns a host that is reached without TLS over a network, if there is one.
    fn plaintext_host(&self) -> Option<&str> {
        let (redis, addresses) = match self {
            Self::Memory { .. } => return None,
            Self::Redis(redis) => (redis, redis.place.addresses()),
            Self::Redlock { common, addresses } => (common, addresses.as_slice()),
        };
        let mut hosts = addresses.iter().map(|address| address.host.as_str());
        let host = hosts.find(|host| !is_loopback(host))?;
        redis.tls.is_none().then_some(host)
    }

    fn of_url(reader: &mut Reader, dev: bool) -> Self {
        let about = "Where locks are kept; a password in it is better kept in a file";
        let given = reader.find(key("store.url", about), &url::kind());
        if given.is_none() && !dev && !reader.is_set("store.url") {
            let required = "required: memory, or redis://host:port/db (flag --store)";
            reader.required("store.url", required);
        }
        given.unwrap_or(Self::Memory {
            quarantine: Duration::ZERO,
        })
    }
}

/// What several independent servers need, and what they must not have.
fn fits_redlock(reader: &mut Reader, trust_empty_store: bool, wait_replicas: u32) {
    let key = "store.deployment_key_file";
    if !reader.is_set(key) {
        let why = "required with redlock://: no single server could keep the key. Write 64 random \
            hexadecimal digits into a file, and give every broker the same";
        reader.problem(key, why);
    }
    if trust_empty_store {
        let why = "is not for redlock://: a server that lost its locks would vote at once. Use \
            init-store, once";
        reader.problem("store.trust_empty_store", why);
    }
    if wait_replicas > 0 {
        let why = "is not for redlock://: its servers have no replicas that count";
        reader.problem("store.wait_replicas", why);
    }
}

/// Files take the place of what the URL leaves open.
fn complete(reader: &mut Reader, of_url: &mut Login, of_files: Login) {
    for (own, file, key) in [
        (&mut of_url.username, of_files.username, USERNAME.name),
        (&mut of_url.password, of_files.password, PASSWORD.name),
    ] {
        if own.is_some() && file.is_some() {
            reader.problem(key, "stands in store.url, too: keep only one of them");
        }
        *own = own.take().or(file);
    }
}

/// User and password, in files.
fn login(reader: &mut Reader, username: Key, password: Key) -> Login {
    Login {
        username: readable(reader, username).map(Secret::File),
        password: secret(reader, password).map(Secret::File),
    }
}

fn deployment_key_of(reader: &mut Reader, key: Key) -> Option<DeploymentKey> {
    let path = secret(reader, key)?;
    let shown = path.display().to_string();
    let text = Secret::File(path).read();
    let parsed = text.and_then(|text| {
        let wrong = || format!("{shown} must hold 64 hexadecimal digits");
        DeploymentKey::parse(&text).ok_or_else(wrong)
    });
    parsed.map_err(|why| reader.problem(key.name, &why)).ok()
}

/// A file with a text that only the broker should be able to read.
pub(super) fn secret(reader: &mut Reader, key: Key) -> Option<PathBuf> {
    let path = readable(reader, key)?;
    if fs::metadata(&path).is_ok_and(|file| file.mode() & READABLE_BY_ALL != 0) {
        let path = path.display();
        let why = format!("everybody on this machine may read {path}: chmod o-r {path}");
        reader.warn(key.name, &why);
    }
    Some(path)
}

/// A file with a text that only the broker's operator should be able to write.
pub(super) fn readable(reader: &mut Reader, key: Key) -> Option<PathBuf> {
    let kind = file(|path| Secret::File(path.clone()).read().map(|_| path));
    let path = reader.find(key, &kind)?;
    if fs::metadata(&path).is_ok_and(|file| file.mode() & WRITABLE_BY_ALL != 0) {
        let path = path.display();
        let why = format!("everybody on this machine may write {path}: chmod o-w {path}");
        reader.warn(key.name, &why);
    }
    Some(path)
}

fn on(reader: &mut Reader, name: &'static str, about: &'static str) -> bool {
    reader.read(key(name, about).or("false"), switch())
}

fn tls(reader: &mut Reader, settings: &StoreSettings) -> Option<Tls> {
    let is_rediss = matches!(settings, StoreSettings::Redis(redis) if redis.tls.is_some());
    let about = "TLS to every server, Sentinels included; rediss:// sets it";
    let is_on = key("store.tls", about).or("false");
    let is_on = reader.read_or(is_on, switch(), if is_rediss { "true" } else { "false" });
    if is_rediss && !is_on {
        reader.problem(
            "store.tls",
            "rediss:// is TLS: remove this key, or use redis://",
        );
    }
    let ca_file = readable(reader, TLS_CA);
    let (certificate, private_key) = (readable(reader, TLS_CERT), secret(reader, TLS_KEY));
    let server_name = reader.find(TLS_SERVER_NAME, &name());
    let is_set = [TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME].map(|key| reader.is_set(key.name));
    if !is_on {
        for key in [TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME] {
            if reader.is_set(key.name) {
                let why = "is not used without TLS: set store.tls = true, or use rediss://";
                reader.problem(key.name, why);
            }
        }
        return None;
    }
    if reader.is_set(TLS_CERT.name) != reader.is_set(TLS_KEY.name) {
        let why = "store.tls_cert_file and store.tls_key_file belong together: give both";
        reader.problem(TLS_CERT.name, why);
    }
    let are_read = [&ca_file, &certificate, &private_key].map(Option::is_some) == is_set[..3];
    let tls = Tls {
        ca_file,
        client: certificate.zip(private_key),
        server_name,
    };
    if let Some(why) = tls.connector().err().filter(|_| are_read) {
        reader.problem("store.tls", &why);
    }
    Some(tls)
}

fn key_prefix() -> Kind<String> {
    let schema = json!({ "type": "string", "pattern": "^[^{}*?\\[\\]\\\\]+$", "maxLength": KEY_PREFIX_MAX_BYTES });
    let what = "1 to 64 bytes without { } * ? [ ] \\ and control characters";
    Kind::new(what, schema, |text| {
        let is_legal = |c: char| !c.is_control() && !"{}*?[]\\".contains(c);
        let has_length = (1..=KEY_PREFIX_MAX_BYTES).contains(&text.len());
        (has_length && text.chars().all(is_legal)).then(|| text.to_owned())
    })
}

fn name() -> Kind<String> {
    let schema = json!({ "type": "string", "minLength": 1 });
    Kind::new("a name", schema, |name| {
        (!name.is_empty()).then(|| name.to_owned())
    })
}
fn several(addresses: &[Address]) -> String {
    let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
    addresses.join(", ")
}
