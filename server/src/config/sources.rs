//! Raw settings from the file, the environment and the flags, in this order.

use std::{collections::BTreeMap, ffi::OsString, fmt, fs, path::Path};

use super::{Flags, setting_def::ValueSchema};

const ENV_PREFIX: &str = "LEASEHOLD__";

/// A raw value with its source.
#[derive(Clone)]
pub(super) struct RawSetting {
    pub(super) value: RawValue,
    pub(super) origin: SettingSource,
}

/// A raw value. Values from a file are typed.
#[derive(Clone)]
pub(super) enum RawValue {
    Text(String),
    Toml(toml::Value),
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettingSource {
    /// The file with this name.
    File(String),
    /// The environment variable with this name.
    Environment(String),
    /// The flag with this name.
    Flag(&'static str),
}

/// Raw values by key. The last value of a key has the highest precedence.
pub(super) type Sources = BTreeMap<String, Vec<RawSetting>>;

impl RawSetting {
    /// Returns the text of the value, or an error if its TOML type does not match.
    pub(super) fn text(&self, form: &ValueSchema) -> Result<String, String> {
        let value = match &self.value {
            RawValue::Text(text) => return Ok(text.clone()),
            RawValue::Toml(value) => value,
        };
        match (value, form.json_type()) {
            (toml::Value::String(text), "string") => Ok(text.clone()),
            (toml::Value::Integer(_), "integer") | (toml::Value::Boolean(_), "boolean") => {
                Ok(value.to_string())
            }
            (toml::Value::Integer(_) | toml::Value::Float(_), "number") => Ok(value.to_string()),
            (_, expected) => Err(format!(
                "must be {}, in TOML of type {expected}, not {}",
                form.expected,
                value.type_str()
            )),
        }
    }

    /// Returns true if the value is an empty section.
    pub(super) fn is_empty_section(&self) -> bool {
        matches!(&self.value, RawValue::Toml(toml::Value::Table(_)))
    }
}

impl SettingSource {
    /// Returns the spelling of a key in this source.
    pub(super) fn spelling(&self, key: &str) -> String {
        match self {
            Self::Environment(_) => {
                format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase())
            }
            Self::File(_) | Self::Flag(_) => key.to_owned(),
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) | Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Adds the settings of the file.
///
/// # Errors
/// If the file cannot be read or parsed. The message does not repeat its text, which may contain a
/// password.
pub(super) fn add_file(sources: &mut Sources, path: &Path) -> Result<(), String> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    add_text(sources, name, &text)
}

/// Adds the settings of a file with this name and text. See [`add_file`].
pub(super) fn add_text(sources: &mut Sources, name: String, text: &str) -> Result<(), String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let message = error.message().replace('\n', "; ");
        format!("{name}, line {line}, column {column}: {message}")
    })?;
    flatten(sources, "", &table, &SettingSource::File(name));
    Ok(())
}

/// Adds the settings of environment variables.
///
/// # Errors
/// If the value of a variable is not UTF-8.
pub(super) fn add_environment(
    sources: &mut Sources,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), String> {
    let mut result = Ok(());
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
                RawValue::Text(text),
                SettingSource::Environment(name),
            ),
            Err(_) => result = Err(format!("{key} (from {name}): must be UTF-8")),
        }
    }
    result
}

/// Adds the settings of the flags.
pub(super) fn add_flags(sources: &mut Sources, flags: &Flags) {
    for (key, text, flag) in flags.set_flags() {
        add(
            sources,
            key.to_owned(),
            RawValue::Text(text),
            SettingSource::Flag(flag),
        );
    }
}

fn flatten(sources: &mut Sources, path: &str, table: &toml::Table, origin: &SettingSource) {
    for (name, value) in table {
        // A quoted name that contains a dot is a single name.
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
                let value = RawValue::Toml(value.clone());
                add(sources, key, value, origin.clone());
            }
        }
    }
}

fn add(sources: &mut Sources, key: String, value: RawValue, origin: SettingSource) {
    sources
        .entry(key)
        .or_default()
        .push(RawSetting { value, origin });
}
