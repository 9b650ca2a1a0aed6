//! Where locks are kept: the store's URL and the keys that go with it.

mod url;

use std::{path::PathBuf, time::Duration};

use super::{boolean, reader::Reader};
use crate::{
    lock::DeploymentKey,
    store::redis::{
        connection::RedisConfig,
        era::EraBounds,
        login::{Login, Secret},
        place::{Address, Place},
        tls::Tls,
    },
};

const KEY_PREFIX_MAX_BYTES: usize = 64;

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
    /// Every key is read whatever the URL is, or it would be reported as unknown.
    pub(super) fn read(reader: &mut Reader, dev: bool, bounds: EraBounds) -> Self {
        if !dev && !reader.is_set("store.url") {
            let required = "required: memory, or redis://host:port/db (flag --store)";
            reader.problem("store.url", required);
        }
        let mut settings = reader.parse("store.url", "memory", url::parse);
        let key_prefix = reader.parse("store.key_prefix", "leasehold:", key_prefix);
        let deployment_key = file(reader, "store.deployment_key_file", |path| {
            let text = Secret::File(path).read()?;
            DeploymentKey::parse(&text).ok_or("the file must hold 64 hexadecimal digits".to_owned())
        });
        let login = login(reader, "store.username_file", "store.password_file");
        let (user_key, password_key) = (
            "store.sentinel_username_file",
            "store.sentinel_password_file",
        );
        let sentinel_login = self::login(reader, user_key, password_key);
        let tls = tls(reader, &settings);
        let wait_replicas = reader.parse("store.wait_replicas", "0", replicas);
        let sharded_pubsub = reader.parse("store.sharded_pubsub", "false", boolean);
        let trust_empty_store = reader.parse("store.trust_empty_store", "false", boolean);
        let wait_for_store = reader.parse("store.wait_for_store", "false", boolean);
        let allow_unsafe = reader.parse("store.allow_unsafe_redis", "false", boolean);
        if let Self::Redlock { .. } = settings {
            fits_redlock(
                reader,
                deployment_key.is_some(),
                trust_empty_store,
                wait_replicas,
            );
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
                    replica_lag_max_ms: 0,
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
                if matches!(redis.place, Place::Cluster(_)) && redis.deployment_key.is_none() {
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
        settings
    }
}

/// What several independent servers need, and what they must not have.
fn fits_redlock(reader: &mut Reader, has_key: bool, trust_empty_store: bool, wait_replicas: u32) {
    let key = "store.deployment_key_file";
    if !has_key && !reader.is_set(key) {
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
        (
            &mut of_url.username,
            of_files.username,
            "store.username_file",
        ),
        (
            &mut of_url.password,
            of_files.password,
            "store.password_file",
        ),
    ] {
        if own.is_some() && file.is_some() {
            reader.problem(key, "stands in store.url, too: keep only one of them");
        }
        *own = own.take().or(file);
    }
}

fn login(reader: &mut Reader, user_key: &'static str, password_key: &'static str) -> Login {
    let mut secret = |key| {
        file(reader, key, |path| {
            let secret = Secret::File(path);
            secret.read().map(|_| secret)
        })
    };
    Login {
        username: secret(user_key),
        password: secret(password_key),
    }
}

fn tls(reader: &mut Reader, settings: &StoreSettings) -> Option<Tls> {
    let is_rediss = matches!(settings, StoreSettings::Redis(redis) if redis.tls.is_some());
    let is_on = reader.parse("store.tls", "false", boolean) || is_rediss;
    let mut given = |key| file(reader, key, Ok);
    let ca_file = given("store.tls_ca_file");
    let (certificate, key) = (given("store.tls_cert_file"), given("store.tls_key_file"));
    let server_name = reader.parse("store.tls_server_name", "", |name| {
        Ok((!name.is_empty()).then(|| name.to_owned()))
    });
    if !is_on {
        for key in [
            "store.tls_ca_file",
            "store.tls_cert_file",
            "store.tls_key_file",
            "store.tls_server_name",
        ] {
            if reader.is_set(key) {
                let why = "is not used without TLS: set store.tls = true, or use rediss://";
                reader.problem(key, why);
            }
        }
        return None;
    }
    if certificate.is_some() != key.is_some() {
        let why = "store.tls_cert_file and store.tls_key_file belong together: give both";
        reader.problem("store.tls_cert_file", why);
    }
    let tls = Tls {
        ca_file,
        client: certificate.zip(key),
        server_name,
    };
    if let Err(why) = tls.connector() {
        reader.problem("store.tls", &why);
    }
    Some(tls)
}

fn file<T>(
    reader: &mut Reader,
    key: &'static str,
    read: impl Fn(PathBuf) -> Result<T, String>,
) -> Option<T> {
    reader.parse(key, "", |path| {
        let path = (!path.is_empty()).then(|| PathBuf::from(path));
        path.map(&read).transpose()
    })
}

fn replicas(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of replicas"))
}

fn key_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > KEY_PREFIX_MAX_BYTES {
        return Err("must be 1 to 64 bytes".to_owned());
    }
    if text
        .chars()
        .any(|c| c.is_control() || "{}*?[]\\".contains(c))
    {
        return Err("must not contain { } * ? [ ] \\ or control characters".to_owned());
    }
    Ok(text.to_owned())
}
