//! The mark on a form that this process has made, for one visitor and one lease: without it nothing is done.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, Mac as _};
use rand::{RngCore as _, rngs::OsRng};
use sha2::Sha256;

/// How long a form may lie open.
const GOOD_FOR: Duration = Duration::from_secs(3_600);

/// Makes marks that nobody else can make, with a key that ends with the process.
pub(super) struct Seal([u8; 32]);

/// What a mark is good for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'a> {
    pub(super) visitor: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) lease_id: &'a str,
}

impl Seal {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        OsRng.fill_bytes(&mut key);
        Self(key)
    }

    /// A mark for this from now on, for a while.
    pub(super) fn mark(&self, bound: Bound<'_>) -> String {
        let until = (since_1970() + GOOD_FOR).as_secs();
        let digest = self.digest(until, bound).finalize().into_bytes();
        format!("{until}.{}", BASE64URL_NOPAD.encode(&digest))
    }

    /// Whether it is one of ours, for this, and not too old.
    pub(super) fn is_good(&self, mark: &str, bound: Bound<'_>) -> bool {
        let Some((until, digest)) = mark.split_once('.') else {
            return false;
        };
        let (Ok(until), Ok(digest)) = (
            until.parse::<u64>(),
            BASE64URL_NOPAD.decode(digest.as_bytes()),
        ) else {
            return false;
        };
        let is_ours = self.digest(until, bound).verify_slice(&digest).is_ok();
        is_ours && since_1970().as_secs() <= until
    }

    fn digest(&self, until: u64, bound: Bound<'_>) -> Hmac<Sha256> {
        let mut digest = Hmac::<Sha256>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        digest.update(&until.to_be_bytes());
        let Bound {
            visitor,
            namespace,
            name,
            lease_id,
        } = bound;
        for field in [visitor, namespace, name, lease_id] {
            digest.update(&(field.len() as u64).to_be_bytes());
            digest.update(field.as_bytes());
        }
        digest
    }
}

fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_good_for_an_hour() {
        let began = since_1970();
        let mark = Seal::new().mark(Bound {
            visitor: "token:ops",
            namespace: "default",
            name: "a",
            lease_id: "l",
        });
        let (until, _) = mark.split_once('.').expect("two parts");
        let until: u64 = until.parse().expect("a time");
        let hour = [began, since_1970()].map(|now| (now + GOOD_FOR).as_secs());
        assert!((hour[0]..=hour[1]).contains(&until), "{until}");
    }

    #[test]
    fn a_mark_is_good_for_what_it_was_made_for_and_nothing_else() {
        let seal = Seal::new();
        let bound = Bound {
            visitor: "token:ops",
            namespace: "default",
            name: "a",
            lease_id: "l",
        };
        let mark = seal.mark(bound);
        assert!(seal.is_good(&mark, bound));
        for other in [
            Bound {
                visitor: "token:op",
                ..bound
            },
            Bound {
                namespace: "defaul",
                name: "ta",
                ..bound
            },
            Bound { name: "b", ..bound },
            Bound {
                lease_id: "m",
                ..bound
            },
        ] {
            assert!(!seal.is_good(&mark, other), "{other:?}");
        }
        assert!(!Seal::new().is_good(&mark, bound), "another process");
        let (until, digest) = mark.split_once('.').expect("two parts");
        let until: u64 = until.parse().expect("a time");
        for wrong in [
            String::new(),
            digest.to_owned(),
            format!("{}.{digest}", until + 1),
        ] {
            assert!(!seal.is_good(&wrong, bound), "{wrong}");
        }
        let past = since_1970().as_secs() - 1;
        let digest = seal.digest(past, bound).finalize().into_bytes();
        let old = format!("{past}.{}", BASE64URL_NOPAD.encode(&digest));
        assert!(!seal.is_good(&old, bound), "too old");
    }
}
