//! Reads keys one by one from file, environment and flags, and collects what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use figment::{
    Profile, Provider,
    providers::{Env, Format, Toml},
    value::{Dict, Value},
};

use super::Flags;

const ENV_PREFIX: &str = "LEASEHOLD__";

/// The values given, and the problems found so far.
pub(super) struct Reader {
    given: BTreeMap<String, Given>,
    known: BTreeSet<&'static str>,
    problems: Vec<String>,
}

struct Given {
    /// `None`: a list, a table, or another thing that is no single value.
    text: Option<String>,
    /// Where it was given.
    origin: String,
}

impl Reader {
    /// Reads everything; later origins replace earlier ones.
    pub(super) fn open(flags: &Flags) -> Self {
        let mut reader = Self {
            given: BTreeMap::new(),
            known: BTreeSet::new(),
            problems: Vec::new(),
        };
        if let Some(path) = &flags.config {
            let origin = path.display().to_string();
            match std::fs::read_to_string(path) {
                Ok(text) => reader.add(&Toml::string(&text), |_| origin.clone()),
                Err(error) => reader
                    .problems
                    .push(format!("cannot read {origin}: {error}")),
            }
        }
        reader.add(&Env::prefixed(ENV_PREFIX).split("__"), |key| {
            format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase())
        });
        for (key, text, flag) in flags.given() {
            let given = Given {
                text: Some(text),
                origin: flag.to_owned(),
            };
            reader.given.insert(key.to_owned(), given);
        }
        reader
    }

    /// Whether anybody gave the key.
    pub(super) fn is_set(&mut self, key: &'static str) -> bool {
        self.known.insert(key);
        self.given.contains_key(key)
    }

    /// The value of a key. A wrong one is a problem, and the default takes its place so that the
    /// rest is checked, too.
    pub(super) fn parse<T>(
        &mut self,
        key: &'static str,
        default: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        self.known.insert(key);
        if let Some(given) = self.given.get(key) {
            let parsed = given
                .text
                .as_deref()
                .map_or_else(|| Err("must be a single value".to_owned()), &parse);
            match parsed {
                Ok(value) => return value,
                Err(why) => self.problem(key, &why),
            }
        }
        parse(default).unwrap_or_else(|why| unreachable!("default of {key}: {why}"))
    }

    /// Notes what is wrong with a key.
    pub(super) fn problem(&mut self, key: &'static str, why: &str) {
        let origin = self
            .given
            .get(key)
            .map(|given| format!(" (from {})", given.origin));
        self.problems
            .push(format!("{key}{}: {why}", origin.unwrap_or_default()));
    }

    /// Every problem. Keys that nobody asked for are ones.
    pub(super) fn finish(mut self) -> Vec<String> {
        for (key, given) in &self.given {
            if !self.known.contains(key.as_str()) {
                let known = self.known.iter().copied().collect::<Vec<_>>().join(", ");
                let origin = &given.origin;
                self.problems.push(format!(
                    "{key} (from {origin}): no such key; there are {known}"
                ));
            }
        }
        self.problems
    }

    fn add(&mut self, provider: &impl Provider, origin: impl Fn(&str) -> String) {
        match provider.data() {
            Ok(profiles) => {
                let dict = profiles.get(&Profile::Default).cloned().unwrap_or_default();
                self.flatten("", dict, &origin);
            }
            Err(error) => self
                .problems
                .push(format!("{}: {}", origin(""), error.kind)),
        }
    }

    fn flatten(&mut self, path: &str, dict: Dict, origin: &impl Fn(&str) -> String) {
        for (name, value) in dict {
            let key = if path.is_empty() {
                name
            } else {
                format!("{path}.{name}")
            };
            let text = match value {
                Value::Dict(_, inner) => {
                    self.flatten(&key, inner, origin);
                    continue;
                }
                Value::String(_, text) => Some(text),
                Value::Char(_, c) => Some(c.to_string()),
                Value::Bool(_, flag) => Some(flag.to_string()),
                Value::Num(_, number) => number
                    .to_i128()
                    .map(|n| n.to_string())
                    .or_else(|| number.to_u128().map(|n| n.to_string()))
                    .or_else(|| number.to_f64().map(|n| n.to_string())),
                Value::Empty(..) | Value::Array(..) => None,
            };
            let given = Given {
                text,
                origin: origin(&key),
            };
            self.given.insert(key, given);
        }
    }
}
