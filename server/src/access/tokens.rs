//! Tokens that callers show: the broker knows their digests only.

use std::collections::HashSet;

use data_encoding::HEXLOWER_PERMISSIVE;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A digest.
pub(super) type Sum = [u8; 32];

/// Callers, and the digests of their tokens. Several tokens of one caller are valid at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<(String, Sum)>);

impl Tokens {
    /// Reads lines of a caller's name and the SHA-256 of a token in hexadecimal digits. `#` begins a
    /// comment.
    ///
    /// # Errors
    /// Every line that is wrong. No text of the file is in it.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut tokens, mut problems, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [name, sum] => match digest(sum) {
                    Some(sum) if seen.insert(sum) => tokens.push(((*name).to_owned(), sum)),
                    Some(_) => problems.push(format!("line {number}: this token is there twice")),
                    None => problems.push(format!(
                        "line {number}: behind the name must be 64 hexadecimal digits, the SHA-256 \
                         of a token"
                    )),
                },
                _ => problems.push(format!("line {number}: must be a name and a digest")),
            }
        }
        match problems.is_empty() {
            true => Ok(Self(tokens)),
            false => Err(problems),
        }
    }

    /// Whose token that is. Takes as long for each of them, and for none.
    pub(super) fn caller(&self, token: &str) -> Option<(&str, Sum)> {
        let shown = Sha256::digest(token.as_bytes());
        let mut whose = None;
        for (name, sum) in &self.0 {
            if bool::from(sum.ct_eq(shown.as_slice())) {
                whose = Some((name.as_str(), *sum));
            }
        }
        whose
    }

    /// Returns whether the caller of this name still has the token.
    pub(super) fn has(&self, name: &str, sum: &Sum) -> bool {
        let mut tokens = self.0.iter();
        tokens.any(|(known, digest)| known == name && digest == sum)
    }
}

fn digest(text: &str) -> Option<Sum> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "secret".
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn tokens_are_known_by_their_digests() {
        let tokens = Tokens::parse(&format!("# comment\nci {SECRET} # old\n\n")).expect("legal");
        let known = tokens.caller("secret").expect("a token");
        assert!(known.0 == "ci" && tokens.has("ci", &known.1));
        assert!(!tokens.has("ops", &known.1), "given to another caller");
        assert!(!Tokens::default().has("ci", &known.1));
        assert_eq!(tokens.caller("Secret"), None);
        assert_eq!(tokens.caller(""), None);
        assert_eq!(Tokens::default().caller(""), None);
    }

    #[test]
    fn what_is_wrong_is_told_by_its_line() {
        let text = format!("ci {SECRET}\nops {SECRET}\nops secret\nalone\n");
        let problems = Tokens::parse(&text).expect_err("three wrong lines");
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains("secret")));
    }
}
