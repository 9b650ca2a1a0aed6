//! The rules: each allows some callers some verbs on some locks. What no rule allows is denied.

use std::fmt;

use toml::{Table, Value};

use super::pattern::Pattern;
use crate::lock::LockKey;

/// What is done to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Acquire, renew, release, attach.
    Acquire,
    /// See who holds it and who waits.
    Observe,
    /// Find it in lists and watches.
    List,
    /// Take it away from its holder.
    ForceRelease,
    /// Set its limit.
    Admin,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = VERBS.iter().find(|(_, verb)| verb == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// All rules.
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

const VERBS: [(&str, Verb); 5] = [
    ("acquire", Verb::Acquire),
    ("observe", Verb::Observe),
    ("list", Verb::List),
    ("force_release", Verb::ForceRelease),
    ("admin", Verb::Admin),
];
const KEYS: [&str; 4] = ["callers", "verbs", "namespaces", "names"];

impl Policy {
    /// Everybody may do everything: the policy of a broker that does not ask who calls.
    pub fn open() -> Self {
        let all = || vec![Pattern::new("*")];
        let rule = Rule {
            callers: all(),
            verbs: VERBS.map(|(_, verb)| verb).to_vec(),
            namespaces: all(),
            names: all(),
        };
        Self { rules: vec![rule] }
    }

    /// The namespaces that rules name as they are called.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let patterns = self.rules.iter().flat_map(|rule| &rule.namespaces);
        patterns.filter_map(Pattern::literal)
    }

    /// Reads `[[rule]]` tables of TOML, each with `callers`, `verbs`, and, where not all are meant,
    /// `namespaces` and `names`.
    ///
    /// # Errors
    /// Every problem, one sentence each.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| vec![error.message().to_owned()])?;
        let mut problems = Vec::new();
        for key in table.keys().filter(|key| *key != "rule") {
            problems.push(format!("{key}: no such key; rules are tables [[rule]]"));
        }
        let given = match table.get("rule") {
            None => &[][..],
            Some(Value::Array(rules)) => rules.as_slice(),
            Some(_) => {
                problems.push("rule: rules are tables [[rule]]".to_owned());
                &[]
            }
        };
        let numbered = (1..).zip(given);
        let rules = numbered.filter_map(|(number, rule)| {
            let mut wrong = |why: String| problems.push(format!("rule {number}: {why}"));
            read(rule, &mut wrong)
        });
        let rules = rules.collect();
        match problems.is_empty() {
            true => Ok(Self { rules }),
            false => Err(problems),
        }
    }

    /// Whether a caller of this name may do that.
    pub fn allows(&self, caller: &str, verb: Verb, lock: &LockKey) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| {
            rule.verbs.contains(&verb)
                && any(&rule.callers, caller)
                && any(&rule.namespaces, lock.namespace())
                && any(&rule.names, lock.name())
        })
    }

    /// Whether a caller may do that to any lock at all.
    pub fn allows_some(&self, caller: &str, verb: Verb) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.verbs.contains(&verb) && any(&rule.callers, caller))
    }
}

fn any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

fn read(rule: &Value, wrong: &mut impl FnMut(String)) -> Option<Rule> {
    let Value::Table(rule) = rule else {
        wrong("it is no table".to_owned());
        return None;
    };
    for key in rule.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        wrong(format!("{key}: no such key; there are {}", KEYS.join(", ")));
    }
    let mut texts = |key: &str, is_needed: bool| match rule.get(key) {
        None if !is_needed => Some(vec!["*"]),
        None => {
            wrong(format!("{key}: is missing"));
            None
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let texts: Option<Vec<_>> = list.iter().map(Value::as_str).collect();
            if texts.is_none() {
                wrong(format!("{key}: must be a list of texts"));
            }
            texts
        }
        Some(_) => {
            wrong(format!("{key}: must be a list of texts, at least one"));
            None
        }
    };
    let (callers, verbs) = (texts("callers", true), texts("verbs", true));
    let (namespaces, names) = (texts("namespaces", false), texts("names", false));
    let mut known = |name: &str| {
        let verb = VERBS.iter().find(|(known, _)| *known == name);
        if verb.is_none() {
            let all = VERBS.map(|(name, _)| name).join(", ");
            wrong(format!("verbs: {name:?} is none; there are {all}"));
        }
        verb.map(|(_, verb)| *verb)
    };
    let verbs: Vec<_> = verbs?.into_iter().map(&mut known).collect();
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
        assert!(Policy::open().allows("", Verb::Admin, &invoice));
    }

    #[test]
    fn every_problem_is_told() {
        let wrong = r#"
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
        let problems = Policy::parse(wrong).expect_err("wrong");
        assert_eq!(
            problems,
            [
                "other: no such key; rules are tables [[rule]]",
                "rule 1: callers: must be a list of texts, at least one",
                "rule 1: verbs: \"aquire\" is none; there are acquire, observe, list, force_release, admin",
                "rule 2: caller: no such key; there are callers, verbs, namespaces, names",
                "rule 2: callers: must be a list of texts",
                "rule 2: verbs: is missing",
                "rule 3: verbs: must be a list of texts, at least one",
            ]
        );
    }
}
