//! The URL of a store.

use super::StoreSettings;
use crate::{
    config::key::Kind,
    store::{
        redis::{
            connection::RedisConfig,
            login::{Login, Secret},
            place::{Address, Place, Sentinel},
            tls::Tls,
        },
        redlock,
    },
};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const FORMS: &str = "must be memory, redis://[user:password@]host:port/db, rediss:// for TLS, \
    redis-sentinel://[user:password@]host:port,host:port/master/db, or \
    redis-cluster://[user:password@]host:port,host:port, or \
    redlock://[user:password@]host:port,host:port,host:port/db";

/// Between `//` and the end.
struct Rest<'a> {
    login: Login,
    hosts: &'a str,
    path: &'a str,
}

/// What `store.url` takes.
pub(super) fn kind() -> Kind<StoreSettings> {
    let pattern = "^(memory|(redis|rediss|redis-sentinel|redis-cluster|redlock)://.+)$";
    let schema = serde_json::json!({ "type": "string", "pattern": pattern });
    Kind::explaining("the URL of a store", schema, parse).shown_by(without_password)
}

fn without_password(url: &str) -> String {
    let parts = url.rsplit_once('@').and_then(|(before, place)| {
        let (scheme, user_info) = before.split_once("://")?;
        let (user, _) = user_info.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{place}"))
    });
    parts.unwrap_or_else(|| url.to_owned())
}

/// No problem repeats the text: it may hold a password.
fn parse(url: &str) -> Result<StoreSettings, String> {
    if url == "memory" {
        return Ok(StoreSettings::Memory {
            quarantine: std::time::Duration::ZERO,
        });
    }
    let (scheme, rest) = url.split_once("://").ok_or(FORMS)?;
    let config = match scheme {
        "redis" => one(split(rest)?)?,
        "rediss" => RedisConfig {
            tls: Some(Tls::default()),
            ..one(split(rest)?)?
        },
        "redis-sentinel" => sentinel(split(rest)?)?,
        "redis-cluster" => cluster(split(rest)?)?,
        "redlock" => return redlock(split(rest)?),
        _ => return Err(FORMS.to_owned()),
    };
    Ok(StoreSettings::Redis(Box::new(config)))
}

fn one(rest: Rest<'_>) -> Result<RedisConfig, String> {
    if rest.hosts.contains(',') {
        let why = "redis:// is one server; for several there is redis-sentinel://";
        return Err(why.to_owned());
    }
    let address = address(rest.hosts, REDIS_PORT)?;
    Ok(RedisConfig {
        login: rest.login,
        database: database(rest.path)?,
        ..RedisConfig::at(Place::Server(address))
    })
}

/// The login is that of the servers. Sentinels have one of their own, in keys of its own.
fn sentinel(rest: Rest<'_>) -> Result<RedisConfig, String> {
    let hosts = rest.hosts.split(',');
    let addresses = hosts.map(|host| address(host, SENTINEL_PORT));
    let (master, db) = rest.path.split_once('/').unwrap_or((rest.path, ""));
    if master.is_empty() {
        let why = "the name of the master is missing: redis-sentinel://host:port,host:port/master";
        return Err(why.to_owned());
    }
    let place = Place::Sentinel(Sentinel {
        addresses: addresses.collect::<Result<_, _>>()?,
        master: percent_decoded(master)?,
        login: Login::default(),
    });
    Ok(RedisConfig {
        login: rest.login,
        database: database(db)?,
        ..RedisConfig::at(place)
    })
}

/// All servers have one login and one number of the database.
fn redlock(rest: Rest<'_>) -> Result<StoreSettings, String> {
    let hosts = rest.hosts.split(',');
    let addresses = hosts.map(|host| address(host, REDIS_PORT));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    redlock::check_addresses(&addresses)?;
    let common = RedisConfig {
        login: rest.login,
        database: database(rest.path)?,
        ..RedisConfig::at(Place::Server(addresses[0].clone()))
    };
    Ok(StoreSettings::Redlock {
        common: Box::new(common),
        addresses,
    })
}

/// A cluster has only the database 0.
fn cluster(rest: Rest<'_>) -> Result<RedisConfig, String> {
    if database(rest.path)? != 0 {
        return Err("a cluster has no databases: redis-cluster://host:port,host:port".to_owned());
    }
    let hosts = rest.hosts.split(',');
    let addresses = hosts.map(|host| address(host, REDIS_PORT));
    let place = Place::Cluster(addresses.collect::<Result<_, _>>()?);
    Ok(RedisConfig {
        login: rest.login,
        ..RedisConfig::at(place)
    })
}

fn split(rest: &str) -> Result<Rest<'_>, String> {
    let (user_info, place) = match rest.rsplit_once('@') {
        Some((user_info, place)) => (user_info, place),
        None => ("", rest),
    };
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let present = |text: &str| {
        let text = percent_decoded(text)?;
        Ok::<_, String>((!text.is_empty()).then_some(Secret::Text(text.into())))
    };
    let login = Login {
        username: present(user)?,
        password: present(password)?,
    };
    Ok(Rest { login, hosts, path })
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
            other => panic!("{url}: {other:?}"),
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
        assert_eq!(redis.login.username, secret("al@ice"));
        assert_eq!(redis.login.password, secret("p/s:s"));
        assert_eq!(redis.place, Place::Server(server("::1", 7000)));
        assert_eq!((redis.database, redis.tls), (3, None));
        let redis = redis_of("rediss://localhost");
        assert_eq!(redis.place, Place::Server(server("localhost", 6379)));
        assert_eq!((redis.database, redis.tls), (0, Some(Tls::default())));
        assert_eq!(redis.login, Login::default());
        assert_eq!(redis_of("redis://:secret@h:1").login.username, None);
    }

    #[test]
    fn every_part_of_a_sentinel_url_is_read() {
        let redis = redis_of("redis-sentinel://u:p@a:1,b,[::2]:3/orders/4");
        let place = Place::Sentinel(Sentinel {
            addresses: vec![server("a", 1), server("b", 26379), server("::2", 3)],
            master: "orders".to_owned(),
            login: Login::default(),
        });
        assert_eq!((redis.place, redis.database), (place, 4));
        assert_eq!(redis.login.username, secret("u"));
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
        assert_eq!(common.login.password, secret("p"));
        for (hosts, why) in [
            ("a", "odd"),
            ("a,b,c,d", "odd"),
            ("a,b,a:6379", "twice"),
            ("a,b,", "host"),
        ] {
            let problem = parse(&format!("redlock://{hosts}")).unwrap_err();
            assert!(problem.contains(why), "{hosts}: {problem}");
        }
    }

    #[test]
    fn every_part_of_a_cluster_url_is_read() {
        let redis = redis_of("redis-cluster://u:p@a:1,b,[::2]:3");
        let seeds = vec![server("a", 1), server("b", 6379), server("::2", 3)];
        assert_eq!((redis.place, redis.database), (Place::Cluster(seeds), 0));
        assert_eq!(redis.login.username, secret("u"));
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
        let shown = format!("{:?}", redis_of("redis://:canary@h:1"));
        assert!(!shown.contains("canary"), "{shown}");
    }
}
