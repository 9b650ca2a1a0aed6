//! How an owner lies in a record: every text with its length before it.

use crate::lock::Owner;

/// id, reason, then key and value of each label.
pub(super) fn encode(owner: &Owner) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(owner.id.len() + owner.reason.len() + 8);
    let labels = owner.labels.iter().flat_map(|(key, value)| [key, value]);
    for text in [&owner.id, &owner.reason].into_iter().chain(labels) {
        bytes.extend_from_slice(text.len().to_string().as_bytes());
        bytes.push(b':');
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// `None` if the bytes are not what [`encode`] writes.
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
    let mut labels = Vec::new();
    while let Some(key) = texts.next() {
        labels.push((key, texts.next()?));
    }
    Some(Owner { id, reason, labels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_owner_comes_back() {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        for labels in [vec![], vec![label("a", ""), label("b:1", "ü|,@")]] {
            let owner = Owner {
                id: "pod:7|x".to_owned(),
                reason: String::new(),
                labels,
            };
            assert_eq!(decode(&encode(&owner)), Some(owner));
        }
    }
}
