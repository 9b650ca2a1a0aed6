//! Name patterns, in which `*` matches any number of characters.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The literal parts between the asterisks.
    parts: Vec<String>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let parts = text.split('*').map(str::to_owned).collect();
        Self { parts }
    }

    /// Returns the text of a pattern without asterisks.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [literal] => Some(literal),
            _ => None,
        }
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|literal| literal == name);
        };
        let Some(mut remaining) = name.strip_prefix(first.as_str()) else {
            return false;
        };
        // Matching each part at its first occurrence leaves the longest rest for
        // the parts after it.
        for part in middle {
            let Some(index) = remaining.find(part.as_str()) else {
                return false;
            };
            remaining = &remaining[index + part.len()..];
        }
        remaining.ends_with(last.as_str())
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
