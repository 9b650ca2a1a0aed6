//! Agreement on the era and the deployment key of a store: reads them, decides, and writes.
//! `cluster/slot_era_sync` does the same for the slots of a cluster, each of which has an era.

use std::sync::LazyLock;

use fred::{
    error::Error,
    interfaces::KeysInterface as _,
    types::{FromValue as _, Value},
};
use tracing::{info, warn};

use super::{
    clock::ClockSample,
    connect::VerifiedServer,
    connection::NodeError,
    era::{Era, EraParseError},
    era_decision::{
        EraDecision, EraWrite, KnownState, LocalConfig, NewSpanLimit, StoredState, decide_era,
    },
    location::StoreLocation,
    script::Script,
    scripts::{Command, SCHEMA},
    silence::boot_ms,
    span_limit::{ERA_DEADLINE_MS, SpanLimitReading, SpanLimitTerms},
};
use crate::lock::DeploymentKey;

/// The script that writes an era.
pub(super) static ERA: LazyLock<Script> =
    LazyLock::new(|| Script::new("era", include_str!("lua/era.lua")));

/// Number of times that another broker may write an era first before this broker gives up.
pub(super) const ROUNDS_MAX: usize = 8;

/// The era and the key with which a broker serves.
pub(super) struct SyncedEra {
    pub(super) era: Era,
    pub(super) key: DeploymentKey,
}

/// An era to write, and the text that the store must still contain.
pub(super) struct PendingEra {
    pub(super) expected: String,
    pub(super) write: Box<EraWrite>,
    /// Time of the server's clock after which the era is not written, if the decision about it
    /// becomes too old.
    pub(super) not_after_ms: Option<u64>,
}

/// The values that a store contains.
struct StoreReading {
    found: StoredState,
    /// Text of the era.
    text: Option<String>,
    /// Time of the server's clock after they were read.
    read_ms: u64,
}

/// An era that was written.
pub(super) struct WrittenEra {
    pub(super) era: Result<Era, EraParseError>,
    /// Time of the server's clock.
    pub(super) now_ms: u64,
}

/// Adopts the stored era or writes a new one, and records it in `known_state`.
pub(super) async fn sync_era(
    server: &VerifiedServer,
    known_state: &mut KnownState,
) -> Result<SyncedEra, NodeError> {
    for _ in 0..ROUNDS_MAX {
        let sent_ms = boot_ms();
        let StoreReading {
            mut found,
            text,
            read_ms,
        } = read_store(server).await?;
        if let Some(terms) = server.endpoint.config.span_limit {
            found.read_limit = known_state.span_limit.trusted(terms);
        }
        let synced = match decide(server, &found, known_state)? {
            EraDecision::Adopt(key) => found.era.map(|era| SyncedEra { era, key }),
            EraDecision::Write(write) => {
                let pending = PendingEra {
                    expected: text.unwrap_or_default(),
                    write,
                    not_after_ms: Some(read_ms.saturating_add(ERA_DEADLINE_MS)),
                };
                write_era(server, pending).await?
            }
        };
        if let Some(synced) = synced {
            known_state.remember(&synced.era);
            if let Some(limit) = synced.era.span_limit {
                // Without the time of the server the change counts as pending.
                known_state.span_limit.record(limit.at(0), sent_ms);
            }
            known_state.key = Some(synced.key.clone());
            return Ok(synced);
        }
    }
    Err(NodeError::Unreachable(format!(
        "{} changes its era faster than this broker can read it. Check whether a program deletes \
         its keys.",
        server.endpoint.name()
    )))
}

/// Reads the era and the key of a store. Returns an error if no broker could serve with them.
pub(super) async fn check_era(server: &VerifiedServer) -> Result<(), NodeError> {
    let StoreReading { found, .. } = read_store(server).await?;
    decide(server, &found, &KnownState::default()).map(drop)
}

/// Decides about the era that was found on a server.
pub(super) fn decide(
    server: &VerifiedServer,
    found: &StoredState,
    known_state: &KnownState,
) -> Result<EraDecision, NodeError> {
    let config = &server.endpoint.config;
    let own = LocalConfig {
        bounds: config.bounds,
        key: config.deployment_key.clone(),
        trust_empty_store: config.trust_empty_store,
        span_limit: config.span_limit,
        has_sentinels: matches!(config.location, StoreLocation::Sentinel(_)),
    };
    decide_era(found, &server.identity, &own, known_state)
        .map_err(|reason| NodeError::Unfit(vec![format!("{} {reason}", server.endpoint.name())]))
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

impl PendingEra {
    /// Returns the command of era.lua. `keys` are those of the era and of the deployment key.
    pub(super) fn command(&self, keys: Vec<String>) -> Command {
        let EraWrite {
            era,
            quarantine,
            replaced,
            former,
            key,
            store_key,
        } = &*self.write;
        let (quarantine_ms, cause) = quarantine.map_or_else(
            || ("-1".to_owned(), ""),
            |begun| (begun.duration_ms.to_string(), begun.cause.name()),
        );
        let span_limit = quarantine.and_then(|begun| begun.span_limit);
        let limit_args = span_limit.map_or([const { String::new() }; 4], |limit| {
            let NewSpanLimit {
                covered_ms,
                usable_ms,
                change_ms,
                grants_end_after_ms,
            } = limit;
            [covered_ms, usable_ms, change_ms, grants_end_after_ms].map(|ms| ms.to_string())
        });
        let (replaced, writes_for_ms) = replaced.as_ref().map_or(("", 0), |replaced| {
            (replaced.process.field(), replaced.writes_for_ms)
        });
        let (former, former_until_ms) = former
            .as_ref()
            .map_or(("", 0), |former| (former.process.field(), former.until_ms));
        let stored_key = match store_key {
            true => key.expose(),
            false => String::new(),
        };
        let mut args: Vec<Value> = vec![
            self.expected.as_str().into(),
            era.id.as_str().into(),
            era.fields_after_time().into(),
            quarantine_ms.into(),
            era.no_grants_before_ms.to_string().into(),
            stored_key.into(),
            replaced.into(),
            writes_for_ms.to_string().into(),
            former_until_ms.to_string().into(),
            former.into(),
            cause.into(),
        ];
        args.extend(limit_args.map(Value::from));
        let not_after = self.not_after_ms.map(|ms| ms.to_string());
        args.push(not_after.unwrap_or_default().into());
        let token_floor = era.token_floor.map(|token| token.get().to_string());
        args.push(token_floor.unwrap_or_default().into());
        Command { keys, args }
    }
}

impl WrittenEra {
    /// Parses the reply of era.lua. Returns `None` if another broker wrote first.
    pub(super) fn parse(reply: Value) -> Result<Option<Self>, Error> {
        let (written, text, now_ms) = <(u64, String, u64)>::from_value(reply)?;
        Ok((written == 1).then(|| Self {
            era: Era::parse(&text),
            now_ms,
        }))
    }
}

/// Reads the values that a store contains.
async fn read_store(server: &VerifiedServer) -> Result<StoreReading, NodeError> {
    let (endpoint, client) = (&server.endpoint, &server.client);
    let (name, config) = (endpoint.name(), &endpoint.config);
    let keys = vec![
        config.era_key(),
        config.deployment_key_key(),
        config.spans_key(),
    ];
    let (text, key, spans): (Option<String>, Option<String>, Option<String>) = client
        .mget(keys)
        .await
        .map_err(|e| endpoint.unreachable(&e))?;
    let time = ClockSample::take(client).await;
    let time = time.map_err(|e| endpoint.unreachable(&e))?;
    let era = text.as_deref().map(Era::parse).transpose();
    let key = key.map(|text| {
        let key = DeploymentKey::parse(&text);
        key.ok_or_else(|| unreadable(&name, "deployment key", &config.deployment_key_key()))
    });
    let found = StoredState {
        era: era.map_err(|reason| era_error(&name, &reason, &config.era_key()))?,
        key: key.transpose()?,
        ..StoredState::default()
    };
    let stamp_ms = spans.as_deref().and_then(stamp_of);
    let found = StoredState {
        stamped_limit: stamped_limit(&found, config.span_limit, stamp_ms, time.now_ms),
        ..found
    };
    Ok(StoreReading {
        found,
        text,
        read_ms: time.now_ms,
    })
}

/// Returns the time of the last stamp of a store, from the value under [`RedisConfig::spans_key`].
fn stamp_of(spans: &str) -> Option<u64> {
    spans.split('|').next()?.parse().ok()
}

/// Returns the limit of spans at the time of the store's stamp, if the stamp is trusted.
fn stamped_limit(
    found: &StoredState,
    terms: Option<SpanLimitTerms>,
    stamp_ms: Option<u64>,
    now_ms: u64,
) -> Option<SpanLimitReading> {
    let (terms, stamp_ms) = (terms?, stamp_ms?);
    let limit = found.era.as_ref()?.span_limit?;
    terms
        .trusts_stamp(stamp_ms, now_ms)
        .then(|| limit.at(stamp_ms))
}

fn unreadable(name: &str, description: &str, key: &str) -> NodeError {
    NodeError::Unfit(vec![format!(
        "{name} has a value under {key} that this version cannot read as {description}. If another \
         program uses the same keys, configure another key prefix."
    )])
}

/// Writes the era if the store still contains the expected text. Returns `None` if another broker
/// wrote first.
async fn write_era(
    server: &VerifiedServer,
    pending: PendingEra,
) -> Result<Option<SyncedEra>, NodeError> {
    let (endpoint, client) = (&server.endpoint, &server.client);
    let config = &endpoint.config;
    let keys = vec![config.era_key(), config.deployment_key_key()];
    ERA.load(client)
        .await
        .map_err(|e| endpoint.unreachable(&e))?;
    let reply = ERA.run(client, pending.command(keys)).await;
    let written = reply.and_then(WrittenEra::parse);
    let Some(WrittenEra { era, now_ms }) = written.map_err(|e| endpoint.unreachable(&e))? else {
        return Ok(None);
    };
    let name = endpoint.name();
    let era = era.map_err(|reason| era_error(&name, &reason, &config.era_key()))?;
    let wait_ms = era.no_grants_before_ms.saturating_sub(now_ms);
    if wait_ms > 0 {
        warn!(
            era = era.id,
            cause = era.recovery().cause_name(),
            basis = pending.write.basis(),
            wait_ms,
            "{name} may have lost locks: no new grants for a while"
        );
    } else {
        info!(era = era.id, "{name} has an era written by this broker");
    }
    if let Some(token_floor) = era.token_floor {
        info!(
            era = era.id,
            token_floor = token_floor.get(),
            "{name} continues the fencing tokens of an earlier era, whose clock was ahead"
        );
    }
    Ok(Some(SyncedEra {
        era,
        key: pending.write.key,
    }))
}
