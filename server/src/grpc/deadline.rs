//! Maximum wait of a call, derived from its gRPC deadline.

use std::time::Duration;

use tonic::metadata::MetadataMap;

use crate::time::millis;

/// Time reserved for cancelling the wait and sending the response before the deadline.
const MARGIN: Duration = Duration::from_millis(100);

/// Returns the maximum wait in milliseconds that leaves time to respond before the deadline.
pub(super) fn wait_max_ms(metadata: &MetadataMap) -> u64 {
    let timeout = metadata
        .get("grpc-timeout")
        .and_then(|value| value.to_str().ok());
    timeout
        .and_then(parse)
        .map_or(u64::MAX, |timeout| millis(timeout.saturating_sub(MARGIN)))
}

/// Parses `1*8DIGIT ("H" / "M" / "S" / "m" / "u" / "n")`. Any other text counts as no deadline, as
/// it does in the transport.
fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().last().filter(char::is_ascii_alphabetic)?;
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(amount * 3_600)),
        'M' => Some(Duration::from_secs(amount * 60)),
        'S' => Some(Duration::from_secs(amount)),
        'm' => Some(Duration::from_millis(amount)),
        'u' => Some(Duration::from_micros(amount)),
        'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_max(text: &str) -> u64 {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().unwrap());
        wait_max_ms(&metadata)
    }

    #[test]
    fn the_wait_ends_before_the_deadline() {
        assert_eq!(wait_max("5S"), 4_900);
        assert_eq!(wait_max("1H"), 3_599_900);
        assert_eq!(wait_max("2M"), 119_900);
        assert_eq!(wait_max("250m"), 150);
        assert_eq!(wait_max("300000u"), 200);
        assert_eq!(wait_max("99999999n"), 0);
    }

    #[test]
    fn a_deadline_that_is_too_short_does_not_wait() {
        assert_eq!(wait_max("100m"), 0);
        assert_eq!(wait_max("0S"), 0);
    }

    #[test]
    fn malformed_deadlines_are_none() {
        for text in ["", "5", "S", "123456789S", "5s", "-5S", "1.5S", "5 S"] {
            assert_eq!(wait_max(text), u64::MAX, "{text}");
        }
        assert_eq!(wait_max_ms(&MetadataMap::new()), u64::MAX);
    }
}
