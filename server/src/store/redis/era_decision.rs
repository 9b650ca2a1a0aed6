//! Decision, without I/O, about the era and the deployment key of a store.

use super::{
    era::{
        Era, EraBounds, FormerMaster, FormerProcess, KeySource, QUARANTINE_MARGIN_MS,
        ServerIdentity,
    },
    span_limit::{LastSpanLimit, SpanLimitReading, SpanLimitTerms, StoredSpanLimit},
};
use crate::lock::{DeploymentKey, FencingToken, RecoveryCause, SPAN_MIN_MS};

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
    /// The limit of spans at the time of the store's last stamp, if the stamp is trusted.
    pub stamped_limit: Option<SpanLimitReading>,
    /// The limit of spans that this broker has read last, if the reading is trusted.
    pub read_limit: Option<SpanLimitReading>,
}

/// The relevant settings of this broker.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    pub bounds: EraBounds,
    /// The deployment key from a file.
    pub key: Option<DeploymentKey>,
    /// True if a store without an era is assumed never to have been used.
    pub trust_empty_store: bool,
    /// Settings of the limit of spans; `None` if the store has none.
    pub span_limit: Option<SpanLimitTerms>,
    /// True if Sentinels may have promoted another server without a trace in the data of this one.
    pub has_sentinels: bool,
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
    /// The id of the era that was agreed last. This process has served in no other era since.
    pub last_era: Option<Box<str>>,
    /// The largest token of a grant in any era, or a larger floor of an era.
    pub largest_token: Option<FencingToken>,
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
    /// Its duration, unless a former master may accept writes for longer.
    pub duration_ms: u64,
    /// Source of the duration.
    pub basis: QuarantineBasis,
    /// The limit of spans of the era; `None` if the store has none.
    pub span_limit: Option<NewSpanLimit>,
}

/// Source of the duration of a quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineBasis {
    /// The limit of spans that this broker has read shortly before.
    ReadLimit,
    /// The limit of spans in the store, whose last stamp is not too old.
    StampedLimit,
    /// The configured maxima.
    ConfiguredMaxima,
}

/// The limit of spans with which an era begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewSpanLimit {
    /// Longest span of the past eras. A recovery counts it until grants are allowed.
    pub covered_ms: u64,
    /// Longest span that grants and renewals may have.
    pub usable_ms: u64,
    /// Time that each change of the limit takes at least.
    pub change_ms: u64,
    /// Time after which no grant of the past eras is in force.
    pub grants_end_after_ms: u64,
}

/// A master that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedMaster {
    pub process: FormerProcess,
    /// Time for which the master may still accept writes.
    pub writes_for_ms: u64,
}

impl EraWrite {
    /// Returns what the quarantine follows from, for the log.
    pub fn basis(&self) -> &'static str {
        match self.quarantine.map(|begun| begun.basis) {
            Some(QuarantineBasis::ReadLimit) => "the limit of spans, as this broker has read it",
            Some(QuarantineBasis::StampedLimit) => "the limit of spans in the store",
            Some(QuarantineBasis::ConfiguredMaxima) => {
                "the configured maxima: no recent record of the limit of spans"
            }
            None => "none",
        }
    }
}

impl KnownState {
    /// Records the values of an era in which this process serves, besides its key and its limit.
    pub fn remember(&mut self, era: &Era) {
        self.bounds = Some(self.bounds.unwrap_or(era.bounds).max(era.bounds));
        self.no_grants_before_ms = self.no_grants_before_ms.max(era.no_grants_before_ms);
        self.last_era = Some(era.id.as_str().into());
        self.record_token(era.token_floor);
    }

    /// Records the token of a grant or the floor of an era, if there is one.
    pub fn record_token(&mut self, token: Option<FencingToken>) {
        self.largest_token = self.largest_token.max(token);
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
                token_floor: era.token_floor.max(known_state.largest_token),
                ..Era::new(server, own.bounds, &key, source(own))
            },
            quarantine: Some(quarantine(
                recovery_cause(era, found, server, is_doubted),
                trusted_limit(found, server, is_doubted, own),
                bounds(Some(era.bounds), own, known_state),
                own,
            )),
            replaced: replaced(era, server, own, known_state),
            former: era.former.clone(),
            key,
            store_key,
        })));
    }
    let bounds = era.bounds.max(own.bounds);
    let token_floor = era.token_floor.max(unrecorded_token(era, known_state));
    if bounds == era.bounds && !store_key && token_floor == era.token_floor {
        return Ok(EraDecision::Adopt(key));
    }
    Ok(EraDecision::Write(Box::new(EraWrite {
        era: Era {
            bounds,
            token_floor,
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
            token_floor: known_state.largest_token,
            span_limit: own
                .span_limit
                .filter(|_| never_used)
                .map(|_| StoredSpanLimit::constant(own.bounds.span_ms().max(SPAN_MIN_MS))),
            ..Era::new(server, own.bounds, &key, source(own))
        },
        quarantine: (!never_used).then(|| {
            let bounds = bounds(None, own, known_state);
            quarantine(RecoveryCause::Emptied, None, bounds, own)
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

/// Returns the largest token of this process if it may exceed tokens that the era allows: another
/// broker wrote the era, and the clock of its server is behind.
fn unrecorded_token(era: &Era, known_state: &KnownState) -> Option<FencingToken> {
    let has_served = known_state.last_era.as_deref() == Some(era.id.as_str());
    let smallest = era.no_grants_before_ms.saturating_mul(1_000);
    let largest = known_state.largest_token;
    largest.filter(|token| !has_served && token.get() >= smallest)
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

/// Returns the limit of spans of the past eras that counts for the recovery, with its source. `None`
/// if no record of the limit is known to be recent enough.
fn trusted_limit(
    found: &StoredState,
    server: &ServerIdentity,
    is_doubted: bool,
    own: &LocalConfig,
) -> Option<(SpanLimitReading, QuarantineBasis)> {
    // After a step of the clock the time of a change means nothing.
    if is_doubted {
        return None;
    }
    // Only the clock that has written a stamp shows its age.
    let has_one_clock = !server.has_replaced_a_master() && !own.has_sentinels;
    let stamped = found.stamped_limit.filter(|_| has_one_clock);
    let read = found
        .read_limit
        .map(|limit| (limit, QuarantineBasis::ReadLimit));
    read.or_else(|| Some((stamped?, QuarantineBasis::StampedLimit)))
}

/// Returns the quarantine of a new era: by the limit of the past eras if it is trusted, otherwise by
/// the configured maxima.
fn quarantine(
    cause: RecoveryCause,
    trusted: Option<(SpanLimitReading, QuarantineBasis)>,
    bounds: EraBounds,
    own: &LocalConfig,
) -> QuarantineWrite {
    let configured_ms = bounds.span_ms().max(SPAN_MIN_MS);
    let new_limit = |covered_ms: u64, usable_ms| {
        let longest_ms = covered_ms.min(bounds.span_ms());
        own.span_limit.map(|terms| NewSpanLimit {
            covered_ms,
            usable_ms,
            change_ms: terms.change_ms(bounds.former_master_max_ms),
            grants_end_after_ms: longest_ms.saturating_add(QUARANTINE_MARGIN_MS),
        })
    };
    let Some((limit, basis)) = trusted.filter(|_| own.span_limit.is_some()) else {
        return QuarantineWrite {
            cause,
            duration_ms: bounds.quarantine_ms(),
            basis: QuarantineBasis::ConfiguredMaxima,
            span_limit: new_limit(configured_ms, SPAN_MIN_MS),
        };
    };
    let unknown_master_ms = match own.has_sentinels {
        true => bounds.former_master_max_ms,
        false => 0,
    };
    let longest_ms = limit.covered_ms.min(bounds.span_ms());
    QuarantineWrite {
        cause,
        duration_ms: longest_ms
            .saturating_add(unknown_master_ms)
            .saturating_add(QUARANTINE_MARGIN_MS),
        basis,
        span_limit: new_limit(limit.covered_ms.min(configured_ms), limit.usable_ms),
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
