//! Parser of the URL in `store.url`.

use super::StoreSettings;
use crate::{
    config::setting_def::ValueType,
    store::{
        redis::{
            connection::RedisConfig,
            credentials::{Credentials, Secret},
            location::{Address, Sentinel, StoreLocation},
            tls::Tls,
        },
        redlock,
    },
};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const ACCEPTED_FORMS: &str = "must be memory, redis://[user:password@]host:port/db, rediss:// for TLS, \
    redis-sentinel://[user:password@]host:port,host:port/master/db, \
    redis-cluster://[user:password@]host:port,host:port, or \
    redlock://[user:password@]host:port,host:port,host:port/db";

/// Parts of a URL after `//`.
struct UrlParts<'a> {
    login: Credentials,
    hosts: &'a str,
    path: &'a str,
}

/// Returns the type of `store.url`.
pub(super) fn value_type() -> ValueType<StoreSettings> {
    let pattern = "^(memory|(redis|rediss|redis-sentinel|redis-cluster|redlock)://.+)$";
    let schema = serde_json::json!({ "type": "string", "pattern": pattern });
    ValueType::with_errors("the URL of a store", schema, parse).redact_with(without_password)
}

fn without_password(url: &str) -> String {
    let parts = url.rsplit_once('@').and_then(|(before, after)| {
        let (scheme, user_info) = before.split_once("://")?;
        let (user, _) = user_info.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{after}"))
    });
    parts.unwrap_or_else(|| url.to_owned())
}

/// Parses a URL. Errors do not repeat the text, which may contain a password.
fn parse(url: &str) -> Result<StoreSettings, String> {
    if url == "memory" {
        return Ok(StoreSettings::Memory {
            quarantine: std::time::Duration::ZERO,
        });
    }
    let (scheme, parts) = url.split_once("://").ok_or(ACCEPTED_FORMS)?;
    let config = match scheme {
        "redis" => single_server(split_parts(parts)?)?,
        "rediss" => RedisConfig {
            tls: Some(Tls::default()),
            ..single_server(split_parts(parts)?)?
        },
        "redis-sentinel" => sentinel(split_parts(parts)?)?,
        "redis-cluster" => cluster(split_parts(parts)?)?,
        "redlock" => return redlock(split_parts(parts)?),
        _ => return Err(ACCEPTED_FORMS.to_owned()),
    };
    Ok(StoreSettings::Redis(Box::new(config)))
}

fn single_server(parts: UrlParts<'_>) -> Result<RedisConfig, String> {
    if parts.hosts.contains(',') {
        let message = "redis:// names one server; use redis-sentinel:// for several";
        return Err(message.to_owned());
    }
    let address = address(parts.hosts, REDIS_PORT)?;
    redis_config(parts.login, StoreLocation::Server(address), parts.path)
}

/// Parses a Sentinel URL. Its credentials are those of the servers; those of the Sentinels have
/// their own settings.
fn sentinel(parts: UrlParts<'_>) -> Result<RedisConfig, String> {
    let (master, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if master.is_empty() {
        let message =
            "the name of the master is missing: redis-sentinel://host:port,host:port/master";
        return Err(message.to_owned());
    }
    let location = StoreLocation::Sentinel(Sentinel {
        addresses: parts.addresses(SENTINEL_PORT)?,
        master: percent_decoded(master)?,
        credentials: Credentials::default(),
    });
    redis_config(parts.login, location, db)
}

/// Parses a RedLock URL. All servers have the same credentials and database number.
fn redlock(parts: UrlParts<'_>) -> Result<StoreSettings, String> {
    let addresses = parts.addresses(REDIS_PORT)?;
    redlock::check_addresses(&addresses)?;
    let location = StoreLocation::Server(addresses[0].clone());
    let common = redis_config(parts.login, location, parts.path)?;
    Ok(StoreSettings::Redlock {
        common: Box::new(common),
        addresses,
    })
}

/// Parses a cluster URL. A cluster has only database 0.
fn cluster(parts: UrlParts<'_>) -> Result<RedisConfig, String> {
    if database(parts.path)? != 0 {
        return Err(
            "a cluster has only database 0: redis-cluster://host:port,host:port".to_owned(),
        );
    }
    let location = StoreLocation::Cluster(parts.addresses(REDIS_PORT)?);
    redis_config(parts.login, location, "")
}

impl UrlParts<'_> {
    fn addresses(&self, default_port: u16) -> Result<Vec<Address>, String> {
        let hosts = self.hosts.split(',');
        hosts.map(|host| address(host, default_port)).collect()
    }
}

fn redis_config(
    credentials: Credentials,
    location: StoreLocation,
    database_text: &str,
) -> Result<RedisConfig, String> {
    Ok(RedisConfig {
        credentials,
        database: database(database_text)?,
        ..RedisConfig::at(location)
    })
}

fn split_parts(text: &str) -> Result<UrlParts<'_>, String> {
    let (user_info, server) = match text.rsplit_once('@') {
        Some((user_info, server)) => (user_info, server),
        None => ("", text),
    };
    let (hosts, path) = server.split_once('/').unwrap_or((server, ""));
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let present = |text: &str| {
        let text = percent_decoded(text)?;
        Ok::<_, String>((!text.is_empty()).then_some(Secret::Text(text.into())))
    };
    let login = Credentials {
        username: present(user)?,
        password: present(password)?,
    };
    Ok(UrlParts { login, hosts, path })
}

fn database(text: &str) -> Result<u8, String> {
    let text = if text.is_empty() { "0" } else { text };
    text.parse()
        .map_err(|_| "the database must be a number from 0 to 255".to_owned())
}

fn address(text: &str, default_port: u16) -> Result<Address, String> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("a host is missing: redis://host:port/db".to_owned());
    }
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| "the port must be a number from 1 to 65535")?,
        None => default_port,
    };
    Ok(Address {
        host: host.to_owned(),
        port,
    })
}

fn percent_decoded(text: &str) -> Result<String, String> {
    let illegal = || "user, password and master must be percent-encoded UTF-8".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2).ok_or_else(illegal)?;
        let decoded = data_encoding::HEXLOWER_PERMISSIVE.decode(digits);
        bytes.extend(decoded.map_err(|_| illegal())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| illegal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis_of(url: &str) -> RedisConfig {
        match parse(url) {
            Ok(StoreSettings::Redis(redis)) => *redis,
            settings => panic!("{url}: {settings:?}"),
        }
    }

    fn server(host: &str, port: u16) -> Address {
        let host = host.to_owned();
        Address { host, port }
    }

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::Text(text.into()))
    }

    #[test]
    fn every_part_of_the_url_is_read() {
        let redis = redis_of("redis://al%40ice:p%2Fs:s@[::1]:7000/3");
        assert_eq!(redis.credentials.username, secret("al@ice"));
        assert_eq!(redis.credentials.password, secret("p/s:s"));
        assert_eq!(redis.location, StoreLocation::Server(server("::1", 7000)));
        assert_eq!((redis.database, redis.tls), (3, None));
        let redis = redis_of("rediss://localhost");
        assert_eq!(
            redis.location,
            StoreLocation::Server(server("localhost", 6379))
        );
        assert_eq!((redis.database, redis.tls), (0, Some(Tls::default())));
        assert_eq!(redis.credentials, Credentials::default());
        assert_eq!(redis_of("redis://:secret@h:1").credentials.username, None);
    }

    #[test]
    fn every_part_of_a_sentinel_url_is_read() {
        let redis = redis_of("redis-sentinel://u:p@a:1,b,[::2]:3/orders/4");
        let location = StoreLocation::Sentinel(Sentinel {
            addresses: vec![server("a", 1), server("b", 26379), server("::2", 3)],
            master: "orders".to_owned(),
            credentials: Credentials::default(),
        });
        assert_eq!((redis.location, redis.database), (location, 4));
        assert_eq!(redis.credentials.username, secret("u"));
        assert!(parse("redis-sentinel://a:1,b:2").is_err());
        assert!(parse("redis://a:1,b:2/0").is_err());
    }

    #[test]
    fn every_part_of_a_redlock_url_is_read() {
        let url = "redlock://u:p@a:1,b,[::2]:3/4";
        let Ok(StoreSettings::Redlock { common, addresses }) = parse(url) else {
            panic!("{url} is a store");
        };
        let all = [server("a", 1), server("b", 6379), server("::2", 3)];
        assert_eq!((addresses.as_slice(), common.database), (&all[..], 4));
        assert_eq!(common.credentials.password, secret("p"));
        for (hosts, expected) in [
            ("a", "odd"),
            ("a,b,c,d", "odd"),
            ("a,b,a:6379", "twice"),
            ("a,b,", "host"),
        ] {
            let problem = parse(&format!("redlock://{hosts}")).unwrap_err();
            assert!(problem.contains(expected), "{hosts}: {problem}");
        }
    }

    #[test]
    fn every_part_of_a_cluster_url_is_read() {
        let redis = redis_of("redis-cluster://u:p@a:1,b,[::2]:3");
        let seeds = vec![server("a", 1), server("b", 6379), server("::2", 3)];
        assert_eq!(
            (redis.location, redis.database),
            (StoreLocation::Cluster(seeds), 0)
        );
        assert_eq!(redis.credentials.username, secret("u"));
        assert!(parse("redis-cluster://a:1,b:2/3").is_err());
        assert!(parse("redis-cluster://a:1,,b:2").is_err());
    }

    #[test]
    fn problems_do_not_repeat_the_password() {
        for url in [
            "redis://:canary@",
            "redis://:canary@h:x",
            "redis://:canary@h:1/x",
            "redis://:canary%zz@h:1",
            "http://:canary@h",
            "rediss://:canary@h:1,h:2",
            "redis-sentinel://:canary@h:1",
            "redlock://:canary@h:1,h:2",
            "redlock://:canary@h:1,h:2,h:1",
            "redis-cluster://:canary@h:1,h:x",
        ] {
            let problem = parse(url).unwrap_err();
            assert!(!problem.contains("canary"), "{url}: {problem}");
        }
        let debug_text = format!("{:?}", redis_of("redis://:canary@h:1"));
        assert!(!debug_text.contains("canary"), "{debug_text}");
    }
}
