//! Agreement on the era and the deployment key of a store: reads them, decides, and writes.

use std::sync::LazyLock;

use fred::{
    clients::Client,
    interfaces::KeysInterface as _,
    types::{FromValue as _, Value},
};
use tracing::{info, warn};

use super::{
    connection::{Endpoint, NodeError, RedisConfig},
    era::{Era, EraParseError, ServerIdentity},
    era_decision::{EraDecision, EraWrite, KnownState, LocalConfig, StoredState, decide_era},
    script::Script,
    scripts::{Command, SCHEMA},
};
use crate::lock::DeploymentKey;

static ERA: LazyLock<Script> = LazyLock::new(|| Script::new("era", include_str!("lua/era.lua")));

/// Number of times that another broker may write first before this broker gives up.
const ROUNDS_MAX: usize = 8;

/// The era and the key with which a broker serves.
pub(super) struct SyncedEra {
    pub(super) era: Era,
    pub(super) key: DeploymentKey,
}

/// The stored values, and the text that the store must still contain when the era is written.
pub(super) struct StoreReading {
    pub(super) found: StoredState,
    expected_text: String,
}

pub(super) async fn read_store(
    endpoint: &Endpoint,
    client: &Client,
) -> Result<StoreReading, NodeError> {
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
    Ok(StoreReading {
        found: StoredState {
            era: found_era.map_err(|reason| era_error(&name, &reason, &config.era_key()))?,
            key: found_key.transpose()?,
            has_stayed: false,
        },
        expected_text: era.unwrap_or_default(),
    })
}

/// Returns the reason why a broker cannot serve with the era stored under `key`.
pub(super) fn era_error(name: &str, reason: &EraParseError, key: &str) -> NodeError {
    match reason {
        EraParseError::Unreadable => unreadable(name, "era", key),
        EraParseError::OtherSchema(schema) => NodeError::Unfit(vec![format!(
            "{name} holds locks of key schema {schema} ({key}), this broker keeps schema {SCHEMA}: \
             they cannot serve the same locks. Run the version of the other brokers, or move all \
             to another key prefix (docs/operating.md)."
        )]),
    }
}

fn unreadable(name: &str, description: &str, key: &str) -> NodeError {
    NodeError::Unfit(vec![format!(
        "{name} has a value under {key} that this version cannot read as {description}. If another \
         program uses the same keys, configure another key prefix."
    )])
}

/// Adopts the stored era or writes a new one, and records it in `known`.
pub(super) async fn sync_era(
    endpoint: &Endpoint,
    client: &Client,
    server: &ServerIdentity,
    known_state: &mut KnownState,
) -> Result<SyncedEra, NodeError> {
    for _ in 0..ROUNDS_MAX {
        let read = read_store(endpoint, client).await?;
        let own = local_config(&endpoint.config);
        let decision = decide_era(&read.found, server, &own, known_state);
        let synced = match decision.map_err(|reason| refuse_to_serve(endpoint, reason))? {
            EraDecision::Adopt(key) => read.found.era.map(|era| SyncedEra { era, key }),
            EraDecision::Write(write) => {
                write_era(endpoint, client, &read.expected_text, *write).await?
            }
        };
        if let Some(synced) = synced {
            known_state.remember(&synced.era);
            known_state.key = Some(synced.key.clone());
            return Ok(synced);
        }
    }
    Err(NodeError::Unreachable(format!(
        "{} changes its era faster than this broker can read it. Check whether a program deletes \
         its keys.",
        endpoint.name()
    )))
}

/// Returns the settings that concern the era.
pub(super) fn local_config(config: &RedisConfig) -> LocalConfig {
    LocalConfig {
        bounds: config.bounds,
        key: config.deployment_key.clone(),
        trust_empty_store: config.trust_empty_store,
    }
}

/// Returns the error message for operators.
pub(super) fn refuse_to_serve(endpoint: &Endpoint, reason: &str) -> NodeError {
    NodeError::Unfit(vec![format!("{} {reason}", endpoint.name())])
}

/// Returns the arguments of era.lua, in order.
pub(super) fn era_args(expected: &str, write: &EraWrite, key: String) -> Vec<Value> {
    let EraWrite {
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

/// Writes the era if the store still contains `expected`. Returns `None` if another broker wrote
/// first.
async fn write_era(
    endpoint: &Endpoint,
    client: &Client,
    expected: &str,
    write: EraWrite,
) -> Result<Option<SyncedEra>, NodeError> {
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
    let era = Era::parse(&text).map_err(|reason| era_error(&name, &reason, &config.era_key()))?;
    let wait_ms = era.no_grants_before_ms.saturating_sub(now_ms);
    if wait_ms > 0 {
        warn!(
            era = era.id,
            wait_ms, "{name} may have lost locks: no new grants for a while"
        );
    } else {
        info!(era = era.id, "{name} has an era written by this broker");
    }
    Ok(Some(SyncedEra {
        era,
        key: write.key,
    }))
}
