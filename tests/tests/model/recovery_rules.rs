//! Each rule of the limit of spans is needed: a history that violates exclusion without the rule.

use std::collections::BTreeSet;

use leasehold_tests::model::{
    random::History,
    recovery::{Deployment, RecoveryAction, RecoveryWorld, Rule},
};

/// Histories, each below the name of its rule. `NUMBER x ACTION` repeats an action.
const HISTORIES: &str = include_str!("recovery_rules.txt");

/// A history that is safe only with all rules.
struct Counterexample {
    rule: Rule,
    deployment: Deployment,
    actions: Vec<RecoveryAction>,
}

fn counterexamples() -> Vec<Counterexample> {
    let histories = HISTORIES.split("\n\n").map(|history| {
        let mut lines = history.trim().lines();
        let (rule, deployment) = lines
            .next()
            .and_then(|line| line.split_once(": "))
            .expect("a rule and a deployment");
        let is_named = |known: &Rule| format!("{known:?}") == rule;
        Counterexample {
            rule: Rule::ALL.into_iter().find(is_named).expect(rule),
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

/// Returns the violated property of a history in a world without a rule.
fn violation(example: &Counterexample, removed: Option<Rule>) -> Option<String> {
    let mut history = History {
        world: RecoveryWorld::new(example.deployment, removed),
        actions: Vec::new(),
    };
    let mut actions = example.actions.iter();
    actions.find_map(|action| Some(history.apply(*action).err()?.property))
}

#[test]
fn without_any_one_rule_a_history_has_two_holders() {
    let examples = counterexamples();
    for example in &examples {
        let rule = example.rule;
        assert!(violation(example, Some(rule)).is_some(), "{rule:?}");
        assert_eq!(violation(example, None), None, "{rule:?} with all rules");
    }
    let found: BTreeSet<_> = examples.iter().map(|example| example.rule).collect();
    assert_eq!(found, BTreeSet::from(Rule::ALL));
}
