//! Where locks are kept: the store's URL and what goes with it.

use std::{fmt, time::Duration};

use crate::lock::DeploymentKey;

const REDIS_PORT: u16 = 6379;

/// Which store.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// In this process.
    Memory,
    /// One Redis node.
    Redis(RedisSettings),
}

/// How to reach a Redis node, and what to believe of it.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Number of the database.
    pub database: u8,
    /// For ACL users.
    pub username: Option<String>,
    /// From the URL or from `store.password_file`.
    pub password: Option<Secret>,
    /// What every key begins with.
    pub key_prefix: String,
    /// The key of the deployment, if the store does not keep it.
    pub deployment_key: Option<DeploymentKey>,
    /// The longest lag of a replica that may be promoted.
    pub replica_lag_max: Duration,
    /// Grant at once in a store without an era.
    pub trust_empty_store: bool,
    /// Wait for a store that cannot be reached yet.
    pub wait_for_store: bool,
    /// Run on a Redis that may lose locks.
    pub allow_unsafe_redis: bool,
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the server that asks for it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl StoreSettings {
    /// Reads `memory` or `redis://[user:password@]host[:port][/db]`. No problem repeats the text: it
    /// may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        if url == "memory" {
            return Ok(Self::Memory);
        }
        match url.split_once("://") {
            Some(("redis", rest)) => redis(rest).map(Self::Redis),
            Some((scheme @ ("rediss" | "redis-sentinel" | "redis-cluster" | "redlock"), _)) => Err(
                format!("{scheme}:// is not in this release; use redis:// or memory"),
            ),
            _ => Err("must be memory or redis://[user:password@]host:port/db".to_owned()),
        }
    }
}

fn redis(rest: &str) -> Result<RedisSettings, String> {
    let (user_info, place) = match rest.rsplit_once('@') {
        Some((user_info, place)) => (Some(user_info), place),
        None => (None, rest),
    };
    let (authority, db) = place.split_once('/').unwrap_or((place, ""));
    let db = if db.is_empty() { "0" } else { db };
    let database = db
        .parse()
        .map_err(|_| "the database must be a number from 0 to 255")?;
    let (host, port) = host_and_port(authority)?;
    let (username, password) = match user_info {
        Some(text) => user_and_password(text)?,
        None => (None, None),
    };
    Ok(RedisSettings {
        host,
        port,
        database,
        username,
        password,
        key_prefix: String::new(),
        deployment_key: None,
        replica_lag_max: Duration::ZERO,
        trust_empty_store: false,
        wait_for_store: false,
        allow_unsafe_redis: false,
    })
}

fn host_and_port(authority: &str) -> Result<(String, u16), String> {
    let bracketed = authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing: redis://host:port/db".to_owned());
    }
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| "the port must be a number from 1 to 65535")?,
        None => REDIS_PORT,
    };
    Ok((host.to_owned(), port))
}

fn user_and_password(user_info: &str) -> Result<(Option<String>, Option<Secret>), String> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let present = |text: &str| {
        let text = percent_decoded(text)?;
        Ok::<_, String>(Some(text).filter(|text| !text.is_empty()))
    };
    Ok((present(user)?, present(password)?.map(Secret::new)))
}

fn percent_decoded(text: &str) -> Result<String, String> {
    let illegal = || "user and password must be percent-encoded UTF-8".to_owned();
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

    fn redis_of(url: &str) -> RedisSettings {
        match StoreSettings::parse(url) {
            Ok(StoreSettings::Redis(redis)) => redis,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn every_part_of_the_url_is_read() {
        let redis = redis_of("redis://al%40ice:p%2Fs:s@[::1]:7000/3");
        assert_eq!(redis.username.as_deref(), Some("al@ice"));
        assert_eq!(redis.password.unwrap().expose(), "p/s:s");
        assert_eq!(
            (redis.host.as_str(), redis.port, redis.database),
            ("::1", 7000, 3)
        );
        let redis = redis_of("redis://localhost");
        assert_eq!(
            (redis.host.as_str(), redis.port, redis.database),
            ("localhost", 6379, 0)
        );
        assert!(redis.username.is_none() && redis.password.is_none());
        assert!(redis_of("redis://:secret@h:1").username.is_none());
    }

    #[test]
    fn problems_do_not_repeat_the_password() {
        for url in [
            "redis://:canary@",
            "redis://:canary@h:x",
            "redis://:canary@h:1/x",
            "redis://:canary%zz@h:1",
            "http://:canary@h",
            "rediss://:canary@h:1",
        ] {
            let problem = StoreSettings::parse(url).unwrap_err();
            assert!(!problem.contains("canary"), "{url}: {problem}");
        }
        let shown = format!("{:?}", redis_of("redis://:canary@h:1"));
        assert!(!shown.contains("canary"), "{shown}");
    }
}
