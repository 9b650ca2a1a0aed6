//! Tests of the decision about an era.

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
        span_limit: None,
        has_sentinels: false,
    }
}

fn here() -> ServerIdentity {
    server("run", "data", "000")
}

fn found(key: &DeploymentKey, bounds: EraBounds) -> StoredState {
    StoredState {
        era: Some(Era::new(&here(), bounds, key, KeySource::Store)),
        key: Some(key.clone()),
        ..StoredState::default()
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
            basis: QuarantineBasis::ConfiguredMaxima,
            span_limit: None,
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
        basis: QuarantineBasis::ConfiguredMaxima,
        span_limit: None,
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

/// Returns the quarantine of a store with a limit, whose process is not that of its era.
fn quarantine_with_limit(
    server: &ServerIdentity,
    change: impl Fn(&mut StoredState, &mut LocalConfig, &mut KnownState),
) -> QuarantineWrite {
    let key = DeploymentKey::random();
    let (mut found, mut own) = (found(&key, EraBounds::default()), own(None));
    let mut known_state = KnownState::default();
    own.span_limit = Some(SpanLimitTerms::default());
    change(&mut found, &mut own, &mut known_state);
    let write = written(decide_era(&found, server, &own, &known_state));
    write.quarantine.expect("locks may be lost")
}

fn reading(covered_ms: u64) -> Option<SpanLimitReading> {
    Some(SpanLimitReading {
        covered_ms,
        usable_ms: SPAN_MIN_MS,
    })
}

#[test]
fn the_quarantine_follows_from_the_limit_that_is_trusted() {
    let (again, promoted) = (
        server("again", "data", "000"),
        server("other", "new", "data"),
    );
    let read = quarantine_with_limit(&promoted, |found, _, _| {
        found.read_limit = reading(20_000);
        found.stamped_limit = reading(30_000);
    });
    let limit = NewSpanLimit {
        covered_ms: 20_000,
        usable_ms: SPAN_MIN_MS,
        change_ms: 60_000 + 12_000,
        grants_end_after_ms: 21_000,
    };
    assert_eq!(read.basis, QuarantineBasis::ReadLimit);
    assert_eq!((read.duration_ms, read.span_limit), (21_000, Some(limit)));
    let stamped = |server, has_sentinels| {
        quarantine_with_limit(server, |found, own, _| {
            found.stamped_limit = reading(30_000);
            own.has_sentinels = has_sentinels;
        })
    };
    let restarted = stamped(&again, false);
    assert_eq!(restarted.basis, QuarantineBasis::StampedLimit);
    assert_eq!(restarted.duration_ms, 31_000);
    let configured_ms = EraBounds::default().quarantine_ms();
    for other in [stamped(&promoted, false), stamped(&again, true)] {
        assert_eq!(other.basis, QuarantineBasis::ConfiguredMaxima);
        assert_eq!(other.duration_ms, configured_ms);
    }
}

#[test]
fn without_a_trusted_limit_the_quarantine_is_the_configured_one() {
    let again = server("again", "data", "000");
    let unknown = quarantine_with_limit(&again, |_, _, _| {});
    let emptied = quarantine_with_limit(&again, |found, _, _| {
        *found = StoredState {
            read_limit: reading(20_000),
            ..StoredState::default()
        };
    });
    let doubted = quarantine_with_limit(&here(), |found, _, known_state| {
        found.read_limit = reading(20_000);
        let era = found.era.as_ref().expect("found");
        known_state.doubted = Some(era.id.as_str().into());
    });
    for quarantine in [unknown, doubted] {
        let bounds = EraBounds::default();
        assert_eq!(quarantine.basis, QuarantineBasis::ConfiguredMaxima);
        assert_eq!(quarantine.duration_ms, bounds.quarantine_ms());
        let limit = quarantine.span_limit.expect("the store has a limit");
        assert_eq!(limit.covered_ms, bounds.span_ms());
        assert_eq!(limit.usable_ms, SPAN_MIN_MS);
    }
    assert_eq!(emptied.basis, QuarantineBasis::ConfiguredMaxima);
    assert_eq!(emptied.duration_ms, SMALL.quarantine_ms());
}

#[test]
fn small_maxima_shorten_the_quarantine_below_the_smallest_limit() {
    let promoted = server("other", "new", "data");
    let key = DeploymentKey::random();
    let mut found = found(&key, SMALL);
    found.read_limit = reading(SPAN_MIN_MS);
    let mut own = own(None);
    own.span_limit = Some(SpanLimitTerms::default());
    let write = written(decide_era(&found, &promoted, &own, &KnownState::default()));
    let quarantine = write.quarantine.expect("locks may be lost");
    let limit = quarantine.span_limit.expect("the store has a limit");
    assert_eq!(quarantine.duration_ms, SMALL.span_ms() + 1_000);
    assert_eq!(limit.grants_end_after_ms, SMALL.span_ms() + 1_000);
    assert_eq!(limit.covered_ms, SPAN_MIN_MS);
}

#[test]
fn a_store_that_was_never_used_begins_with_the_largest_limit() {
    let mut own = own(None);
    own.bounds = EraBounds::default();
    own.trust_empty_store = true;
    own.span_limit = Some(SpanLimitTerms::default());
    let found = StoredState::default();
    let first = written(decide_era(&found, &here(), &own, &KnownState::default()));
    let limit = StoredSpanLimit::constant(own.bounds.span_ms());
    assert_eq!(
        (first.era.span_limit, first.quarantine),
        (Some(limit), None)
    );
    own.span_limit = None;
    let without = written(decide_era(&found, &here(), &own, &KnownState::default()));
    assert_eq!(without.era.span_limit, None);
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

fn token(value: u64) -> Option<FencingToken> {
    Some(FencingToken::new(value).expect("a token"))
}

#[test]
fn a_new_era_continues_from_the_largest_token_of_the_broker_and_of_the_last_era() {
    let key = DeploymentKey::random();
    let floor = |of_era, largest_token| {
        let mut found = found(&key, SMALL);
        found.era.as_mut().expect("found").token_floor = of_era;
        let known_state = KnownState {
            largest_token,
            ..KnownState::default()
        };
        let promoted = server("other", "new", "data");
        let write = written(decide_era(&found, &promoted, &own(None), &known_state));
        let emptied = StoredState::default();
        let without = written(decide_era(&emptied, &promoted, &own(None), &known_state));
        assert_eq!(without.era.token_floor, largest_token);
        write.era.token_floor
    };
    assert_eq!(floor(None, None), None);
    assert_eq!(floor(None, token(7)), token(7));
    assert_eq!(floor(token(8), None), token(8));
    assert_eq!(floor(token(8), token(7)), token(8));
    assert_eq!(floor(token(7), token(8)), token(8));
}

#[test]
fn a_broker_raises_the_floor_of_an_era_that_another_broker_has_written() {
    let key = DeploymentKey::random();
    let mut found = found(&key, SMALL);
    let era = found.era.as_mut().expect("found");
    (era.no_grants_before_ms, era.token_floor) = (5, token(5_100));
    let era = era.clone();
    let decide = |largest_token, last_era: &str| {
        let known_state = KnownState {
            largest_token,
            last_era: Some(last_era.into()),
            ..KnownState::default()
        };
        decide_era(&found, &here(), &own(None), &known_state)
    };
    let adopted = Ok(EraDecision::Adopt(key.clone()));
    assert_eq!(decide(None, "before"), adopted);
    assert_eq!(decide(token(5_100), "before"), adopted);
    assert_eq!(decide(token(5_101), &era.id), adopted, "it has served");
    let write = written(decide(token(5_101), "before"));
    assert_eq!(write.quarantine, None);
    let raised = Era {
        token_floor: token(5_101),
        ..era
    };
    assert_eq!(write.era, raised);
}

#[test]
fn a_token_before_the_first_grant_of_an_era_is_no_floor() {
    let key = DeploymentKey::random();
    let mut found = found(&key, SMALL);
    found.era.as_mut().expect("found").no_grants_before_ms = 5;
    let decide = |largest_token| {
        let known_state = KnownState {
            largest_token,
            ..KnownState::default()
        };
        decide_era(&found, &here(), &own(None), &known_state)
    };
    assert_eq!(decide(token(4_999)), Ok(EraDecision::Adopt(key.clone())));
    assert_eq!(written(decide(token(5_000))).era.token_floor, token(5_000));
}

#[test]
fn the_largest_token_is_that_of_a_grant_or_a_floor() {
    let mut known_state = KnownState::default();
    known_state.record_token(token(7));
    known_state.record_token(token(6));
    let mut era = Era::new(&here(), SMALL, &DeploymentKey::random(), KeySource::Store);
    known_state.remember(&era);
    assert_eq!(known_state.largest_token, token(7));
    assert_eq!(known_state.last_era.as_deref(), Some(era.id.as_str()));
    era.token_floor = token(8);
    known_state.remember(&era);
    assert_eq!(known_state.largest_token, token(8));
}
