//! Output to the terminal, and formatting of times.

use std::{
    fmt,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use leasehold_proto::{text::plain, v1 as pb};

use crate::{exit::Failure, json};

/// Prints a message to stderr.
pub(crate) fn print_message(text: &str) {
    if !text.is_empty() {
        // A closed stderr cannot be reported.
        let _ = writeln!(io::stderr(), "leasehold: {text}");
    }
}

/// Prints a line to stdout.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    let written = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    written.map_err(|error| Failure::general(format!("cannot write to stdout: {error}")))
}

/// Formats a time as `4m12s`: whole seconds, the two largest units. Below ten seconds to a tenth.
pub(crate) fn format_rounded(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        let tenths = time.as_millis() / 100;
        return format!("{}.{}s", tenths / 10, tenths % 10);
    }
    let text = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    text.split(' ').take(2).collect()
}

/// Formats a time as `12.5s`, exact to the millisecond.
pub(crate) fn format_exact(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    if millis == 0 {
        return format!("{seconds}s");
    }
    let fraction = format!("{millis:03}");
    format!("{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// Formats a moment in RFC 3339, to the millisecond.
pub(crate) fn format_timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

/// Formats the time of day of a moment, in UTC.
pub(crate) fn format_time_of_day(at: SystemTime) -> String {
    let moment = humantime::format_rfc3339_seconds(at).to_string();
    let time = moment.split('T').nth(1).unwrap_or(&moment);
    time.to_owned()
}

/// Returns the time since a moment, by this machine's clock.
pub(crate) fn age(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// Converts a duration of a message. An unset or negative one becomes zero.
pub(crate) fn duration(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}

/// Converts a timestamp of a message.
pub(crate) fn system_time(time: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| time.try_into().ok())
}

/// A closure, which is written as
/// `closed until 2026-12-24T18:00:00Z (2h3m left) by the operator alice ("freeze")`.
pub(crate) struct ClosureText<'a> {
    /// Name of the cause in JSON.
    pub(crate) cause: &'static str,
    pub(crate) until: Option<SystemTime>,
    pub(crate) remaining: Duration,
    /// Name of the operator or of the owner of a lease; empty if it is hidden.
    pub(crate) owner: &'a str,
    pub(crate) reason: &'a str,
}

impl fmt::Display for ClosureText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed")?;
        if let Some(until) = self.until {
            write!(f, " until {}", humantime::format_rfc3339_seconds(until))?;
        }
        write!(f, " ({} left)", format_rounded(self.remaining))?;
        match self.cause {
            "operator" => f.write_str(" by an operator")?,
            option => write!(f, " by the {option} of a lease")?,
        }
        if !self.owner.is_empty() {
            write!(f, ", {}", plain(self.owner))?;
        }
        if !self.reason.is_empty() {
            write!(f, " ({:?})", plain(self.reason))?;
        }
        Ok(())
    }
}

/// Describes the closure of a lock.
pub(crate) fn describe_closure(closure: &pb::Closure) -> String {
    let owner = closure.owner.clone().unwrap_or_default();
    let text = ClosureText {
        cause: json::cause_name(closure),
        until: system_time(closure.until_time),
        remaining: duration(closure.remaining),
        owner: &owner.id,
        reason: &owner.reason,
    };
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_short_or_exactly() {
        let formatted = [0, 950, 12_345, 252_000, 7_384_000].map(|ms| {
            let time = Duration::from_millis(ms);
            (format_rounded(time), format_exact(time))
        });
        let expected = [
            ("0.0s", "0s"),
            ("0.9s", "0.95s"),
            ("12s", "12.345s"),
            ("4m12s", "252s"),
            ("2h3m", "7384s"),
        ];
        assert_eq!(
            formatted.each_ref().map(|(a, b)| (a.as_str(), b.as_str())),
            expected
        );
    }
}
