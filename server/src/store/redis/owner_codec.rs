//! Encoding of an owner in a record: each text is preceded by its length.

use crate::lock::{Owner, TraceParent};

/// The key of the trace. It is empty, which no label's key is.
const TRACE: &str = "";

/// Encodes the id, the reason, the key and value of each label, and those of the trace if there is
/// one.
pub(super) fn encode(owner: &Owner) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(owner.id.len() + owner.reason.len() + 8);
    let trace = owner.trace.map(|trace| trace.to_string());
    let labels = owner.labels.iter();
    let labels = labels.flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    let trace = trace.iter().flat_map(|trace| [TRACE, trace.as_str()]);
    let texts = [owner.id.as_str(), owner.reason.as_str()];
    for text in texts.into_iter().chain(labels).chain(trace) {
        bytes.extend_from_slice(text.len().to_string().as_bytes());
        bytes.push(b':');
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Decodes an owner. Returns `None` if the bytes were not written by [`encode`].
pub(super) fn decode(bytes: &[u8]) -> Option<Owner> {
    let mut rest = std::str::from_utf8(bytes).ok()?;
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_once(':')?;
        let (text, after) = after.split_at_checked(length.parse().ok()?)?;
        texts.push(text.to_owned());
        rest = after;
    }
    let mut texts = texts.into_iter();
    let (id, reason) = (texts.next()?, texts.next()?);
    let (mut labels, mut trace) = (Vec::new(), None);
    while let Some(key) = texts.next() {
        let value = texts.next()?;
        match key.as_str() {
            TRACE => trace = TraceParent::parse(&value),
            _ => labels.push((key, value)),
        }
    }
    Some(Owner {
        id,
        reason,
        labels,
        trace,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_survives_a_round_trip() {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let traced = TraceParent::new(7, 9, true);
        for labels in [vec![], vec![label("a", ""), label("b:1", "ü|,@")]] {
            for trace in [None, traced] {
                let owner = Owner {
                    id: "pod:7|x".to_owned(),
                    reason: String::new(),
                    labels: labels.clone(),
                    trace,
                };
                assert_eq!(decode(&encode(&owner)), Some(owner));
            }
        }
    }
}
