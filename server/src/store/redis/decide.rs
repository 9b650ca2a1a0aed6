//! Decides, without I/O, what becomes of the era and the deployment key of a store.

use super::era::{Era, EraBounds, FormerMaster, FormerProcess, KeySource, ServerIdentity};
use crate::lock::DeploymentKey;

/// What the store holds.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The era.
    pub era: Option<Era>,
    /// The deployment key.
    pub key: Option<DeploymentKey>,
    /// The slot of the era was on its way to another server and stayed: what that had may be lost.
    pub has_stayed: bool,
}

/// What this broker is configured with.
#[derive(Debug, Clone)]
pub struct Own {
    /// Its bounds.
    pub bounds: EraBounds,
    /// The deployment key from a file.
    pub key: Option<DeploymentKey>,
    /// A store without an era has never been used.
    pub trust_empty_store: bool,
}

/// What this process learnt from the store earlier.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The largest bounds of any era; `None` before the first.
    pub bounds: Option<EraBounds>,
    /// The latest start of grants that any era named.
    pub no_grants_before_ms: u64,
    /// The deployment key.
    pub key: Option<DeploymentKey>,
    /// The id of an era in which locks may have been lost that the server does not know of.
    pub doubted: Option<Box<str>>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Serve in the era found, with this key.
    Adopt(DeploymentKey),
    /// Write first.
    Write(Box<Write>),
    /// Do not serve; why, as the end of a sentence about the store.
    Refuse(&'static str),
}

/// An era to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The era; its `no_grants_before_ms` counts if there is no quarantine.
    pub era: Era,
    /// Nothing new is granted for so long from now.
    pub quarantine_ms: Option<u64>,
    /// The master that the server has replaced since the era before.
    pub replaced: Option<Replaced>,
    /// What the era before says of the one that it had replaced.
    pub former: Option<FormerMaster>,
    /// The key to serve with.
    pub key: DeploymentKey,
    /// Whether the key goes into the store too.
    pub store_key: bool,
}

/// A master that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its process.
    pub process: FormerProcess,
    /// How long it may still take writes.
    pub writes_for_ms: u64,
}

impl Known {
    /// Learns from an era in which this process serves.
    pub fn remember(&mut self, era: &Era, key: &DeploymentKey) {
        self.bounds = Some(self.bounds.unwrap_or(era.bounds).max(era.bounds));
        self.no_grants_before_ms = self.no_grants_before_ms.max(era.no_grants_before_ms);
        self.key = Some(key.clone());
    }
}

/// Decides for one verification of a store.
pub fn decide(found: &Found, server: &ServerIdentity, own: &Own, known: &Known) -> Decision {
    match &found.era {
        Some(era) => with_era(era, found, server, (own, known)),
        None => without_era(found, server, own, known),
    }
}

fn with_era(
    era: &Era,
    found: &Found,
    server: &ServerIdentity,
    (own, known): (&Own, &Known),
) -> Decision {
    let fits = |key: &&DeploymentKey| key.fingerprint() == era.key_fingerprint;
    let (key, store_key) = match (&own.key, &found.key) {
        (Some(file), _) if fits(&file) => (file, false),
        (Some(_), _) => return Decision::Refuse(OTHER_KEY_FILE),
        (None, _) if era.key_source == KeySource::File => return Decision::Refuse(NO_KEY_FILE),
        (None, Some(key)) if fits(&key) => (key, false),
        (None, Some(_)) => return Decision::Refuse(KEY_OF_ANOTHER_ERA),
        (None, None) => match known.key.as_ref().filter(fits) {
            Some(key) => (key, true),
            None => return Decision::Write(Box::new(lost_key(era, server, own, known))),
        },
    };
    let source = source(own);
    let is_its_own = era.run_id == server.run_id && server.continues(&era.replid);
    let is_doubted = known.doubted.as_deref() == Some(era.id.as_str());
    let same_data = is_its_own && !found.has_stayed && !is_doubted;
    if !same_data {
        return Decision::Write(Box::new(Write {
            era: Era {
                no_grants_before_ms: known.no_grants_before_ms.max(era.no_grants_before_ms),
                ..Era::new(server, own.bounds, key, source)
            },
            quarantine_ms: Some(bounds(Some(era.bounds), own, known).quarantine_ms()),
            replaced: replaced(era, server, own, known),
            former: era.former.clone(),
            key: key.clone(),
            store_key,
        }));
    }
    let bounds = era.bounds.max(own.bounds);
    if bounds == era.bounds && !store_key {
        return Decision::Adopt(key.clone());
    }
    Decision::Write(Box::new(Write {
        era: Era {
            bounds,
            former: None,
            ..era.clone()
        },
        quarantine_ms: None,
        replaced: None,
        former: era.former.clone(),
        key: key.clone(),
        store_key,
    }))
}

fn without_era(found: &Found, server: &ServerIdentity, own: &Own, known: &Known) -> Decision {
    let key = own
        .key
        .as_ref()
        .or(known.key.as_ref())
        .or(found.key.as_ref())
        .cloned()
        .unwrap_or_else(DeploymentKey::random);
    let store_key = own.key.is_none() && found.key.as_ref() != Some(&key);
    let never_used = own.trust_empty_store && known.bounds.is_none();
    Decision::Write(Box::new(Write {
        era: Era {
            no_grants_before_ms: known.no_grants_before_ms,
            ..Era::new(server, own.bounds, &key, source(own))
        },
        quarantine_ms: (!never_used).then(|| bounds(None, own, known).quarantine_ms()),
        // In a cluster the era of a slot may have moved, and some of its locks not.
        replaced: (!never_used && server.has_replaced_a_master()).then(|| Replaced {
            process: FormerProcess::Unknown,
            writes_for_ms: bounds(None, own, known).former_master_max_ms,
        }),
        former: None,
        key,
        store_key,
    }))
}

/// Nobody here knows the key: repeats of older calls can't be recognised, so the era ends with it.
fn lost_key(era: &Era, server: &ServerIdentity, own: &Own, known: &Known) -> Write {
    let key = DeploymentKey::random();
    Write {
        era: Era {
            no_grants_before_ms: known.no_grants_before_ms.max(era.no_grants_before_ms),
            ..Era::new(server, own.bounds, &key, KeySource::Store)
        },
        quarantine_ms: Some(bounds(Some(era.bounds), own, known).quarantine_ms()),
        replaced: replaced(era, server, own, known),
        former: era.former.clone(),
        key,
        store_key: true,
    }
}

fn source(own: &Own) -> KeySource {
    match own.key {
        Some(_) => KeySource::File,
        None => KeySource::Store,
    }
}

/// The master of the era before, if the server has taken its place.
fn replaced(era: &Era, server: &ServerIdentity, own: &Own, known: &Known) -> Option<Replaced> {
    let is_same_process = era.run_id == server.run_id;
    let is_successor = match is_same_process {
        // A master that followed another one for a while: that has written no era.
        true => !server.continues(&era.replid),
        false => server.has_replaced_a_master(),
    };
    is_successor.then(|| Replaced {
        process: match is_same_process {
            true => FormerProcess::Unknown,
            false => FormerProcess::Known(era.run_id.as_str().into()),
        },
        writes_for_ms: bounds(Some(era.bounds), own, known).former_master_max_ms,
    })
}

/// The largest that are known.
fn bounds(era: Option<EraBounds>, own: &Own, known: &Known) -> EraBounds {
    let others = [era, known.bounds].into_iter().flatten();
    others.fold(own.bounds, EraBounds::max)
}

const OTHER_KEY_FILE: &str = "belongs to a deployment with another key than the one in the \
    deployment key file, or with another list of servers. Give this broker the file and the list \
    that the other brokers have, or another key prefix.";
const NO_KEY_FILE: &str = "belongs to a deployment whose key is in a file. Give this broker the \
    deployment key file that the other brokers have.";
const KEY_OF_ANOTHER_ERA: &str = "holds a deployment key that is not the one of its era: the key \
    was changed from outside. Restore it, or delete both the key and the era and let the brokers \
    wait out the recovery.";

#[cfg(test)]
mod tests {
    use super::*;

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

    fn own(key: Option<&DeploymentKey>) -> Own {
        Own {
            bounds: SMALL,
            key: key.cloned(),
            trust_empty_store: false,
        }
    }

    fn here() -> ServerIdentity {
        server("run", "data", "000")
    }

    fn found(key: &DeploymentKey, bounds: EraBounds) -> Found {
        Found {
            has_stayed: false,
            era: Some(Era::new(&here(), bounds, key, KeySource::Store)),
            key: Some(key.clone()),
        }
    }

    fn written(decision: Decision) -> Write {
        match decision {
            Decision::Write(write) => *write,
            Decision::Adopt(_) | Decision::Refuse(_) => panic!("{decision:?}"),
        }
    }

    #[test]
    fn an_era_of_the_same_process_is_adopted() {
        let key = DeploymentKey::random();
        let found = found(&key, SMALL);
        for server in [here(), server("run", "other", "000")] {
            let decision = decide(&found, &server, &own(None), &Known::default());
            assert_eq!(decision, Decision::Adopt(key.clone()));
        }
    }

    #[test]
    fn larger_bounds_are_written_into_the_same_era() {
        let key = DeploymentKey::random();
        let found = found(&key, SMALL);
        let mut own = own(None);
        own.bounds.ttl_max_ms = 5_000;
        let write = written(decide(&found, &here(), &own, &Known::default()));
        let era = found.era.expect("found");
        assert_eq!((write.era.id, write.quarantine_ms), (era.id, None));
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
            let write = written(decide(&found, &server, &own(None), &Known::default()));
            assert_ne!(write.era.id, old.id);
            assert_eq!(
                write.quarantine_ms,
                Some(EraBounds::default().quarantine_ms())
            );
            assert_eq!(write.era.no_grants_before_ms, 77);
            assert_eq!(write.era.bounds, SMALL);
            assert_eq!(write.era.run_id, server.run_id);
            assert_eq!((write.key, write.store_key), (key.clone(), false));
        }
    }

    #[test]
    fn a_promoted_server_names_the_master_that_it_has_replaced() {
        let key = DeploymentKey::random();
        let found = found(&key, EraBounds::default());
        let replaced = |server| {
            let decision = decide(&found, &server, &own(None), &Known::default());
            written(decision).replaced.map(|replaced| {
                let Replaced {
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
        let waits = written(decide(&Found::default(), &here(), &own, &Known::default()));
        assert_eq!(waits.quarantine_ms, Some(SMALL.quarantine_ms()));
        assert!(waits.store_key);
        own.trust_empty_store = true;
        let trusts = written(decide(&Found::default(), &here(), &own, &Known::default()));
        assert_eq!(trusts.quarantine_ms, None);
        let mut known = Known::default();
        known.remember(
            &found(&trusts.key, EraBounds::default()).era.expect("era"),
            &trusts.key,
        );
        let lost = written(decide(&Found::default(), &here(), &own, &known));
        assert_eq!(
            lost.quarantine_ms,
            Some(EraBounds::default().quarantine_ms())
        );
        assert_eq!((lost.key, lost.store_key), (trusts.key, true));
    }

    #[test]
    fn a_lost_key_is_written_back_or_ends_the_era() {
        let key = DeploymentKey::random();
        let mut found = found(&key, SMALL);
        found.key = None;
        let era = found.era.clone().expect("found");
        let known = Known {
            key: Some(key.clone()),
            ..Known::default()
        };
        let knows = written(decide(&found, &here(), &own(None), &known));
        assert_eq!((knows.era.id, knows.quarantine_ms), (era.id.clone(), None));
        assert_eq!((knows.key, knows.store_key), (key.clone(), true));
        let learns = written(decide(&found, &here(), &own(None), &Known::default()));
        assert_ne!(learns.era.id, era.id);
        assert_eq!(learns.quarantine_ms, Some(SMALL.quarantine_ms()));
        assert!(learns.key != key && learns.store_key);
    }

    #[test]
    fn a_key_that_is_not_the_era_s_is_refused() {
        let key = DeploymentKey::random();
        let other = DeploymentKey::random();
        let known = Known::default();
        let kept = found(&key, SMALL);
        assert_eq!(
            decide(&kept, &here(), &own(Some(&other)), &known),
            Decision::Refuse(OTHER_KEY_FILE)
        );
        let mut changed = kept.clone();
        changed.key = Some(other.clone());
        assert_eq!(
            decide(&changed, &here(), &own(None), &known),
            Decision::Refuse(KEY_OF_ANOTHER_ERA)
        );
        let in_file = Found {
            era: Some(Era::new(&here(), SMALL, &key, KeySource::File)),
            ..Found::default()
        };
        assert_eq!(
            decide(&in_file, &here(), &own(None), &known),
            Decision::Refuse(NO_KEY_FILE)
        );
        assert_eq!(
            decide(&in_file, &here(), &own(Some(&key)), &known),
            Decision::Adopt(key)
        );
    }

    #[test]
    fn a_key_in_a_file_is_not_stored() {
        let key = DeploymentKey::random();
        let write = written(decide(
            &Found::default(),
            &here(),
            &own(Some(&key)),
            &Known::default(),
        ));
        assert!(!write.store_key);
        assert_eq!(write.era.key_source, KeySource::File);
    }
}
