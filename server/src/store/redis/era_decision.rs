//! Decision, without I/O, about the era and the deployment key of a store.

use super::{
    era::{Era, EraBounds, FormerMaster, FormerProcess, KeySource, ServerIdentity},
    span_limit::LastSpanLimit,
};
use crate::lock::{DeploymentKey, RecoveryCause};

/// Values found in the store.
#[derive(Debug, Clone, Default)]
pub struct StoredState {
    pub era: Option<Era>,
    pub key: Option<DeploymentKey>,
    /// True if the slot of the era was moving to another server but stayed, so that the other
    /// server's writes may be lost.
    pub has_stayed: bool,
    /// True if the era is that of a slot of a cluster.
    pub is_slot: bool,
}

/// The relevant settings of this broker.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    pub bounds: EraBounds,
    /// The deployment key from a file.
    pub key: Option<DeploymentKey>,
    /// True if a store without an era is assumed never to have been used.
    pub trust_empty_store: bool,
}

/// Values that this process has read from the store earlier.
#[derive(Debug, Clone, Default)]
pub struct KnownState {
    /// The largest bounds of any era; `None` before the first era.
    pub bounds: Option<EraBounds>,
    /// The latest `no_grants_before_ms` of any era.
    pub no_grants_before_ms: u64,
    pub key: Option<DeploymentKey>,
    /// The id of an era in which locks may have been lost without a trace on the server.
    pub doubted: Option<Box<str>>,
    /// The limit of spans that was read last.
    pub span_limit: LastSpanLimit,
}

/// The decision about the era of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EraDecision {
    /// Serve in the era that was found, with this key.
    Adopt(DeploymentKey),
    /// Write an era before serving.
    Write(Box<EraWrite>),
}

/// An era to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EraWrite {
    /// The era. Its `no_grants_before_ms` counts only without a quarantine.
    pub era: Era,
    /// The period from now on in which nothing new is granted.
    pub quarantine: Option<QuarantineWrite>,
    /// The master that the server has replaced since the previous era.
    pub replaced: Option<ReplacedMaster>,
    /// The former master that the previous era names.
    pub former: Option<FormerMaster>,
    /// The key to serve with.
    pub key: DeploymentKey,
    /// True if the key is stored as well.
    pub store_key: bool,
}

/// A quarantine to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuarantineWrite {
    pub cause: RecoveryCause,
    pub duration_ms: u64,
}

/// A master that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedMaster {
    pub process: FormerProcess,
    /// Time for which the master may still accept writes.
    pub writes_for_ms: u64,
}

impl KnownState {
    /// Records the values of an era in which this process serves, besides its key.
    pub fn remember(&mut self, era: &Era) {
        self.bounds = Some(self.bounds.unwrap_or(era.bounds).max(era.bounds));
        self.no_grants_before_ms = self.no_grants_before_ms.max(era.no_grants_before_ms);
    }
}

/// Decides about one verified store.
///
/// # Errors
/// If the broker must not serve: the reason, as the end of a sentence about the store.
pub fn decide_era(
    found: &StoredState,
    server: &ServerIdentity,
    own: &LocalConfig,
    known_state: &KnownState,
) -> Result<EraDecision, &'static str> {
    match &found.era {
        Some(era) => decide_with_era(era, found, server, own, known_state),
        None => Ok(decide_without_era(found, server, own, known_state)),
    }
}

fn decide_with_era(
    era: &Era,
    found: &StoredState,
    server: &ServerIdentity,
    own: &LocalConfig,
    known_state: &KnownState,
) -> Result<EraDecision, &'static str> {
    let fits = |key: &&DeploymentKey| key.fingerprint() == era.key_fingerprint;
    let (key, store_key) = match (&own.key, &found.key) {
        (Some(file), _) if fits(&file) => (file.clone(), false),
        (Some(_), _) => return Err(OTHER_KEY_FILE),
        (None, _) if era.key_source == KeySource::File => return Err(NO_KEY_FILE),
        (None, Some(key)) if fits(&key) => (key.clone(), false),
        (None, Some(_)) => return Err(KEY_OF_ANOTHER_ERA),
        (None, None) => match known_state.key.as_ref().filter(fits) {
            Some(key) => (key.clone(), true),
            // The key is lost. Repeats of older calls cannot be recognized, so the era ends.
            None => (DeploymentKey::random(), true),
        },
    };
    let is_same_server = era.run_id == server.run_id && server.continues(&era.replid);
    let is_doubted = known_state.doubted.as_deref() == Some(era.id.as_str());
    let same_data = is_same_server && !found.has_stayed && !is_doubted;
    if !same_data || !fits(&&key) {
        return Ok(EraDecision::Write(Box::new(EraWrite {
            era: Era {
                no_grants_before_ms: known_state.no_grants_before_ms.max(era.no_grants_before_ms),
                ..Era::new(server, own.bounds, &key, source(own))
            },
            quarantine: Some(QuarantineWrite {
                cause: recovery_cause(era, found, server, is_doubted),
                duration_ms: bounds(Some(era.bounds), own, known_state).quarantine_ms(),
            }),
            replaced: replaced(era, server, own, known_state),
            former: era.former.clone(),
            key,
            store_key,
        })));
    }
    let bounds = era.bounds.max(own.bounds);
    if bounds == era.bounds && !store_key {
        return Ok(EraDecision::Adopt(key));
    }
    Ok(EraDecision::Write(Box::new(EraWrite {
        era: Era {
            bounds,
            former: None,
            ..era.clone()
        },
        quarantine: None,
        replaced: None,
        former: era.former.clone(),
        key,
        store_key,
    })))
}

fn decide_without_era(
    found: &StoredState,
    server: &ServerIdentity,
    own: &LocalConfig,
    known_state: &KnownState,
) -> EraDecision {
    let key = own
        .key
        .as_ref()
        .or(known_state.key.as_ref())
        .or(found.key.as_ref())
        .cloned()
        .unwrap_or_else(DeploymentKey::random);
    let store_key = own.key.is_none() && found.key.as_ref() != Some(&key);
    let never_used = own.trust_empty_store && known_state.bounds.is_none();
    EraDecision::Write(Box::new(EraWrite {
        era: Era {
            no_grants_before_ms: known_state.no_grants_before_ms,
            ..Era::new(server, own.bounds, &key, source(own))
        },
        quarantine: (!never_used).then(|| QuarantineWrite {
            cause: RecoveryCause::Emptied,
            duration_ms: bounds(None, own, known_state).quarantine_ms(),
        }),
        // In a cluster the era of a slot may have moved without some of its locks.
        replaced: (!never_used && server.has_replaced_a_master()).then(|| ReplacedMaster {
            process: FormerProcess::Unknown,
            writes_for_ms: bounds(None, own, known_state).former_master_max_ms,
        }),
        former: None,
        key,
        store_key,
    }))
}

/// Returns the reason why the era that was found ends.
fn recovery_cause(
    era: &Era,
    found: &StoredState,
    server: &ServerIdentity,
    is_doubted: bool,
) -> RecoveryCause {
    if era.run_id != server.run_id {
        return match (found.is_slot, server.has_replaced_a_master()) {
            // A master to which a slot moves does not continue the data of the slot's last master.
            (true, _) if era.replid != server.replid2 => RecoveryCause::SlotMoved,
            (_, true) => RecoveryCause::Promoted,
            (_, false) => RecoveryCause::Restarted,
        };
    }
    match (server.continues(&era.replid), found.has_stayed, is_doubted) {
        (false, _, _) => RecoveryCause::Promoted,
        (true, true, _) => RecoveryCause::SlotStayed,
        (true, false, true) => RecoveryCause::AssumptionViolated,
        (true, false, false) => RecoveryCause::KeyLost,
    }
}

fn source(own: &LocalConfig) -> KeySource {
    match own.key {
        Some(_) => KeySource::File,
        None => KeySource::Store,
    }
}

/// Returns the master of the previous era, if the server has replaced it.
fn replaced(
    era: &Era,
    server: &ServerIdentity,
    own: &LocalConfig,
    known_state: &KnownState,
) -> Option<ReplacedMaster> {
    let is_same_process = era.run_id == server.run_id;
    let is_successor = match is_same_process {
        // A master that was a replica for a while. The master in between has written no era.
        true => !server.continues(&era.replid),
        false => server.has_replaced_a_master(),
    };
    is_successor.then(|| ReplacedMaster {
        process: match is_same_process {
            true => FormerProcess::Unknown,
            false => FormerProcess::Known(era.run_id.as_str().into()),
        },
        writes_for_ms: bounds(Some(era.bounds), own, known_state).former_master_max_ms,
    })
}

/// Returns the largest known bounds.
fn bounds(era: Option<EraBounds>, own: &LocalConfig, known_state: &KnownState) -> EraBounds {
    let others = [era, known_state.bounds].into_iter().flatten();
    others.fold(own.bounds, EraBounds::max)
}

const OTHER_KEY_FILE: &str = "belongs to a deployment with another key than the one in the \
                              deployment key file, or with another list of servers. Configure this \
                              broker with the file and the list of the other brokers, or with \
                              another key prefix.";
const NO_KEY_FILE: &str = "belongs to a deployment whose key is in a file. Configure this broker \
                           with the deployment key file of the other brokers.";
const KEY_OF_ANOTHER_ERA: &str = "holds a deployment key that does not belong to its era: another \
                                  program changed the key. Restore it, or delete both the key and \
                                  the era, and let the brokers wait until the recovery ends.";

#[cfg(test)]
mod tests;
