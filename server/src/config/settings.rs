//! Values in effect with their sources, to print as TOML and to compare.

use std::{collections::BTreeMap, fmt};

use super::{
    setting_def::{SettingDef, ValueSchema},
    sources::SettingSource,
};

/// All settings that were read. The debug output contains no values, because they may be passwords.
#[derive(Clone, Default)]
pub struct Settings(pub(super) BTreeMap<&'static str, Setting>);

/// Definition, value and source of a setting.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) key: SettingDef,
    pub(super) form: ValueSchema,
    /// Value in effect, or `None` if the setting is not set.
    pub(super) text: Option<String>,
    /// Source of the value, or `None` for the default.
    pub(super) origin: Option<SettingSource>,
}

impl Settings {
    /// Returns the settings as TOML by section, each with its source. Secrets are printed as `***`.
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
                    let origin = setting.origin.as_ref().map(SettingSource::to_string);
                    let origin = origin.unwrap_or_else(|| "default".to_owned());
                    format!("{name} = {} # from: {origin}", setting.literal(text))
                }
                None => format!("# {name} is not set"),
            });
        }
        lines.join("\n")
    }

    /// Returns the settings that were given explicitly, on one line. Secrets are printed as `***`.
    #[must_use]
    pub fn explicit_settings(&self) -> String {
        let explicit = self
            .0
            .iter()
            .filter(|(_, setting)| setting.origin.is_some());
        let explicit = explicit.map(|(name, setting)| format!("{name}={}", setting.redacted()));
        explicit.collect::<Vec<_>>().join(" ")
    }

    /// Describes the settings whose values differ from those in `before`, without secrets.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let of_both = |(name, to): (&&'static str, &Setting)| {
            let from = before.0.get(name)?;
            let change = || format!("{name} from {} to {}", from.redacted(), to.redacted());
            (from.text != to.text).then(change)
        };
        self.0.iter().filter_map(of_both).collect()
    }

    /// Replaces settings by those in `newer`.
    pub(crate) fn update(&mut self, newer: Self) {
        self.0.extend(newer.0);
    }
}

impl Setting {
    fn literal(&self, text: &str) -> String {
        let text = (self.form.redact)(text);
        match self.form.json_type() {
            "string" => toml::Value::String(text).to_string(),
            _ => text,
        }
    }

    fn redacted(&self) -> String {
        let text = self.text.as_deref();
        text.map_or_else(|| "nothing".to_owned(), self.form.redact)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
