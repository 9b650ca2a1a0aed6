//! Names of locks and namespaces, and the store key of a lock.

use std::{fmt, sync::Arc};

/// Maximum length of a lock name, in bytes of UTF-8.
pub const NAME_MAX_BYTES: usize = 512;
const NAMESPACE_MAX: usize = 63;

/// Namespace of locks, the scope of tenants and access rules: 1-63 characters of `[a-z0-9-]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(String);

impl Namespace {
    /// Parses a namespace. An empty text means `default`.
    ///
    /// # Errors
    /// Returns the rule that the text violates.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Ok(Self("default".to_owned()));
        }
        if text.len() > NAMESPACE_MAX {
            return Err("must be at most 63 characters");
        }
        if !text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        {
            return Err("must consist of a-z, 0-9 and -");
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name of a lock: 1-512 bytes of UTF-8 without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(String);

impl LockName {
    /// # Errors
    /// Returns the rule that the text violates.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("must not be empty");
        }
        if text.len() > NAME_MAX_BYTES {
            return Err("must be at most 512 bytes");
        }
        if text.chars().any(char::is_control) {
            return Err("must not contain control characters");
        }
        Ok(Self(text.to_owned()))
    }
}

/// Identity of a lock: a namespace and a name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(Arc<(Namespace, LockName)>);

impl LockKey {
    pub fn new(namespace: Namespace, name: LockName) -> Self {
        Self(Arc::new((namespace, name)))
    }

    pub fn namespace(&self) -> &str {
        &self.0.0.0
    }

    pub fn name(&self) -> &str {
        &self.0.1.0
    }

    /// Returns `{namespace:name}` with `%`, `{` and `}` of the name percent-encoded, so that the
    /// braces form exactly one Redis Cluster hash tag.
    pub fn encoded(&self) -> String {
        let mut key = String::with_capacity(self.namespace().len() + self.name().len() + 3);
        key.push('{');
        key.push_str(self.namespace());
        key.push(':');
        encode(self.name(), &mut key);
        key.push('}');
        key
    }

    /// Parses the output of [`LockKey::encoded`].
    pub fn decode(key: &str) -> Option<Self> {
        let (namespace, name) = key.strip_prefix('{')?.strip_suffix('}')?.split_once(':')?;
        let name = name
            .replace("%7B", "{")
            .replace("%7D", "}")
            .replace("%25", "%");
        Some(Self::new(
            Namespace::parse(namespace).ok()?,
            LockName::parse(&name).ok()?,
        ))
    }
}

/// Appends `name` to `key` in encoded form. Each character is encoded independently, so that the
/// encoding of a prefix is a prefix of the encoding.
pub fn encode(name: &str, key: &mut String) {
    for c in name.chars() {
        match c {
            '%' => key.push_str("%25"),
            '{' => key.push_str("%7B"),
            '}' => key.push_str("%7D"),
            c => key.push(c),
        }
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name())
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_legal_name_survives_the_key() {
        for name in [
            "a",
            "a b",
            "{x}",
            "}{",
            "%7B",
            "%257D%",
            "naïve/订单",
            "a:b:c",
        ] {
            let lock = LockKey::new(
                Namespace::parse("t-1").unwrap(),
                LockName::parse(name).unwrap(),
            );
            let key = lock.encoded();
            assert_eq!(key.matches('{').count(), 1, "{key}");
            assert_eq!(key.matches('}').count(), 1, "{key}");
            assert_eq!(LockKey::decode(&key), Some(lock));
        }
    }
}
