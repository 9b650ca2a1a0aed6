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
mod tests {
    use super::*;
    use crate::store::redis::era::Quarantine;

    const SMALL: EraBounds = EraBounds {
        ttl_max_ms: 1_000,
        lock_delay_max_ms: 0,
        former_master_max_ms: 0,
    };

    fn server(run_id: &str, replid: &str, replid2: &str) -> ServerIdentity {
        ServerIdentity {
            run_id: run_id.into(),
            replid: replid.into(),
            replid2: replid2.into(),
        }
    }

    fn own(key: Option<&DeploymentKey>) -> LocalConfig {
        LocalConfig {
            bounds: SMALL,
            key: key.cloned(),
            trust_empty_store: false,
        }
    }

    fn here() -> ServerIdentity {
        server("run", "data", "000")
    }

    fn found(key: &DeploymentKey, bounds: EraBounds) -> StoredState {
        StoredState {
            has_stayed: false,
            is_slot: false,
            era: Some(Era::new(&here(), bounds, key, KeySource::Store)),
            key: Some(key.clone()),
        }
    }

    fn written(decision: Result<EraDecision, &str>) -> EraWrite {
        match decision {
            Ok(EraDecision::Write(write)) => *write,
            Ok(EraDecision::Adopt(_)) | Err(_) => panic!("{decision:?}"),
        }
    }

    #[test]
    fn an_era_of_the_same_process_is_adopted() {
        let key = DeploymentKey::random();
        let found = found(&key, SMALL);
        for server in [here(), server("run", "other", "000")] {
            let decision = decide_era(&found, &server, &own(None), &KnownState::default());
            assert_eq!(decision, Ok(EraDecision::Adopt(key.clone())));
        }
    }

    #[test]
    fn larger_bounds_are_written_into_the_same_era() {
        let key = DeploymentKey::random();
        let found = found(&key, SMALL);
        let mut own = own(None);
        own.bounds.ttl_max_ms = 5_000;
        let write = written(decide_era(&found, &here(), &own, &KnownState::default()));
        let era = found.era.expect("found");
        assert_eq!((write.era.id, write.quarantine), (era.id, None));
        assert_eq!(write.era.bounds, own.bounds);
        assert!(!write.store_key);
    }

    #[test]
    fn a_restart_or_a_promotion_ends_the_era_by_the_larger_bounds() {
        let key = DeploymentKey::random();
        let mut found = found(&key, EraBounds::default());
        let old = found.era.as_mut().expect("found");
        old.no_grants_before_ms = 77;
        let old = old.clone();
        for server in [server("again", "data", "000"), server("run", "new", "data")] {
            let write = written(decide_era(
                &found,
                &server,
                &own(None),
                &KnownState::default(),
            ));
            assert_ne!(write.era.id, old.id);
            let quarantine = write.quarantine.expect("locks may be lost");
            assert_eq!(quarantine.duration_ms, EraBounds::default().quarantine_ms());
            assert_eq!(write.era.no_grants_before_ms, 77);
            assert_eq!(write.era.bounds, SMALL);
            assert_eq!(write.era.run_id, server.run_id);
            assert_eq!((write.key, write.store_key), (key.clone(), false));
        }
    }

    #[test]
    fn an_era_that_ends_names_the_cause() {
        let key = DeploymentKey::random();
        let cause = |change: &dyn Fn(&mut StoredState, &mut KnownState), server| {
            let mut found = found(&key, SMALL);
            let mut known_state = KnownState::default();
            change(&mut found, &mut known_state);
            let decision = decide_era(&found, &server, &own(None), &known_state);
            written(decision).quarantine.map(|begun| begun.cause)
        };
        let none = |_: &mut StoredState, _: &mut KnownState| {};
        let slot = |found: &mut StoredState, _: &mut KnownState| found.is_slot = true;
        let stayed = |found: &mut StoredState, _: &mut KnownState| found.has_stayed = true;
        let doubted = |found: &mut StoredState, known: &mut KnownState| {
            let era = found.era.as_ref().expect("found");
            known.doubted = Some(era.id.as_str().into());
        };
        let keyless = |found: &mut StoredState, _: &mut KnownState| found.key = None;
        let emptied = |found: &mut StoredState, _: &mut KnownState| {
            *found = StoredState::default();
        };
        use RecoveryCause as Cause;
        type Change<'a> = &'a dyn Fn(&mut StoredState, &mut KnownState);
        let cases: [(Change<'_>, ServerIdentity, RecoveryCause); 11] = [
            (&none, server("again", "new", "000"), Cause::Restarted),
            (&none, server("other", "new", "data"), Cause::Promoted),
            (&none, server("other", "new", "third"), Cause::Promoted),
            (&none, server("run", "new", "data"), Cause::Promoted),
            (&slot, server("other", "new", "000"), Cause::SlotMoved),
            (&slot, server("other", "new", "third"), Cause::SlotMoved),
            (&slot, server("other", "new", "data"), Cause::Promoted),
            (&stayed, here(), Cause::SlotStayed),
            (&doubted, here(), Cause::AssumptionViolated),
            (&keyless, here(), Cause::KeyLost),
            (&emptied, here(), Cause::Emptied),
        ];
        for (change, server, expected) in cases {
            assert_eq!(cause(change, server.clone()), Some(expected), "{server:?}");
        }
    }

    #[test]
    fn larger_bounds_keep_the_cause_of_the_quarantine() {
        let key = DeploymentKey::random();
        let mut found = found(&key, SMALL);
        let quarantine = Some(Quarantine {
            cause: Some(RecoveryCause::Restarted),
            since_ms: 7,
        });
        found.era.as_mut().expect("found").quarantine = quarantine;
        let own = LocalConfig {
            bounds: EraBounds::default(),
            ..own(None)
        };
        let write = written(decide_era(&found, &here(), &own, &KnownState::default()));
        assert_eq!((write.era.quarantine, write.quarantine), (quarantine, None));
    }

    #[test]
    fn a_promoted_server_names_the_master_that_it_has_replaced() {
        let key = DeploymentKey::random();
        let found = found(&key, EraBounds::default());
        let replaced = |server| {
            let decision = decide_era(&found, &server, &own(None), &KnownState::default());
            written(decision).replaced.map(|replaced| {
                let ReplacedMaster {
                    process,
                    writes_for_ms,
                } = replaced;
                assert_eq!(
                    writes_for_ms,
                    EraBounds::default().former_master_max_ms,
                    "the larger of both"
                );
                process
            })
        };
        assert_eq!(replaced(server("again", "data", "000")), None, "a restart");
        assert_eq!(
            replaced(server("other", "new", "data")),
            Some(FormerProcess::Known("run".into()))
        );
        assert_eq!(
            replaced(server("run", "new", "other")),
            Some(FormerProcess::Unknown)
        );
    }

    #[test]
    fn only_a_first_contact_may_trust_an_empty_store() {
        let mut own = own(None);
        let waits = written(decide_era(
            &StoredState::default(),
            &here(),
            &own,
            &KnownState::default(),
        ));
        let emptied = |bounds: EraBounds| {
            Some(QuarantineWrite {
                cause: RecoveryCause::Emptied,
                duration_ms: bounds.quarantine_ms(),
            })
        };
        assert_eq!(waits.quarantine, emptied(SMALL));
        assert!(waits.store_key);
        own.trust_empty_store = true;
        let trusts = written(decide_era(
            &StoredState::default(),
            &here(),
            &own,
            &KnownState::default(),
        ));
        assert_eq!(trusts.quarantine, None);
        let mut known_state = KnownState::default();
        known_state.remember(&found(&trusts.key, EraBounds::default()).era.expect("era"));
        known_state.key = Some(trusts.key.clone());
        let lost = written(decide_era(
            &StoredState::default(),
            &here(),
            &own,
            &known_state,
        ));
        assert_eq!(lost.quarantine, emptied(EraBounds::default()));
        assert_eq!((lost.key, lost.store_key), (trusts.key, true));
    }

    #[test]
    fn a_lost_key_is_written_back_or_ends_the_era() {
        let key = DeploymentKey::random();
        let mut found = found(&key, SMALL);
        found.key = None;
        let era = found.era.clone().expect("found");
        let known_state = KnownState {
            key: Some(key.clone()),
            ..KnownState::default()
        };
        let knows = written(decide_era(&found, &here(), &own(None), &known_state));
        assert_eq!((knows.era.id, knows.quarantine), (era.id.clone(), None));
        assert_eq!((knows.key, knows.store_key), (key.clone(), true));
        let learns = written(decide_era(
            &found,
            &here(),
            &own(None),
            &KnownState::default(),
        ));
        assert_ne!(learns.era.id, era.id);
        let quarantine = QuarantineWrite {
            cause: RecoveryCause::KeyLost,
            duration_ms: SMALL.quarantine_ms(),
        };
        assert_eq!(learns.quarantine, Some(quarantine));
        assert!(learns.key != key && learns.store_key);
    }

    #[test]
    fn a_key_of_another_era_is_rejected() {
        let key = DeploymentKey::random();
        let other_key = DeploymentKey::random();
        let known_state = KnownState::default();
        let stored = found(&key, SMALL);
        assert_eq!(
            decide_era(&stored, &here(), &own(Some(&other_key)), &known_state),
            Err(OTHER_KEY_FILE)
        );
        let mut changed = stored.clone();
        changed.key = Some(other_key.clone());
        assert_eq!(
            decide_era(&changed, &here(), &own(None), &known_state),
            Err(KEY_OF_ANOTHER_ERA)
        );
        let in_file = StoredState {
            era: Some(Era::new(&here(), SMALL, &key, KeySource::File)),
            ..StoredState::default()
        };
        assert_eq!(
            decide_era(&in_file, &here(), &own(None), &known_state),
            Err(NO_KEY_FILE)
        );
        assert_eq!(
            decide_era(&in_file, &here(), &own(Some(&key)), &known_state),
            Ok(EraDecision::Adopt(key))
        );
    }

    #[test]
    fn a_key_in_a_file_is_not_stored() {
        let key = DeploymentKey::random();
        let write = written(decide_era(
            &StoredState::default(),
            &here(),
            &own(Some(&key)),
            &KnownState::default(),
        ));
        assert!(!write.store_key);
        assert_eq!(write.era.key_source, KeySource::File);
    }
}
