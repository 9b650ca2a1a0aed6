//! Authorization rules. Each rule allows some callers some verbs on some locks; all other
//! requests are denied.

use std::fmt;

use toml::{Table, Value};

use super::pattern::Pattern;
use crate::lock::LockKey;

/// A kind of operation on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Acquire, renew, release and attach.
    Acquire,
    /// Read the holders and waiters.
    Observe,
    /// Find the lock in lists and watches.
    List,
    /// Revoke a lease on the lock.
    ForceRelease,
    /// Set the limit of the lock.
    SetLimit,
    /// Close and open the lock, and set its limit.
    Admin,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = VERBS.iter().find(|(_, verb)| verb == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    callers: Vec<Pattern>,
    verbs: Vec<Verb>,
    namespaces: Vec<Pattern>,
    names: Vec<Pattern>,
}

const VERBS: [(&str, Verb); 6] = [
    ("acquire", Verb::Acquire),
    ("observe", Verb::Observe),
    ("list", Verb::List),
    ("force_release", Verb::ForceRelease),
    ("set_limit", Verb::SetLimit),
    ("admin", Verb::Admin),
];
const RULE_KEYS: [&str; 4] = ["callers", "verbs", "namespaces", "names"];

impl Policy {
    /// Returns a policy that allows every caller every verb, for a broker without authentication.
    pub fn allow_all() -> Self {
        let all = || vec![Pattern::new("*")];
        let rule = Rule {
            callers: all(),
            verbs: VERBS.map(|(_, verb)| verb).to_vec(),
            namespaces: all(),
            names: all(),
        };
        Self { rules: vec![rule] }
    }

    /// Returns the namespaces that rules name without a pattern.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let patterns = self.rules.iter().flat_map(|rule| &rule.namespaces);
        patterns.filter_map(Pattern::literal)
    }

    /// Parses `[[rule]]` tables of TOML. `callers` and `verbs` are required; `namespaces` and
    /// `names` match all if they are absent.
    ///
    /// # Errors
    /// A sentence for every problem.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| vec![error.message().to_owned()])?;
        let mut problems = Vec::new();
        for key in table.keys().filter(|key| *key != "rule") {
            problems.push(format!("{key}: unknown key; rules are tables [[rule]]"));
        }
        let tables = match table.get("rule") {
            None => &[][..],
            Some(Value::Array(rules)) => rules.as_slice(),
            Some(_) => {
                problems.push("rule: rules are tables [[rule]]".to_owned());
                &[]
            }
        };
        let numbered_rules = (1..).zip(tables);
        let rules = numbered_rules.filter_map(|(number, rule)| {
            let mut add_problem =
                |problem: String| problems.push(format!("rule {number}: {problem}"));
            parse_rule(rule, &mut add_problem)
        });
        let rules = rules.collect();
        match problems.is_empty() {
            true => Ok(Self { rules }),
            false => Err(problems),
        }
    }

    /// Returns true if a rule allows the caller to use `verb` on the lock.
    pub fn allows(&self, caller: &str, verb: Verb, lock: &LockKey) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| {
            rule.allows(verb)
                && matches_any(&rule.callers, caller)
                && matches_any(&rule.namespaces, lock.namespace())
                && matches_any(&rule.names, lock.name())
        })
    }

    /// Returns true if a rule allows the caller to use `verb` on at least one lock.
    pub fn allows_some(&self, caller: &str, verb: Verb) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.allows(verb) && matches_any(&rule.callers, caller))
    }
}

impl Rule {
    fn allows(&self, verb: Verb) -> bool {
        let is_implied = verb == Verb::SetLimit && self.verbs.contains(&Verb::Admin);
        is_implied || self.verbs.contains(&verb)
    }
}

fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

fn parse_rule(rule: &Value, add_problem: &mut impl FnMut(String)) -> Option<Rule> {
    let Value::Table(rule) = rule else {
        add_problem("must be a table".to_owned());
        return None;
    };
    for key in rule.keys().filter(|key| !RULE_KEYS.contains(&key.as_str())) {
        add_problem(format!(
            "{key}: unknown key; expected one of {}",
            RULE_KEYS.join(", ")
        ));
    }
    let mut texts = |key: &str, is_required: bool| match rule.get(key) {
        None if !is_required => Some(vec!["*"]),
        None => {
            add_problem(format!("{key}: is missing"));
            None
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let texts: Option<Vec<_>> = list.iter().map(Value::as_str).collect();
            if texts.is_none() {
                add_problem(format!("{key}: must be a list of strings"));
            }
            texts
        }
        Some(_) => {
            add_problem(format!("{key}: must be a non-empty list of strings"));
            None
        }
    };
    let (callers, verbs) = (texts("callers", true), texts("verbs", true));
    let (namespaces, names) = (texts("namespaces", false), texts("names", false));
    let mut parse_verb = |name: &str| {
        let verb = VERBS.iter().find(|(verb_name, _)| *verb_name == name);
        if verb.is_none() {
            let all = VERBS.map(|(name, _)| name).join(", ");
            add_problem(format!(
                "verbs: unknown verb {name:?}; expected one of {all}"
            ));
        }
        verb.map(|(_, verb)| *verb)
    };
    let verbs: Vec<_> = verbs?.into_iter().map(&mut parse_verb).collect();
    let patterns = |texts: Vec<&str>| texts.into_iter().map(Pattern::new).collect();
    Some(Rule {
        callers: patterns(callers?),
        verbs: verbs.into_iter().collect::<Option<_>>()?,
        namespaces: patterns(namespaces?),
        names: patterns(names?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LockName, Namespace};

    const RULES: &str = r#"
        [[rule]]
        callers = ["spiffe://corp/orders/*", "token:ci"]
        verbs = ["acquire", "observe"]
        namespaces = ["orders"]
        names = ["invoice/*"]
        [[rule]]
        callers = ["token:ops"]
        verbs = ["list", "force_release"]
    "#;

    fn lock(namespace: &str, name: &str) -> LockKey {
        let namespace = Namespace::parse(namespace).expect("a namespace");
        LockKey::new(namespace, LockName::parse(name).expect("a name"))
    }

    #[test]
    fn what_no_rule_allows_is_denied() {
        let policy = Policy::parse(RULES).expect("legal");
        let invoice = lock("orders", "invoice/1");
        for (caller, verb, lock, allowed) in [
            ("spiffe://corp/orders/a", Verb::Acquire, &invoice, true),
            ("token:ci", Verb::Observe, &invoice, true),
            ("token:ci", Verb::List, &invoice, false),
            ("token:ci", Verb::Acquire, &lock("orders", "invoice"), false),
            ("token:ci", Verb::Acquire, &lock("", "invoice/1"), false),
            ("token:ci2", Verb::Acquire, &invoice, false),
            ("token:ops", Verb::ForceRelease, &lock("", "x"), true),
            ("token:ops", Verb::Admin, &lock("", "x"), false),
            ("", Verb::Acquire, &invoice, false),
        ] {
            assert_eq!(
                policy.allows(caller, verb, lock),
                allowed,
                "{caller} {verb:?} {lock:?}"
            );
        }
        assert!(policy.allows_some("token:ops", Verb::List));
        assert!(!policy.allows_some("token:ci", Verb::List));
        assert!(
            !Policy::parse("")
                .expect("legal")
                .allows("", Verb::List, &invoice)
        );
        assert!(Policy::allow_all().allows("", Verb::Admin, &invoice));
    }

    #[test]
    fn admin_includes_set_limit_and_not_the_reverse() {
        let policy = r#"
            [[rule]]
            callers = ["ops"]
            verbs = ["admin"]
            [[rule]]
            callers = ["app"]
            verbs = ["set_limit"]
        "#;
        let policy = Policy::parse(policy).expect("valid");
        let pool = lock("default", "pool");
        let can = |caller| {
            [Verb::SetLimit, Verb::Admin].map(|verb| {
                let somewhere = policy.allows_some(caller, verb);
                assert_eq!(
                    policy.allows(caller, verb, &pool),
                    somewhere,
                    "{caller} {verb}"
                );
                somewhere
            })
        };
        assert_eq!(can("ops"), [true, true]);
        assert_eq!(can("app"), [true, false]);
    }

    #[test]
    fn every_problem_is_reported() {
        let invalid = r#"
            other = 1
            [[rule]]
            callers = []
            verbs = ["aquire"]
            [[rule]]
            caller = ["a"]
            callers = ["a", 1]
            [[rule]]
            callers = ["a"]
            verbs = "list"
        "#;
        let problems = Policy::parse(invalid).expect_err("wrong");
        assert_eq!(
            problems,
            [
                "other: unknown key; rules are tables [[rule]]",
                "rule 1: callers: must be a non-empty list of strings",
                "rule 1: verbs: unknown verb \"aquire\"; expected one of acquire, observe, list, \
                 force_release, set_limit, admin",
                "rule 2: caller: unknown key; expected one of callers, verbs, namespaces, names",
                "rule 2: callers: must be a list of strings",
                "rule 2: verbs: is missing",
                "rule 3: verbs: must be a non-empty list of strings",
            ]
        );
    }
}
