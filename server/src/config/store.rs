//! Where locks are kept: the store's URL and what goes with it.

use std::time::Duration;

use crate::store::redis::{connection::RedisConfig, era::EraBounds};

const REDIS_PORT: u16 = 6379;

/// Which store.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// In this process.
    Memory {
        /// How long it grants nothing at first: the process before it may have granted leases.
        quarantine: Duration,
    },
    /// One Redis node.
    Redis(RedisConfig),
}

impl StoreSettings {
    /// Reads `memory` or `redis://[user:password@]host[:port][/db]`. No problem repeats the text: it
    /// may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        if url == "memory" {
            let quarantine = Duration::ZERO;
            return Ok(Self::Memory { quarantine });
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

/// The rest of the settings stand in keys of their own.
fn redis(rest: &str) -> Result<RedisConfig, String> {
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
    Ok(RedisConfig {
        host,
        port,
        database,
        username,
        password,
        key_prefix: String::new(),
        deployment_key: None,
        bounds: EraBounds::default(),
        trust_empty_store: false,
        allow_unsafe: false,
        wait_for_store: false,
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

fn user_and_password(user_info: &str) -> Result<(Option<String>, Option<String>), String> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let present = |text: &str| {
        let text = percent_decoded(text)?;
        Ok::<_, String>(Some(text).filter(|text| !text.is_empty()))
    };
    Ok((present(user)?, present(password)?))
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

    fn redis_of(url: &str) -> RedisConfig {
        match StoreSettings::parse(url) {
            Ok(StoreSettings::Redis(redis)) => redis,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn every_part_of_the_url_is_read() {
        let redis = redis_of("redis://al%40ice:p%2Fs:s@[::1]:7000/3");
        assert_eq!(redis.username.as_deref(), Some("al@ice"));
        assert_eq!(redis.password.as_deref(), Some("p/s:s"));
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
