//! Times, names and sentences for people, and where they are written.

use std::{
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use crate::exit::Failure;

/// A sentence on stderr.
pub(crate) fn say(text: &str) {
    if !text.is_empty() {
        // Nobody is left to be told that stderr is closed.
        let _ = writeln!(io::stderr(), "leasehold: {text}");
    }
}

/// A line on stdout.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    let written = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    written.map_err(|error| Failure::own(format!("cannot write to stdout: {error}")))
}

/// `4m12s`: whole seconds, the two largest units. Below ten seconds to a tenth.
pub(crate) fn about(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        let tenths = time.as_millis() / 100;
        return format!("{}.{}s", tenths / 10, tenths % 10);
    }
    let whole = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    whole.split(' ').take(2).collect()
}

/// `12.5s`: exact to the millisecond.
pub(crate) fn exact(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    if millis == 0 {
        return format!("{seconds}s");
    }
    let fraction = format!("{millis:03}");
    format!("{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// A moment in RFC 3339, to the millisecond.
pub(crate) fn moment(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

/// The time of day of a moment, in UTC.
pub(crate) fn time_of_day(at: SystemTime) -> String {
    let moment = humantime::format_rfc3339_seconds(at).to_string();
    let time = moment.split('T').nth(1).unwrap_or(&moment);
    time.to_owned()
}

/// How long ago a moment was, by this machine's clock.
pub(crate) fn age(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// Seconds and less of a message; unset or negative is none.
pub(crate) fn duration(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}

/// A moment of a message.
pub(crate) fn system_time(time: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| time.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_short_or_exactly() {
        let shown = [0, 950, 12_345, 252_000, 7_384_000].map(|ms| {
            let time = Duration::from_millis(ms);
            (about(time), exact(time))
        });
        let expected = [
            ("0.0s", "0s"),
            ("0.9s", "0.95s"),
            ("12s", "12.345s"),
            ("4m12s", "252s"),
            ("2h3m", "7384s"),
        ];
        assert_eq!(
            shown.each_ref().map(|(a, b)| (a.as_str(), b.as_str())),
            expected
        );
    }
}
