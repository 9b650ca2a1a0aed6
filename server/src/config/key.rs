//! What a key of the configuration is, and what it takes: declared once, where it is read.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

const KIB: u32 = 1_024;
const MIB: u32 = 1_024 * KIB;
const SIZE_LEAST: u32 = 4 * KIB;
/// The largest window that HTTP/2 has (RFC 9113, section 6.9.1).
const SIZE_MOST: u32 = (1 << 31) - 1;

/// A key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// Section and name, with a dot between them.
    pub(super) name: &'static str,
    /// What it is for, in one sentence without a full stop.
    pub(super) about: &'static str,
    /// Its value where nobody gives one; `None`: it has none.
    pub(super) default: Option<&'static str>,
    /// Whether a change takes effect without a restart.
    pub(super) reloads: bool,
}

/// A key without a default.
pub(super) const fn key(name: &'static str, about: &'static str) -> Key {
    Key {
        name,
        about,
        default: None,
        reloads: false,
    }
}

impl Key {
    pub(super) const fn or(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    pub(super) const fn reloads(self) -> Self {
        Self {
            reloads: true,
            ..self
        }
    }
}

/// How a text becomes a value.
type Parse<T> = Box<dyn Fn(&str) -> Result<T, String>>;

/// What a key takes.
pub(super) struct Kind<T> {
    /// How that is told to people.
    pub(super) form: Form,
    /// The value of a text, or what is wrong with it.
    pub(super) parse: Parse<T>,
}

/// What a key takes, for people and their tools.
#[derive(Debug, Clone)]
pub(super) struct Form {
    /// Ends the sentence "it must be ..."
    pub(super) what: String,
    /// The same as JSON Schema.
    pub(super) schema: Value,
    /// What may be shown of a text.
    pub(super) shown: fn(&str) -> String,
}

impl Form {
    /// `string`, `integer`, `number` or `boolean`.
    pub(super) fn json_type(&self) -> &str {
        self.schema["type"].as_str().unwrap_or_default()
    }
}

impl<T> Kind<T> {
    /// Whatever is wrong with a text is told in the same words: what it must be.
    pub(super) fn new(
        what: impl Into<String>,
        schema: Value,
        parse: impl Fn(&str) -> Option<T> + 'static,
    ) -> Self {
        let what = what.into();
        let must = format!("must be {what}");
        Self::explaining(what, schema, move |text| {
            parse(text).ok_or_else(|| format!("{must}, not {text:?}"))
        })
    }

    /// `parse` itself tells what is wrong.
    pub(super) fn explaining(
        what: impl Into<String>,
        schema: Value,
        parse: impl Fn(&str) -> Result<T, String> + 'static,
    ) -> Self {
        Self {
            form: Form {
                what: what.into(),
                schema,
                shown: str::to_owned,
            },
            parse: Box::new(parse),
        }
    }

    /// For texts with a secret in them.
    pub(super) fn shown_by(mut self, shown: fn(&str) -> String) -> Self {
        self.form.shown = shown;
        self
    }
}

/// A time, such as 10s or 1m 30s.
pub(super) fn time(least: Duration, most: Duration) -> Kind<Duration> {
    let told = [least, most].map(|bound| humantime::format_duration(bound).to_string());
    let what = format!("a time from {} to {}, such as 10s", told[0], told[1]);
    let schema = json!({ "type": "string", "pattern": "^([0-9]+ *[a-zA-Zµ]+ *)+$" });
    Kind::new(what, schema, move |text| {
        let time = humantime::parse_duration(text).ok()?;
        (least..=most).contains(&time).then_some(time)
    })
}

/// A number of bytes.
pub(super) fn size() -> Kind<u32> {
    let schema = json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB)$" });
    let what = "a size from 4KiB to 2047MiB, such as 64KiB";
    Kind::new(what, schema, |text| {
        let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
        let (digits, unit) = text.split_at(unit_at);
        let unit = match unit {
            "B" => 1,
            "KiB" => KIB,
            "MiB" => MIB,
            _ => return None,
        };
        let bytes = digits.parse::<u32>().ok()?.checked_mul(unit)?;
        (SIZE_LEAST..=SIZE_MOST).contains(&bytes).then_some(bytes)
    })
}

/// A whole number.
pub(super) fn number(least: u32, most: u32) -> Kind<u32> {
    let schema = json!({ "type": "integer", "minimum": least, "maximum": most });
    let what = format!("a number from {least} to {most}");
    Kind::new(what, schema, move |text| {
        let number = text.parse().ok()?;
        (least..=most).contains(&number).then_some(number)
    })
}

/// `true` or `false`.
pub(super) fn switch() -> Kind<bool> {
    let schema = json!({ "type": "boolean" });
    Kind::new("true or false", schema, |text| text.parse().ok())
}

/// One of several words.
pub(super) fn one_of<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> Kind<T> {
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let schema = json!({ "type": "string", "enum": names });
    Kind::new(names.join(" or "), schema, |text| {
        let word = words.iter().find(|(name, _)| *name == text);
        word.map(|(_, value)| *value)
    })
}

/// The path of a file, which `read` takes a look at.
pub(super) fn file<T>(read: impl Fn(PathBuf) -> Result<T, String> + 'static) -> Kind<T> {
    let schema = json!({ "type": "string", "minLength": 1 });
    let what = "the path of a file";
    Kind::explaining(what, schema, move |text| match text {
        "" => Err(format!("must be {what}, not empty")),
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
            let why = format!("must be a size from 4KiB to 2047MiB, such as 64KiB, not {text:?}");
            assert_eq!(parse(text), Err(why));
        }
    }

    #[test]
    fn times_keep_to_their_bounds() {
        let parse = time(Duration::from_secs(1), Duration::from_secs(60)).parse;
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        for text in ["", "10", "-5s", "999ms", "61s", "5 parsecs"] {
            let why = format!("must be a time from 1s to 1m, such as 10s, not {text:?}");
            assert_eq!(parse(text), Err(why));
        }
    }
}
