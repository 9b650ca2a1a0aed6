//! W3C trace context (`traceparent`) of a call.

use std::fmt;

const TRACE_HEX: usize = 32;
const SPAN_HEX: usize = 16;
const FLAGS_AT: usize = 53;
/// Length of `00-`, trace id, `-`, span id, `-`, flags.
const TEXT_LEN: usize = 55;
const SAMPLED: u8 = 1;
/// Length of a `grpc-trace-bin` value: a version, then each field preceded by its number.
const BINARY_LEN: usize = 29;

/// A span of a trace. Both ids are nonzero, because zero ids are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    pub trace_id: u128,
    pub span_id: u64,
    /// True if the span is recorded by the service that created it.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Returns `None` if one of the ids is zero.
    #[must_use]
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id,
            is_sampled,
        })
    }

    /// Parses a W3C `traceparent` header. Of later versions, the fields of version 00 are read.
    /// Returns `None` if the header is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_dash = |index: usize| bytes.get(index) == Some(&b'-');
        if bytes.len() < TEXT_LEN || ![2, 35, 52].into_iter().all(is_dash) {
            return None;
        }
        let version = hex(&bytes[..2])?;
        let is_longer = bytes.len() > TEXT_LEN;
        if version == 0xff || is_longer && (version == 0 || !is_dash(TEXT_LEN)) {
            return None;
        }
        let trace_id = hex(&bytes[3..3 + TRACE_HEX])?;
        let span_id = u64::try_from(hex(&bytes[36..36 + SPAN_HEX])?).ok()?;
        let flags = hex(&bytes[FLAGS_AT..TEXT_LEN])?;
        Self::new(trace_id, span_id, flags & u128::from(SAMPLED) != 0)
    }

    /// Parses a `grpc-trace-bin` value. Returns `None` if it is malformed.
    #[must_use]
    pub fn from_binary(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BINARY_LEN] = bytes.try_into().ok()?;
        if [bytes[0], bytes[1], bytes[18], bytes[27]] != [0, 0, 1, 2] {
            return None;
        }
        let trace_id = u128::from_be_bytes(bytes[2..18].try_into().ok()?);
        let span_id = u64::from_be_bytes(bytes[19..27].try_into().ok()?);
        Self::new(trace_id, span_id, bytes[28] & SAMPLED != 0)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            span_id,
            is_sampled,
        } = self;
        let flags = u8::from(*is_sampled);
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

/// Parses hexadecimal digits, lower case only.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_is_read_and_written() {
        let parent = TraceParent::parse(TEXT).expect("the example of the standard");
        assert_eq!(parent.to_string(), TEXT);
        assert!(parent.is_sampled);
        let unsampled = TEXT.replace("-01", "-00");
        let unsampled = TraceParent::parse(&unsampled).expect("another flag");
        assert!(!unsampled.is_sampled && unsampled.trace_id == parent.trace_id);
        let later_version = format!("cc{}-what", &TEXT[2..]);
        assert_eq!(TraceParent::parse(&later_version), Some(parent));
    }

    #[test]
    fn an_invalid_header_is_none() {
        let uppercase = TEXT.to_uppercase();
        let (longer, forbidden) = (format!("{TEXT}-what"), TEXT.replacen("00", "ff", 1));
        let no_trace = format!("00-{:032x}-b7ad6b7169203331-01", 0);
        let no_span = format!("00-0af7651916cd43dd8448eb211c80319c-{:016x}-01", 0);
        let non_ascii = TEXT.replace("b7ad6b7169203331", "b7ad6b71692033é1");
        for text in [
            "",
            &TEXT[1..],
            &uppercase,
            &longer,
            &forbidden,
            &no_trace,
            &no_span,
            &non_ascii,
        ] {
            assert_eq!(TraceParent::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_binary_form_equals_the_text_form() {
        let parent = TraceParent::parse(TEXT).expect("a header");
        let mut bytes = vec![0, 0];
        bytes.extend(parent.trace_id.to_be_bytes());
        bytes.push(1);
        bytes.extend(parent.span_id.to_be_bytes());
        bytes.extend([2, 1]);
        assert_eq!(TraceParent::from_binary(&bytes), Some(parent));
        for index in [0, 1, 18, 27] {
            let mut invalid = bytes.clone();
            invalid[index] = 9;
            assert_eq!(TraceParent::from_binary(&invalid), None, "{index}");
        }
        assert_eq!(TraceParent::from_binary(&bytes[1..]), None);
    }
}
