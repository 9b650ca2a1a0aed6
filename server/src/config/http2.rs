//! How connections are kept: each setting of HTTP/2 and gRPC with the reason for its default.

use std::time::Duration;

use super::{duration, reader::Reader};

const KIB: u32 = 1_024;
const MIB: u32 = 1_024 * KIB;
/// The largest window that HTTP/2 has (RFC 9113, section 6.9.1).
const WINDOW_MOST: u32 = (1 << 31) - 1;

/// Settings of the API's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Streams of a connection; a client with more waits for one to end.
    pub max_concurrent_streams: u32,
    /// Resets that a client may provoke in the life of a connection, by frames that break the rules
    /// (`MadeYouReset`, CVE-2025-8671).
    pub max_local_error_resets: u32,
    /// Streams that a client may open and reset before they are looked at (Rapid Reset,
    /// CVE-2023-44487).
    pub max_pending_accept_resets: u32,
    /// Headers of a request: a credential fits, a bomb does not.
    pub max_header_list: u32,
    /// What a client may send on a connection unread. Half of it is also the budget of small
    /// frames, of which a heartbeat takes 246 bytes: 4 MiB are 8,500 heartbeats.
    pub connection_window: u32,
    /// What a client may send on a stream unread.
    pub stream_window: u32,
    /// How long a connection is silent before it is asked whether it lives. Renews nothing.
    pub keepalive_interval: Duration,
    /// How long it has to answer.
    pub keepalive_timeout: Duration,
    /// After this a connection takes no new calls, so that clients spread over new replicas and
    /// counters of a connection's life begin anew.
    pub max_connection_age: Duration,
    /// How long a lease stream goes on after its client was asked to open another one.
    pub max_connection_age_grace: Duration,
    /// The largest request: the largest legal one, a lease of 64 locks, fits.
    pub max_request: u32,
    /// The largest reply or message of a stream.
    pub max_reply: u32,
}

impl Http2 {
    pub(super) fn read(reader: &mut Reader) -> Self {
        Self {
            max_concurrent_streams: number(reader, "http2.max_concurrent_streams", "1000"),
            max_local_error_resets: number(reader, "http2.max_local_error_resets", "1024"),
            max_pending_accept_resets: number(reader, "http2.max_pending_accept_resets", "20"),
            max_header_list: size(reader, "http2.max_header_list", "8KiB"),
            connection_window: size(reader, "http2.connection_window", "4MiB"),
            stream_window: size(reader, "http2.stream_window", "64KiB"),
            keepalive_interval: time(reader, "http2.keepalive_interval", "10s"),
            keepalive_timeout: time(reader, "http2.keepalive_timeout", "5s"),
            max_connection_age: time(reader, "http2.max_connection_age", "30m"),
            max_connection_age_grace: time(reader, "http2.max_connection_age_grace", "2m"),
            max_request: size(reader, "http2.max_request", "64KiB"),
            max_reply: size(reader, "http2.max_reply", "256KiB"),
        }
    }
}

fn number(reader: &mut Reader, key: &'static str, default: &'static str) -> u32 {
    reader.parse(key, default, |text| match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        Ok(0_u32 | 1_000_001..) => Err("must be 1 to 1000000".to_owned()),
        Err(_) => Err(format!("{text:?} is no number")),
    })
}

fn size(reader: &mut Reader, key: &'static str, default: &'static str) -> u32 {
    reader.parse(key, default, bytes)
}

fn time(reader: &mut Reader, key: &'static str, default: &'static str) -> Duration {
    reader.parse(key, default, |text| match duration(text)? {
        time if time < Duration::from_secs(1) => Err("must be at least 1s".to_owned()),
        time => Ok(time),
    })
}

/// A number of bytes, `KiB` or `MiB`, 4 KiB or more.
fn bytes(text: &str) -> Result<u32, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let unit = match unit {
        "" | "B" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        _ => return Err(format!("{text:?} is no size, such as 64KiB or 4MiB")),
    };
    let bytes = digits.parse().ok().and_then(|n: u32| n.checked_mul(unit));
    match bytes {
        Some(bytes @ 4_096..=WINDOW_MOST) => Ok(bytes),
        Some(_) | None => Err("must be 4KiB to 2047MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_bounds() {
        for (text, size) in [("4096", 4_096), ("64KiB", 65_536), ("4MiB", 4_194_304)] {
            assert_eq!(bytes(text), Ok(size));
        }
        for text in [
            "",
            "KiB",
            "64kb",
            "64 KiB",
            "-1",
            "4095",
            "2048MiB",
            "99999999999",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
