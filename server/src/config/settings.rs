//! The values in effect with where each is from: shown as TOML, and compared.

use std::{collections::BTreeMap, fmt};

use super::{
    key::{Form, Key},
    sources::Origin,
};

/// Every key that was read. Its debug form holds no value: there may be a password among them.
#[derive(Clone, Default)]
pub struct Settings(pub(super) BTreeMap<&'static str, Setting>);

/// What a key is.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) key: Key,
    pub(super) form: Form,
    /// The value in effect; `None`: there is none.
    pub(super) text: Option<String>,
    /// `None`: it is the default.
    pub(super) origin: Option<Origin>,
}

/// A key with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub key: &'static str,
    /// What it was, without secrets.
    pub from: String,
    /// What it is, without secrets.
    pub to: String,
}

impl Settings {
    /// As TOML, by section, each key with where it is from. Secrets are `***`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut lines = Vec::new();
        let mut section = "";
        for setting in self.0.values() {
            let (of, name) = setting.key.name.split_once('.').unwrap_or_default();
            if of != section {
                let gap = if section.is_empty() { "" } else { "\n" };
                lines.push(format!("{gap}[{of}]"));
                section = of;
            }
            lines.push(match &setting.text {
                Some(text) => {
                    let origin = setting.origin.as_ref().map(Origin::to_string);
                    let origin = origin.unwrap_or_else(|| "default".to_owned());
                    format!("{name} = {} # from: {origin}", setting.literal(text))
                }
                None => format!("# {name} is not set"),
            });
        }
        lines.join("\n")
    }

    /// What was given, on one line. Secrets are `***`.
    #[must_use]
    pub fn given(&self) -> String {
        let given = self
            .0
            .iter()
            .filter(|(_, setting)| setting.origin.is_some());
        let given = given.map(|(name, setting)| format!("{name}={}", setting.shown()));
        given.collect::<Vec<_>>().join(" ")
    }

    /// What is different here from `before`.
    pub(crate) fn since(&self, before: &Self) -> Vec<Change> {
        let of_both = |(name, to): (&&'static str, &Setting)| {
            let from = before.0.get(name)?;
            (from.text != to.text).then(|| Change {
                key: name,
                from: from.shown(),
                to: to.shown(),
            })
        };
        self.0.iter().filter_map(of_both).collect()
    }

    /// Takes over what `newer` has.
    pub(crate) fn update(&mut self, newer: Self) {
        self.0.extend(newer.0);
    }
}

impl Setting {
    fn literal(&self, text: &str) -> String {
        let text = (self.form.shown)(text);
        match self.form.json_type() {
            "string" => toml::Value::String(text).to_string(),
            _ => text,
        }
    }

    fn shown(&self) -> String {
        let text = self.text.as_deref();
        text.map_or_else(|| "nothing".to_owned(), self.form.shown)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.key, self.from, self.to)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
