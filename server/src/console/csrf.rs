//! CSRF tokens of the forms of operators. A token is bound to one user, one lock and one lease or
//! action.

use std::time::{Duration, SystemTime};

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, Mac as _};
use rand::{RngCore as _, rngs::OsRng};
use sha2::Sha256;

use crate::time::unix_time;

/// Validity of a token.
const TOKEN_TTL: Duration = Duration::from_secs(3_600);

/// Issues and verifies tokens with a key that only this process has.
pub(super) struct CsrfTokens([u8; 32]);

/// The user and the action that a token is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenScope<'a> {
    pub(super) user: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Id of the lease to revoke, or the name of another action on the lock.
    pub(super) subject: &'a str,
}

impl CsrfTokens {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        OsRng.fill_bytes(&mut key);
        Self(key)
    }

    /// Issues a token that is valid for [`TOKEN_TTL`].
    pub(super) fn issue(&self, scope: TokenScope<'_>) -> String {
        let expires_at = now_seconds() + TOKEN_TTL.as_secs();
        let digest = self.digest(expires_at, scope).finalize().into_bytes();
        format!("{expires_at}.{}", BASE64URL_NOPAD.encode(&digest))
    }

    /// Returns true if this process issued the token for `scope` and the token has not expired.
    pub(super) fn verify(&self, token: &str, scope: TokenScope<'_>) -> bool {
        let Some((expires_at, digest)) = token.split_once('.') else {
            return false;
        };
        let (Ok(expires_at), Ok(digest)) = (
            expires_at.parse::<u64>(),
            BASE64URL_NOPAD.decode(digest.as_bytes()),
        ) else {
            return false;
        };
        let is_ours = self.digest(expires_at, scope).verify_slice(&digest).is_ok();
        is_ours && now_seconds() <= expires_at
    }

    fn digest(&self, expires_at: u64, scope: TokenScope<'_>) -> Hmac<Sha256> {
        let mut digest = Hmac::<Sha256>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        digest.update(&expires_at.to_be_bytes());
        let TokenScope {
            user,
            namespace,
            name,
            subject,
        } = scope;
        for field in [user, namespace, name, subject] {
            digest.update(&(field.len() as u64).to_be_bytes());
            digest.update(field.as_bytes());
        }
        digest
    }
}

fn now_seconds() -> u64 {
    unix_time(SystemTime::now()).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_for_an_hour() {
        let started_at = now_seconds();
        let token = CsrfTokens::new().issue(TokenScope {
            user: "token:ops",
            namespace: "default",
            name: "a",
            subject: "l",
        });
        let (expires_at, _) = token.split_once('.').expect("two parts");
        let expires_at: u64 = expires_at.parse().expect("a time");
        let hour = [started_at, now_seconds()].map(|now| now + TOKEN_TTL.as_secs());
        assert!((hour[0]..=hour[1]).contains(&expires_at), "{expires_at}");
    }

    #[test]
    fn a_token_is_valid_only_for_its_scope() {
        let tokens = CsrfTokens::new();
        let scope = TokenScope {
            user: "token:ops",
            namespace: "default",
            name: "a",
            subject: "l",
        };
        let token = tokens.issue(scope);
        assert!(tokens.verify(&token, scope));
        for other_scope in [
            TokenScope {
                user: "token:op",
                ..scope
            },
            TokenScope {
                namespace: "defaul",
                name: "ta",
                ..scope
            },
            TokenScope { name: "b", ..scope },
            TokenScope {
                subject: "m",
                ..scope
            },
        ] {
            assert!(!tokens.verify(&token, other_scope), "{other_scope:?}");
        }
        assert!(!CsrfTokens::new().verify(&token, scope), "another process");
        let (expires_at, digest) = token.split_once('.').expect("two parts");
        let expires_at: u64 = expires_at.parse().expect("a time");
        for invalid in [
            String::new(),
            digest.to_owned(),
            format!("{}.{digest}", expires_at + 1),
        ] {
            assert!(!tokens.verify(&invalid, scope), "{invalid}");
        }
        let past = now_seconds() - 1;
        let digest = tokens.digest(past, scope).finalize().into_bytes();
        let expired = format!("{past}.{}", BASE64URL_NOPAD.encode(&digest));
        assert!(!tokens.verify(&expired, scope), "too old");
    }
}
