//! Formatting of names, times and links, so that their text cannot be mistaken for other text.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    lock::LockKey,
    telemetry::plain,
    time::{millis, now_unix_millis},
};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A link to a lock or an owner.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) href: String,
    pub(super) text: String,
}

/// A point in time: its distance from now, which the script updates, and its date.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub(super) ms: u64,
    pub(super) span: String,
    pub(super) when: String,
}

impl Link {
    pub(super) fn to_lock(lock: &LockKey) -> Self {
        let fields = [("namespace", lock.namespace()), ("name", lock.name())];
        Self {
            href: href("/lock", &fields),
            text: plain(&lock.to_string()),
        }
    }

    pub(super) fn to_owner(id: &str) -> Self {
        Self {
            href: href("/owner", &[("id", id)]),
            text: plain(id),
        }
    }
}

impl Moment {
    /// Creates a moment in the past from milliseconds since 1970.
    pub(super) fn past(since_ms: u64) -> Self {
        let ms = now_unix_millis().saturating_sub(since_ms);
        Self {
            ms,
            span: span(ms),
            when: clock(since_ms),
        }
    }

    /// Creates the moment that was `elapsed` ago.
    pub(super) fn ago(elapsed: Duration) -> Self {
        Self::past(now_unix_millis().saturating_sub(millis(elapsed)))
    }

    /// Creates the moment in `ms` milliseconds.
    pub(super) fn ahead(ms: u64) -> Self {
        Self {
            ms,
            span: span(ms),
            when: clock(now_unix_millis().saturating_add(ms)),
        }
    }
}

/// Returns an address with these query fields. Empty fields are omitted.
pub(super) fn href(path: &str, fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    format!("{path}?{}", query.finish())
}

/// Formats a duration in the same way as the script.
pub(super) fn span(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..MINUTE => format!("{s} s"),
        MINUTE..HOUR => format!("{} m {:02} s", s / MINUTE, s % MINUTE),
        HOUR..DAY => format!("{} h {:02} m", s / HOUR, s % HOUR / MINUTE),
        _ => format!("{} d {:02} h", s / DAY, s % DAY / HOUR),
    }
}

/// Formats milliseconds since 1970 as a time in UTC.
pub(super) fn clock(ms: u64) -> String {
    let moment = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    moment.map(time).unwrap_or_default()
}

/// Formats a time in UTC. Returns an empty string if the time has no calendar date.
pub(super) fn time(at: SystemTime) -> String {
    let mut text = String::new();
    let result = write!(text, "{}", humantime::format_rfc3339_seconds(at));
    match result {
        Ok(()) => text.replace('T', " "),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::stub::lock;

    #[test]
    fn spans_are_short() {
        for (s, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 m 01 s"),
            (3_600, "1 h 00 m"),
            (90_000, "1 d 01 h"),
        ] {
            assert_eq!(span(s * 1_000 + 999), text);
        }
    }

    #[test]
    fn links_carry_any_name() {
        let link = Link::to_lock(&lock("a&b=c/<d>\"ü"));
        assert_eq!(
            link.href,
            "/lock?namespace=default&name=a%26b%3Dc%2F%3Cd%3E%22%C3%BC"
        );
        assert_eq!(
            href("/locks", &[("prefix", ""), ("owner", "x")]),
            "/locks?owner=x"
        );
    }
}
