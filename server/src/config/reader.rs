//! Reads settings from their sources, validates them, and collects all problems.

use std::env;
#[cfg(any(test, feature = "fuzzing"))]
use std::ffi::OsString;

use super::{
    Flags,
    setting_def::{SettingDef, ValueType},
    settings::{Setting, Settings},
    sources::{self, RawSetting, RawValue, Sources},
};

/// Maximum edit distance between an unknown key and a suggested one.
const EDITS_MAX: usize = 3;

/// Raw settings, and the settings and problems found so far.
#[derive(Default)]
pub(super) struct Reader {
    raw: Sources,
    is_file_missing: bool,
    /// All settings that were read.
    pub(super) settings: Settings,
    /// Errors that prevent a start.
    pub(super) problems: Vec<String>,
    /// Doubtful settings that should be changed.
    pub(super) warnings: Vec<String>,
}

impl Reader {
    /// Opens the file, the environment and the flags. Later ones override earlier ones.
    pub(super) fn open(flags: &Flags) -> Self {
        let mut reader = Self::default();
        let file = flags.config.as_deref();
        let file = file.map_or(Ok(()), |path| sources::add_file(&mut reader.raw, path));
        reader.is_file_missing = file.is_err();
        let environment = sources::add_environment(&mut reader.raw, env::vars_os());
        let errors = [file, environment].into_iter().filter_map(Result::err);
        reader.problems.extend(errors);
        sources::add_flags(&mut reader.raw, flags);
        reader
    }

    /// Opens a file with this text, and these environment variables.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn from_text(
        text: &str,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut reader = Self::default();
        let file = sources::add_text(&mut reader.raw, "leasehold.toml".to_owned(), text);
        let environment = sources::add_environment(&mut reader.raw, variables);
        let errors = [file, environment].into_iter().filter_map(Result::err);
        reader.problems.extend(errors);
        reader
    }

    /// Opens the reloadable settings of `requested`, and all other settings of `in_use`.
    pub(super) fn for_reload(requested: &Settings, in_use: &Settings) -> Self {
        let mut reader = Self::default();
        for (name, new) in &requested.0 {
            let setting = match new.key.is_reloadable {
                true => Some(new),
                false => in_use.0.get(name),
            };
            let raw = setting.and_then(|setting| {
                let value = RawValue::Text(setting.text.clone()?);
                let origin = setting.origin.clone()?;
                Some(RawSetting { value, origin })
            });
            if let Some(raw) = raw {
                reader.raw.insert((*name).to_owned(), vec![raw]);
            }
        }
        reader
    }

    /// Returns true if a source contains the key.
    pub(super) fn is_set(&self, key: &'static str) -> bool {
        self.raw.contains_key(key)
    }

    /// Returns the value of a setting, or its default.
    pub(super) fn read<T>(&mut self, key: SettingDef, kind: ValueType<T>) -> T {
        let default = key.default.unwrap_or_else(|| unreachable!("{key:?}"));
        self.read_or(key, kind, default)
    }

    /// Returns the value of a setting whose default depends on other settings. An invalid value is
    /// reported, and replaced by the default so that the remaining settings are validated as well.
    pub(super) fn read_or<T>(&mut self, key: SettingDef, kind: ValueType<T>, default: &str) -> T {
        let or = (kind.parse)(default);
        let value = self.take(key, &kind, Some(default));
        value.unwrap_or_else(|| or.unwrap_or_else(|message| unreachable!("{key:?}: {message}")))
    }

    /// Returns the value of a setting without a default.
    pub(super) fn find<T>(&mut self, key: SettingDef, kind: &ValueType<T>) -> Option<T> {
        self.take(key, kind, None)
    }

    /// Reports a missing setting, unless the configuration file could not be read.
    pub(super) fn require(&mut self, key: &'static str, message: &str) {
        if !self.is_file_missing {
            self.problem(key, message);
        }
    }

    /// Reports an error in a setting.
    pub(super) fn problem(&mut self, key: &str, message: &str) {
        let problem = self.problem_message(key, message);
        self.problems.push(problem);
    }

    /// Reports a doubtful setting.
    pub(super) fn warn(&mut self, key: &str, message: &str) {
        let warning = self.problem_message(key, message);
        self.warnings.push(warning);
    }

    /// Reports all keys in the sources that are not settings.
    pub(super) fn report_unknown(&mut self) {
        for (key, raw_settings) in &self.raw {
            if self.settings.0.contains_key(key.as_str()) {
                continue;
            }
            for raw in raw_settings {
                if let Some(message) = self.unknown_key_problem(key, raw) {
                    let origin = &raw.origin;
                    self.problems
                        .push(format!("{key} (from {origin}): {message}"));
                }
            }
        }
    }

    fn take<T>(
        &mut self,
        key: SettingDef,
        kind: &ValueType<T>,
        default: Option<&str>,
    ) -> Option<T> {
        let raw = self.raw.get(key.name).and_then(|raw| raw.last());
        let text = raw.map(|raw| raw.text(&kind.form));
        let origin = raw.map(|raw| raw.origin.clone());
        let read = text.map(|text| {
            let text = text?;
            (kind.parse)(&text).map(|value| (value, text))
        });
        let (value, text) = match read {
            Some(Ok((value, text))) => (Some(value), Some(text)),
            Some(Err(message)) => {
                self.problem(key.name, &message);
                (None, None)
            }
            None => (None, default.map(str::to_owned)),
        };
        let setting = Setting {
            key,
            form: kind.form.clone(),
            text,
            origin,
        };
        self.settings.0.insert(key.name, setting);
        value
    }

    fn problem_message(&self, key: &str, message: &str) -> String {
        match self.raw.get(key).and_then(|raw| raw.last()) {
            Some(raw) => format!("{key} (from {}): {message}", raw.origin),
            None => format!("{key}: {message}"),
        }
    }

    /// Returns the error of an unknown key. Returns `None` for an empty section, which is ignored.
    fn unknown_key_problem(&self, key: &str, raw: &RawSetting) -> Option<String> {
        let names = self.settings.0.keys().copied();
        let of_section = names.clone().filter(|name| is_in_section(name, key));
        let of_section: Vec<_> = of_section.collect();
        if !of_section.is_empty() {
            let problem = || format!("is a section, with the keys {}", of_section.join(", "));
            return (!raw.is_empty_section()).then(problem);
        }
        Some(match suggest_key(key, names) {
            Some(name) => {
                let name = raw.origin.spelling(name);
                format!("no such key; did you mean {name}?")
            }
            None => "no such key; leasehold-server config-schema and docs/configuration.md list \
                all keys"
                .to_owned(),
        })
    }
}

fn is_in_section(name: &str, section: &str) -> bool {
    let rest = name.strip_prefix(section);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// Returns the setting that was probably meant: one with the same name in another section, or with
/// a similar spelling.
fn suggest_key<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    let edits = |name: &str| match last(name) == last(key) {
        true => 0,
        false => strsim::damerau_levenshtein(key, name),
    };
    let near = names.map(|name| (edits(name), name)).min()?;
    (near.0 <= EDITS_MAX).then_some(near.1)
}
