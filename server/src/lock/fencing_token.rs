//! Fencing tokens.

/// A fencing token, which orders the grants of one lock. Its range of 1 to 2^53 - 1 is exact in
/// every language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Largest token, 2^53 - 1.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Returns `None` outside 1 to 2^53 - 1.
    pub fn new(value: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&value).then_some(Self(value))
    }

    /// Returns the token of a grant at `now_us`, in microseconds since 1970. `last` is the previous
    /// token of the lock, or 0 if there is none.
    ///
    /// The token is higher than all earlier tokens even if the clock was set back, or if the record
    /// with the last token was lost.
    pub fn after(last: u64, now_us: u64) -> Self {
        Self(now_us.max(last + 1))
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fencing_token_is_the_time_of_the_grant() {
        assert_eq!(FencingToken::after(0, 5), FencingToken(5));
        assert_eq!(FencingToken::after(4, 5), FencingToken(5));
    }

    #[test]
    fn fencing_tokens_rise_although_the_clock_was_set_back() {
        assert_eq!(FencingToken::after(5, 5), FencingToken(6));
        assert_eq!(FencingToken::after(9, 5), FencingToken(10));
    }

    #[test]
    fn a_fencing_token_is_exact_in_every_language() {
        assert_eq!(FencingToken::new(0), None);
        assert_eq!(FencingToken::new(1).map(FencingToken::get), Some(1));
        assert_eq!(
            FencingToken::new(FencingToken::MAX).map(FencingToken::get),
            Some(FencingToken::MAX)
        );
        assert_eq!(FencingToken::new(FencingToken::MAX + 1), None);
    }
}
