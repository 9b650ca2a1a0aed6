//! Output to the terminal, and formatting of times.

use std::{
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use crate::exit::Failure;

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
