//! Reads keys one by one from what was given, and collects what is wrong with them.

use std::env;
#[cfg(feature = "fuzzing")]
use std::ffi::OsString;

use super::{
    Flags,
    key::{Key, Kind},
    settings::{Setting, Settings},
    sources::{self, Given, GivenValue, Sources},
};

/// Edits between a key and what was written in its place, at most.
const EDITS_MAX: usize = 3;

/// What was given, and the keys and the problems found so far.
#[derive(Default)]
pub(super) struct Reader {
    given: Sources,
    is_file_missing: bool,
    settings: Settings,
    problems: Vec<String>,
    warnings: Vec<String>,
}

/// What became of the reading.
pub(super) struct Outcome {
    /// What each key that was read is.
    pub(super) settings: Settings,
    /// What must be changed.
    pub(super) problems: Vec<String>,
    /// What should be changed.
    pub(super) warnings: Vec<String>,
}

impl Reader {
    /// Opens the file, the environment and the flags; later ones replace earlier ones.
    pub(super) fn open(flags: &Flags) -> Self {
        let mut reader = Self::default();
        let file = flags.config.as_deref();
        let file = file.map_or(Ok(()), |path| sources::add_file(&mut reader.given, path));
        reader.is_file_missing = file.is_err();
        let environment = sources::add_environment(&mut reader.given, env::vars_os());
        let wrong = [file, environment].into_iter().filter_map(Result::err);
        reader.problems.extend(wrong);
        sources::add_flags(&mut reader.given, flags);
        reader
    }

    /// Opens a file of this text and these variables of the environment.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of(
        text: &str,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut reader = Self::default();
        let file = sources::add_text(&mut reader.given, "leasehold.toml".to_owned(), text);
        let environment = sources::add_environment(&mut reader.given, variables);
        let wrong = [file, environment].into_iter().filter_map(Result::err);
        reader.problems.extend(wrong);
        reader
    }

    /// Reads what can be reloaded from `wanted`, and what needs a restart as it is in use.
    pub(super) fn reloading(wanted: &Settings, in_use: &Settings) -> Self {
        let mut reader = Self::default();
        for (name, wanted) in &wanted.0 {
            let setting = match wanted.key.reloads {
                true => Some(wanted),
                false => in_use.0.get(name),
            };
            let given = setting.and_then(|setting| {
                let value = GivenValue::Text(setting.text.clone()?);
                let origin = setting.origin.clone()?;
                Some(Given { value, origin })
            });
            if let Some(given) = given {
                reader.given.insert((*name).to_owned(), vec![given]);
            }
        }
        reader
    }

    /// Whether anybody gave the key.
    pub(super) fn is_set(&self, key: &'static str) -> bool {
        self.given.contains_key(key)
    }

    /// The value of a key, or its default.
    pub(super) fn read<T>(&mut self, key: Key, kind: Kind<T>) -> T {
        let default = key.default.unwrap_or_else(|| unreachable!("{key:?}"));
        self.read_or(key, kind, default)
    }

    /// The value of a key whose default depends on others. A wrong one is a problem, and the default
    /// takes its place so that the rest is checked, too.
    pub(super) fn read_or<T>(&mut self, key: Key, kind: Kind<T>, default: &str) -> T {
        let or = (kind.parse)(default);
        let given = self.take(key, &kind, Some(default));
        given.unwrap_or_else(|| or.unwrap_or_else(|why| unreachable!("{key:?}: {why}")))
    }

    /// The value of a key without a default.
    pub(super) fn find<T>(&mut self, key: Key, kind: &Kind<T>) -> Option<T> {
        self.take(key, kind, None)
    }

    /// Notes that nobody gave a key.
    pub(super) fn required(&mut self, key: &'static str, why: &str) {
        if !self.is_file_missing {
            self.problem(key, why);
        }
    }

    /// Notes what is wrong with a key.
    pub(super) fn problem(&mut self, key: &str, why: &str) {
        let problem = self.sentence(key, why);
        self.problems.push(problem);
    }

    /// Notes what is doubtful about a key.
    pub(super) fn warn(&mut self, key: &str, why: &str) {
        let warning = self.sentence(key, why);
        self.warnings.push(warning);
    }

    /// Notes the keys that were given and that nobody has read.
    pub(super) fn refuse_unknown(&mut self) {
        for (key, given) in &self.given {
            if self.settings.0.contains_key(key.as_str()) {
                continue;
            }
            for given in given {
                if let Some(why) = self.unknown(key, given) {
                    let origin = &given.origin;
                    self.problems.push(format!("{key} (from {origin}): {why}"));
                }
            }
        }
    }

    /// Ends the reading.
    pub(super) fn finish(self) -> Outcome {
        Outcome {
            settings: self.settings,
            problems: self.problems,
            warnings: self.warnings,
        }
    }

    fn take<T>(&mut self, key: Key, kind: &Kind<T>, default: Option<&str>) -> Option<T> {
        let given = self.given.get(key.name).and_then(|given| given.last());
        let text = given.map(|given| given.text(&kind.form));
        let origin = given.map(|given| given.origin.clone());
        let read = text.map(|text| {
            let text = text?;
            (kind.parse)(&text).map(|value| (value, text))
        });
        let (value, text) = match read {
            Some(Ok((value, text))) => (Some(value), Some(text)),
            Some(Err(why)) => {
                self.problem(key.name, &why);
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

    fn sentence(&self, key: &str, why: &str) -> String {
        match self.given.get(key).and_then(|given| given.last()) {
            Some(given) => format!("{key} (from {}): {why}", given.origin),
            None => format!("{key}: {why}"),
        }
    }

    /// `None` for a section that holds nothing, which is as good as none.
    fn unknown(&self, key: &str, given: &Given) -> Option<String> {
        let known = self.settings.0.keys();
        let is_section = known.clone().any(|name| is_in(name, key));
        if is_section {
            let names: Vec<_> = known.copied().filter(|name| is_in(name, key)).collect();
            let why = || format!("is a section, with the keys {}", names.join(", "));
            return (!given.is_empty_section()).then(why);
        }
        Some(match nearest(key, known.copied()) {
            Some(name) => {
                let name = given.origin.spelling(name);
                format!("no such key; did you mean {name}?")
            }
            None => "no such key; leasehold-server config-schema lists them, as does \
                     docs/configuration.md"
                .to_owned(),
        })
    }
}

fn is_in(name: &str, section: &str) -> bool {
    let rest = name.strip_prefix(section);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// The key that was meant: of the same name in another section, or with few other letters.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    let edits = |name: &str| match last(name) == last(key) {
        true => 0,
        false => strsim::damerau_levenshtein(key, name),
    };
    let near = known.map(|name| (edits(name), name)).min()?;
    (near.0 <= EDITS_MAX).then_some(near.1)
}
