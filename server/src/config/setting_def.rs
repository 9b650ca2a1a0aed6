//! Definitions of settings: name, default, type and validation, declared where the setting is read.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

const KIB: u32 = 1_024;
const MIB: u32 = 1_024 * KIB;
const SIZE_MIN: u32 = 4 * KIB;
/// Maximum window of HTTP/2 (RFC 9113, section 6.9.1).
const SIZE_MAX: u32 = (1 << 31) - 1;

/// Definition of a setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct SettingDef {
    /// Section and name, separated by a dot.
    pub(super) name: &'static str,
    /// Description, in one sentence without a full stop.
    pub(super) about: &'static str,
    /// Default value, or `None` if there is none.
    pub(super) default: Option<&'static str>,
    /// True if a change takes effect without a restart.
    pub(super) is_reloadable: bool,
}

/// Defines a setting without a default.
pub(super) const fn setting(name: &'static str, about: &'static str) -> SettingDef {
    SettingDef {
        name,
        about,
        default: None,
        is_reloadable: false,
    }
}

impl SettingDef {
    pub(super) const fn with_default(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    pub(super) const fn reloadable(self) -> Self {
        Self {
            is_reloadable: true,
            ..self
        }
    }
}

/// Parser of a value's text.
type Parse<T> = Box<dyn Fn(&str) -> Result<T, String>>;

/// Value type of a setting.
pub(super) struct ValueType<T> {
    /// Description of the type for users.
    pub(super) form: ValueSchema,
    /// Function that returns the value of a text, or the error in it.
    pub(super) parse: Parse<T>,
}

/// Description of a value type, for users and tools.
#[derive(Debug, Clone)]
pub(super) struct ValueSchema {
    /// Description of valid values, which completes the sentence "it must be ...".
    pub(super) expected: String,
    /// JSON Schema of valid values.
    pub(super) schema: Value,
    /// Function that returns a text without its secrets.
    pub(super) redact: fn(&str) -> String,
}

impl ValueSchema {
    /// Returns `string`, `integer`, `number` or `boolean`.
    pub(super) fn json_type(&self) -> &str {
        self.schema["type"].as_str().unwrap_or_default()
    }
}

impl<T> ValueType<T> {
    /// Creates a type with one error message for all invalid texts: it names the valid values.
    pub(super) fn new(
        expected: impl Into<String>,
        schema: Value,
        parse: impl Fn(&str) -> Option<T> + 'static,
    ) -> Self {
        let expected = expected.into();
        let must = format!("must be {expected}");
        Self::with_errors(expected, schema, move |text| {
            parse(text).ok_or_else(|| format!("{must}, not {text:?}"))
        })
    }

    /// Creates a type whose `parse` returns its own error messages.
    pub(super) fn with_errors(
        expected: impl Into<String>,
        schema: Value,
        parse: impl Fn(&str) -> Result<T, String> + 'static,
    ) -> Self {
        Self {
            form: ValueSchema {
                expected: expected.into(),
                schema,
                redact: str::to_owned,
            },
            parse: Box::new(parse),
        }
    }

    /// Redacts secrets in texts with `redact`.
    pub(super) fn redact_with(mut self, redact: fn(&str) -> String) -> Self {
        self.form.redact = redact;
        self
    }
}

/// Returns the type of a duration, such as 10s or 1m 30s.
pub(super) fn duration(min: Duration, max: Duration) -> ValueType<Duration> {
    let bounds = [min, max].map(|bound| humantime::format_duration(bound).to_string());
    let expected = format!("a time from {} to {}, such as 10s", bounds[0], bounds[1]);
    let schema = json!({ "type": "string", "pattern": "^([0-9]+ *[a-zA-Zµ]+ *)+$" });
    ValueType::new(expected, schema, move |text| {
        let time = humantime::parse_duration(text).ok()?;
        (min..=max).contains(&time).then_some(time)
    })
}

/// Returns the type of a size in bytes.
pub(super) fn size() -> ValueType<u32> {
    let schema = json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB)$" });
    let expected = "a size from 4KiB to 2047MiB, such as 64KiB";
    ValueType::new(expected, schema, |text| {
        let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
        let (digits, unit) = text.split_at(unit_at);
        let unit = match unit {
            "B" => 1,
            "KiB" => KIB,
            "MiB" => MIB,
            _ => return None,
        };
        let bytes = digits.parse::<u32>().ok()?.checked_mul(unit)?;
        (SIZE_MIN..=SIZE_MAX).contains(&bytes).then_some(bytes)
    })
}

/// Returns the type of a whole number.
pub(super) fn number(min: u32, max: u32) -> ValueType<u32> {
    let schema = json!({ "type": "integer", "minimum": min, "maximum": max });
    let expected = format!("a number from {min} to {max}");
    ValueType::new(expected, schema, move |text| {
        let number = text.parse().ok()?;
        (min..=max).contains(&number).then_some(number)
    })
}

/// Returns the type of a boolean.
pub(super) fn boolean() -> ValueType<bool> {
    let schema = json!({ "type": "boolean" });
    ValueType::new("true or false", schema, |text| text.parse().ok())
}

/// Returns the type of a text that is not empty.
pub(super) fn text(expected: &str) -> ValueType<String> {
    let schema = json!({ "type": "string", "minLength": 1 });
    ValueType::new(expected, schema, |text| {
        (!text.is_empty()).then(|| text.to_owned())
    })
}

/// Returns the type of an enumeration.
pub(super) fn one_of<T: Copy + 'static>(variants: &'static [(&'static str, T)]) -> ValueType<T> {
    let names: Vec<_> = variants.iter().map(|(name, _)| *name).collect();
    let schema = json!({ "type": "string", "enum": names });
    ValueType::new(names.join(" or "), schema, |text| {
        let variant = variants.iter().find(|(name, _)| *name == text);
        variant.map(|(_, value)| *value)
    })
}

/// Returns the type of a path, whose file `read` checks.
pub(super) fn file<T>(read: impl Fn(PathBuf) -> Result<T, String> + 'static) -> ValueType<T> {
    let schema = json!({ "type": "string", "minLength": 1 });
    let expected = "the path of a file";
    ValueType::with_errors(expected, schema, move |text| match text {
        "" => Err(format!("must be {expected}, not empty")),
        path => read(PathBuf::from(path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_bounds() {
        let parse = size().parse;
        for (text, bytes) in [("4096B", 4_096), ("64KiB", 65_536), ("4MiB", 4_194_304)] {
            assert_eq!(parse(text), Ok(bytes));
        }
        for text in [
            "",
            "KiB",
            "4096",
            "64kb",
            "64 KiB",
            "-1B",
            "4095B",
            "2048MiB",
            "99999999999B",
        ] {
            let message =
                format!("must be a size from 4KiB to 2047MiB, such as 64KiB, not {text:?}");
            assert_eq!(parse(text), Err(message));
        }
    }

    #[test]
    fn times_keep_to_their_bounds() {
        let parse = duration(Duration::from_secs(1), Duration::from_secs(60)).parse;
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        for text in ["", "10", "-5s", "999ms", "61s", "5 parsecs"] {
            let message = format!("must be a time from 1s to 1m, such as 10s, not {text:?}");
            assert_eq!(parse(text), Err(message));
        }
    }
}
