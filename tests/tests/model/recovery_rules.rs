//! Each rule of the limit of spans is needed: a history that violates exclusion without the rule.

use std::collections::BTreeSet;

use leasehold_tests::model::{
    random::{History, Walk as _},
    recovery::{Deployment, RecoveryAction, RecoveryWorld, Rule, random::RecoveryWalk},
};

/// Histories, each below the name of its rule. `NUMBER x ACTION` repeats an action.
const HISTORIES: &str = include_str!("recovery_rules.txt");
/// Histories for the rules of an early end.
const EARLY_END_HISTORIES: &str = include_str!("early_end_rules.txt");
/// Number of random histories with an early end.
const EARLY_END_WALKS: u64 = 2_000;

/// A history that is safe only with all rules.
struct Counterexample {
    rule: Rule,
    deployment: Deployment,
    actions: Vec<RecoveryAction>,
}

fn counterexamples(histories: &str, rules: &[Rule]) -> Vec<Counterexample> {
    let histories = histories.split("\n\n").map(|history| {
        let mut lines = history.trim().lines();
        let (rule, deployment) = lines
            .next()
            .and_then(|line| line.split_once(": "))
            .expect("a rule and a deployment");
        let is_named = |known: &Rule| format!("{known:?}") == rule;
        Counterexample {
            rule: *rules.iter().find(|rule| is_named(rule)).expect(rule),
            deployment: match deployment {
                "one server" => Deployment::Single,
                "replicas" => Deployment::Replicated,
                other => panic!("{other:?} is no deployment"),
            },
            actions: lines.flat_map(actions).collect(),
        }
    });
    histories.collect()
}

fn actions(line: &str) -> Vec<RecoveryAction> {
    let (count, action) = line.split_once(" x ").unwrap_or(("1", line));
    let count: usize = count.parse().expect("a number");
    vec![action.parse().expect("an action"); count]
}

/// Returns the violated property of a history in this world.
fn violation(world: RecoveryWorld, actions: &[RecoveryAction]) -> Option<String> {
    let mut history = History {
        world,
        actions: Vec::new(),
    };
    let mut actions = actions.iter();
    actions.find_map(|action| Some(history.apply(*action).err()?.property))
}

/// Fails unless each rule has a history that two holders violate without the rule, and only then.
/// `new_world` creates a world without a rule.
fn assert_each_is_needed(
    histories: &str,
    rules: &[Rule],
    new_world: impl Fn(Deployment, Option<Rule>) -> RecoveryWorld,
) {
    let examples = counterexamples(histories, rules);
    for example in &examples {
        let (rule, deployment) = (example.rule, example.deployment);
        let without = violation(new_world(deployment, Some(rule)), &example.actions);
        assert!(without.is_some(), "{rule:?}");
        let with_all = violation(new_world(deployment, None), &example.actions);
        assert_eq!(with_all, None, "{rule:?} with all rules");
    }
    let found: BTreeSet<_> = examples.iter().map(|example| example.rule).collect();
    assert_eq!(found, rules.iter().copied().collect());
}

#[test]
fn without_any_one_rule_a_history_has_two_holders() {
    assert_each_is_needed(HISTORIES, &Rule::OF_LIMIT, RecoveryWorld::new);
}

#[test]
fn an_early_end_needs_each_of_its_rules() {
    assert_each_is_needed(
        EARLY_END_HISTORIES,
        &Rule::OF_EARLY_END,
        RecoveryWorld::ending_early,
    );
}

#[test]
fn with_its_rules_an_early_end_has_one_holder() {
    let mut early_ends = 0;
    for seed in 0..EARLY_END_WALKS {
        let mut walk = RecoveryWalk::ending_early(seed, None);
        if let Err(violation) = walk.run() {
            panic!("seed {seed}: {}", violation.property);
        }
        early_ends += walk
            .into_results()
            .counts
            .get("an early end")
            .copied()
            .unwrap_or(0);
    }
    assert!(early_ends > 0, "no time without grants ended early");
}
