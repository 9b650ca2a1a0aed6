//! What the file, the environment and the flags give, later ones after earlier ones.

use std::{collections::BTreeMap, ffi::OsString, fmt, fs, path::Path};

use super::{Flags, key::Form};

const ENV_PREFIX: &str = "LEASEHOLD__";

/// A value as it was given.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) value: GivenValue,
    pub(super) origin: Origin,
}

/// In a file values have types.
#[derive(Clone)]
pub(super) enum GivenValue {
    Text(String),
    Toml(toml::Value),
}

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the file of this name.
    File(String),
    /// In the variable of this name.
    Environment(String),
    /// By this flag.
    Flag(&'static str),
}

/// Everything given, by key.
pub(super) type Sources = BTreeMap<String, Vec<Given>>;

impl Given {
    /// The text of the value, or why it is not of the type that the key takes.
    pub(super) fn text(&self, form: &Form) -> Result<String, String> {
        let value = match &self.value {
            GivenValue::Text(text) => return Ok(text.clone()),
            GivenValue::Toml(value) => value,
        };
        match (value, form.json_type()) {
            (toml::Value::String(text), "string") => Ok(text.clone()),
            (toml::Value::Integer(_), "integer") | (toml::Value::Boolean(_), "boolean") => {
                Ok(value.to_string())
            }
            (toml::Value::Integer(_) | toml::Value::Float(_), "number") => Ok(value.to_string()),
            (_, expected) => Err(format!(
                "must be {}, in TOML of type {expected}, not {}",
                form.what,
                value.type_str()
            )),
        }
    }

    /// Whether it is a section that holds nothing.
    pub(super) fn is_empty_section(&self) -> bool {
        matches!(&self.value, GivenValue::Toml(toml::Value::Table(_)))
    }
}

impl Origin {
    /// How a key is written there.
    pub(super) fn spelling(&self, key: &str) -> String {
        match self {
            Self::Environment(_) => {
                format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase())
            }
            Self::File(_) | Self::Flag(_) => key.to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) | Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Adds what the file gives.
///
/// # Errors
/// Why it cannot be read. Nothing of its text is repeated: there may be a password in it.
pub(super) fn add_file(sources: &mut Sources, path: &Path) -> Result<(), String> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    add_text(sources, name, &text)
}

/// Adds what a file of this name and text gives. See [`add_file`].
pub(super) fn add_text(sources: &mut Sources, name: String, text: &str) -> Result<(), String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let why = error.message().replace('\n', "; ");
        format!("{name}, line {line}, column {column}: {why}")
    })?;
    flatten(sources, "", &table, &Origin::File(name));
    Ok(())
}

/// Adds what the variables of the environment give.
///
/// # Errors
/// The variable that is no text.
pub(super) fn add_environment(
    sources: &mut Sources,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), String> {
    let mut wrong = Ok(());
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let key = key.to_lowercase().replace("__", ".");
        match value.into_string() {
            Ok(text) => add(
                sources,
                key,
                GivenValue::Text(text),
                Origin::Environment(name),
            ),
            Err(_) => wrong = Err(format!("{key} (from {name}): must be UTF-8")),
        }
    }
    wrong
}

/// Adds what the flags give.
pub(super) fn add_flags(sources: &mut Sources, flags: &Flags) {
    for (key, text, flag) in flags.given() {
        add(
            sources,
            key.to_owned(),
            GivenValue::Text(text),
            Origin::Flag(flag),
        );
    }
}

fn flatten(sources: &mut Sources, path: &str, table: &toml::Table, origin: &Origin) {
    for (name, value) in table {
        // A quoted name with a dot in it is one name.
        let name = if name.contains('.') {
            format!("{name:?}")
        } else {
            name.clone()
        };
        let key = if path.is_empty() {
            name
        } else {
            format!("{path}.{name}")
        };
        match value.as_table() {
            Some(inner) if !inner.is_empty() => flatten(sources, &key, inner, origin),
            Some(_) | None => {
                let value = GivenValue::Toml(value.clone());
                add(sources, key, value, origin.clone());
            }
        }
    }
}

fn add(sources: &mut Sources, key: String, value: GivenValue, origin: Origin) {
    sources
        .entry(key)
        .or_default()
        .push(Given { value, origin });
}
