//! Brings a store and this broker to one era and one deployment key: reads, decides, writes.

use std::sync::LazyLock;

use fred::{
    clients::Client,
    interfaces::KeysInterface as _,
    types::{FromValue as _, Value},
};
use tracing::{info, warn};

use super::{
    connection::{Endpoint, NodeError, RedisConfig},
    decide::{Decision, Found, Known, Own, Write, decide},
    era::{Era, NotOurs, ServerIdentity},
    script::Script,
    scripts::{Command, SCHEMA},
};
use crate::lock::DeploymentKey;

static ERA: LazyLock<Script> = LazyLock::new(|| Script::new("era", include_str!("lua/era.lua")));

/// How often another broker may be faster before this one gives up.
const ROUNDS_MAX: usize = 8;

/// The era and the key in which a broker may serve.
pub(super) struct Settled {
    pub(super) era: Era,
    pub(super) key: DeploymentKey,
}

/// What was read, and the text that a write must still find.
pub(super) struct Read {
    pub(super) found: Found,
    era_text: String,
}

/// Reads the era and the key.
pub(super) async fn read(endpoint: &Endpoint, client: &Client) -> Result<Read, NodeError> {
    let config = &endpoint.config;
    let keys = vec![config.era_key(), config.deployment_key_key()];
    let (era, key): (Option<String>, Option<String>) = client
        .mget(keys)
        .await
        .map_err(|e| endpoint.unreachable(&e))?;
    let name = endpoint.name();
    let found_era = era.as_deref().map(Era::parse).transpose();
    let found_key = key.map(|text| {
        let key = DeploymentKey::parse(&text);
        key.ok_or_else(|| unreadable(&name, "deployment key", &config.deployment_key_key()))
    });
    Ok(Read {
        found: Found {
            era: found_era.map_err(|why| not_ours(&name, &why, &config.era_key()))?,
            key: found_key.transpose()?,
            has_stayed: false,
        },
        era_text: era.unwrap_or_default(),
    })
}

/// Why a broker does not serve with the era that is stored under `key`.
pub(super) fn not_ours(name: &str, why: &NotOurs, key: &str) -> NodeError {
    match why {
        NotOurs::Unreadable => unreadable(name, "era", key),
        NotOurs::OtherSchema(schema) => NodeError::Unfit(vec![format!(
            "{name} holds locks of key schema {schema} ({key}), this broker keeps schema {SCHEMA}: \
             they cannot serve the same locks. Run the version of the other brokers, or move all \
             to another key prefix (docs/operating.md)."
        )]),
    }
}

fn unreadable(name: &str, what: &str, key: &str) -> NodeError {
    NodeError::Unfit(vec![format!(
        "{name} holds under {key} something that is no {what} of this version. If another program \
         uses the same keys, give the broker another key prefix."
    )])
}

/// Adopts or writes an era, and remembers it in `known`.
pub(super) async fn settle(
    endpoint: &Endpoint,
    client: &Client,
    server: &ServerIdentity,
    known: &mut Known,
) -> Result<Settled, NodeError> {
    for _ in 0..ROUNDS_MAX {
        let read = read(endpoint, client).await?;
        let settled = match decide(&read.found, server, &own(&endpoint.config), known) {
            Decision::Adopt(key) => read.found.era.map(|era| Settled { era, key }),
            Decision::Refuse(why) => return Err(refused(endpoint, why)),
            Decision::Write(write) => put(endpoint, client, &read.era_text, *write).await?,
        };
        if let Some(settled) = settled {
            known.remember(&settled.era, &settled.key);
            return Ok(settled);
        }
    }
    Err(NodeError::Unreachable(format!(
        "{} changes its era faster than this broker can follow. See whether a program deletes its \
         keys.",
        endpoint.name()
    )))
}

/// What the configuration says about the era.
pub(super) fn own(config: &RedisConfig) -> Own {
    Own {
        bounds: config.bounds,
        key: config.deployment_key.clone(),
        trust_empty_store: config.trust_empty_store,
    }
}

/// The sentence for an operator.
pub(super) fn refused(endpoint: &Endpoint, why: &str) -> NodeError {
    NodeError::Unfit(vec![format!("{} {why}", endpoint.name())])
}

/// What era.lua takes, in order.
pub(super) fn era_args(expected: &str, write: &Write, key: String) -> Vec<Value> {
    let Write {
        era,
        quarantine_ms,
        replaced,
        former,
        ..
    } = write;
    let quarantine = quarantine_ms.map_or_else(|| "-1".to_owned(), |ms| ms.to_string());
    let (replaced, writes_for_ms) = replaced.as_ref().map_or(("", 0), |replaced| {
        (replaced.process.field(), replaced.writes_for_ms)
    });
    let (former, former_until_ms) = former
        .as_ref()
        .map_or(("", 0), |former| (former.process.field(), former.until_ms));
    let args: [Value; 10] = [
        expected.into(),
        era.id.as_str().into(),
        era.fields_after_time().into(),
        quarantine.into(),
        era.no_grants_before_ms.to_string().into(),
        key.into(),
        replaced.into(),
        writes_for_ms.to_string().into(),
        former_until_ms.to_string().into(),
        former.into(),
    ];
    args.into()
}

/// Writes if the store still holds `expected`; `None` if another broker was faster.
async fn put(
    endpoint: &Endpoint,
    client: &Client,
    expected: &str,
    write: Write,
) -> Result<Option<Settled>, NodeError> {
    let key = if write.store_key {
        write.key.expose()
    } else {
        String::new()
    };
    let args = era_args(expected, &write, key);
    let config = &endpoint.config;
    let keys = vec![config.era_key(), config.deployment_key_key()];
    ERA.load(client)
        .await
        .map_err(|e| endpoint.unreachable(&e))?;
    let reply = ERA.run(client, Command { keys, args }).await;
    let (written, text, now_ms) = reply
        .and_then(<(u64, String, u64)>::from_value)
        .map_err(|e| endpoint.unreachable(&e))?;
    if written != 1 {
        return Ok(None);
    }
    let name = endpoint.name();
    let era = Era::parse(&text).map_err(|why| not_ours(&name, &why, &config.era_key()))?;
    let wait_ms = era.no_grants_before_ms.saturating_sub(now_ms);
    if wait_ms > 0 {
        warn!(
            era = era.id,
            wait_ms, "{name} may have lost locks: no new grants for a while"
        );
    } else {
        info!(era = era.id, "{name} has an era written by this broker");
    }
    Ok(Some(Settled {
        era,
        key: write.key,
    }))
}
