//! Patterns of names: `*` stands for any characters, or none.

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// What stands between the stars.
    parts: Vec<String>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let parts = text.split('*').map(str::to_owned).collect();
        Self { parts }
    }

    /// What it says, if that is one name.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|only| only == name);
        };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else {
            return false;
        };
        // The first place of each part leaves the most for those behind it.
        for part in middle {
            let Some(at) = rest.find(part.as_str()) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "", false),
            ("", "", true),
            ("*", "", true),
            ("*", "a/b", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "axbxc", true),
            ("a*b*c", "acb", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "aab", false),
            (
                "spiffe://corp/*/worker",
                "spiffe://corp/orders/worker",
                true,
            ),
            ("spiffe://corp/*", "spiffe://corporation/x", false),
            ("订*单", "订购单", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                matches,
                "{pattern} {name}"
            );
        }
    }
}
