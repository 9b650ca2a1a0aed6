//! Static bearer tokens, of which the broker stores only the digests.

use std::collections::HashSet;

use data_encoding::HEXLOWER_PERMISSIVE;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// SHA-256 digest of a token or a key.
pub(super) type TokenDigest = [u8; 32];

/// Callers and the digests of their tokens. A caller can have several valid tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<(String, TokenDigest)>);

impl Tokens {
    /// Parses lines, each with a caller's name and the SHA-256 of a token in hexadecimal digits.
    /// `#` begins a comment.
    ///
    /// # Errors
    /// A message for every invalid line. Messages contain no text of the file.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut tokens, mut problems, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [name, hex_digest] => match digest(hex_digest) {
                    Some(digest) if seen.insert(digest) => {
                        tokens.push(((*name).to_owned(), digest))
                    }
                    Some(_) => problems.push(format!("line {number}: duplicate token")),
                    None => problems.push(format!(
                        "line {number}: the name must be followed by 64 hexadecimal digits, the \
                         SHA-256 of a token"
                    )),
                },
                _ => problems.push(format!("line {number}: must contain a name and a digest")),
            }
        }
        match problems.is_empty() {
            true => Ok(Self(tokens)),
            false => Err(problems),
        }
    }

    /// Returns the caller that the token belongs to and the token's digest. The comparison
    /// runs in constant time.
    pub(super) fn caller(&self, token: &str) -> Option<(&str, TokenDigest)> {
        let digest = Sha256::digest(token.as_bytes());
        let mut caller = None;
        for (name, stored_digest) in &self.0 {
            if bool::from(stored_digest.ct_eq(digest.as_slice())) {
                caller = Some((name.as_str(), *stored_digest));
            }
        }
        caller
    }

    /// Returns true if the caller `name` has a token with this digest.
    pub(super) fn has(&self, name: &str, digest: &TokenDigest) -> bool {
        let mut tokens = self.0.iter();
        tokens.any(|(caller, stored_digest)| caller == name && stored_digest == digest)
    }
}

fn digest(text: &str) -> Option<TokenDigest> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "secret".
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn tokens_are_identified_by_their_digests() {
        let tokens = Tokens::parse(&format!("# comment\nci {SECRET} # old\n\n")).expect("legal");
        let caller = tokens.caller("secret").expect("a token");
        assert!(caller.0 == "ci" && tokens.has("ci", &caller.1));
        assert!(!tokens.has("ops", &caller.1), "given to another caller");
        assert!(!Tokens::default().has("ci", &caller.1));
        assert_eq!(tokens.caller("Secret"), None);
        assert_eq!(tokens.caller(""), None);
        assert_eq!(Tokens::default().caller(""), None);
    }

    #[test]
    fn problems_are_reported_with_their_line() {
        let text = format!("ci {SECRET}\nops {SECRET}\nops secret\nalone\n");
        let problems = Tokens::parse(&text).expect_err("three wrong lines");
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains("secret")));
    }
}
