//! Ids and digests, encoded as lower-case base32 of fixed length, so that they can be concatenated
//! and compared without escaping.

use std::{fmt, sync::LazyLock};

use data_encoding::{Encoding, Specification};
use hmac::{Hmac, Mac as _};
use rand::{RngCore as _, rngs::OsRng};
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::LockKey;

static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification
        .symbols
        .push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification
        .encoding()
        .expect("32 different symbols make an encoding")
});

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, bytes $bytes:literal, characters $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len]);

        impl $name {
            /// Length of the text form in characters.
            pub const LEN: usize = $len;

            /// Encodes the first bits of `digest`.
            #[allow(dead_code, reason = "random ids have no digest")]
            fn cut(digest: &[u8]) -> Self {
                let mut text = [0; $len];
                BASE32.encode_mut(&digest[..$bytes], &mut text);
                Self(text)
            }

            /// Parses the text form. Returns `None` if `text` is malformed.
            pub fn parse(text: &str) -> Option<Self> {
                let bytes: [u8; $len] = text.as_bytes().try_into().ok()?;
                let is_base32 = |b: &u8| b.is_ascii_lowercase() || (b'2'..=b'7').contains(b);
                bytes.iter().all(is_base32).then_some(Self(bytes))
            }

            pub fn as_str(&self) -> &str {
                std::str::from_utf8(&self.0).unwrap_or_default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

id!(
    /// Public id of a lease: the SHA-256 digest of its token, truncated to 128 bits.
    LeaseId, bytes 16, characters 26
);
id!(
    /// SHA-256 digest of a request id, truncated to 128 bits. Records store this digest, never the
    /// id.
    RequestHash, bytes 16, characters 26
);
id!(
    /// Digest of the arguments that a repeated call must have in common.
    ArgumentsHash, bytes 8, characters 13
);
id!(
    /// Random id of one RPC attempt.
    AttemptId, bytes 8, characters 13
);
id!(
    /// Random id of one broker process.
    BrokerId, bytes 10, characters 16
);

impl AttemptId {
    /// Returns the id that contains these random bytes.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self::cut(&bytes)
    }

    pub fn random() -> Self {
        let mut bytes = [0; 8];
        rand::thread_rng().fill_bytes(&mut bytes);
        Self::from_bytes(bytes)
    }
}

impl BrokerId {
    pub fn random() -> Self {
        let mut bytes = [0; 10];
        OsRng.fill_bytes(&mut bytes);
        Self::cut(&bytes)
    }
}

impl ArgumentsHash {
    /// Returns the digest of `fields`, each preceded by its length.
    pub fn of(fields: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for field in fields {
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        Self::cut(&digest.finalize())
    }
}

/// The caller's id of a call. Secret, because the lease token is derived from it.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestId(Uuid);

impl RequestId {
    /// Returns `None` if `text` is not a UUID. Upper and lower case yield the same id.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    /// Returns a random id, for a call without one.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the digest that records and messages between brokers contain instead of the id.
    pub fn hash(&self) -> RequestHash {
        RequestHash::cut(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestId(..)")
    }
}

/// Secret that proves that a caller holds a lease. Never logged.
#[derive(Clone)]
pub struct LeaseToken(SecretString);

impl LeaseToken {
    /// Wraps a token that a caller presents. Any text is accepted; only the correct token hashes to
    /// the lease id.
    pub fn from_caller(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the id of the lease for which this token is a proof when `caller` presents it.
    /// Presented by any other caller, the token yields the id of a lease that does not exist.
    pub fn lease_id(&self, caller: &str) -> LeaseId {
        let mut digest = Sha256::new();
        digest.update(self.expose().as_bytes());
        // Not a base32 digit, so that different pairs of token and caller have different inputs.
        digest.update([0]);
        digest.update(caller.as_bytes());
        LeaseId::cut(&digest.finalize())
    }

    /// Returns the secret, only for the reply to the caller that acquired the lease.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for LeaseToken {
    fn eq(&self, other: &Self) -> bool {
        self.expose()
            .as_bytes()
            .ct_eq(other.expose().as_bytes())
            .into()
    }
}

impl Eq for LeaseToken {}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(..)")
    }
}

/// Key shared by all brokers of a deployment, from which all of them derive identical lease tokens.
#[derive(Clone)]
pub struct DeploymentKey(SecretSlice<u8>);

impl DeploymentKey {
    /// Generates a key from the random source of the operating system.
    pub fn random() -> Self {
        let mut key = vec![0; 32];
        OsRng.fill_bytes(&mut key);
        Self(key.into())
    }

    /// Parses 64 hexadecimal digits, ignoring surrounding white space.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE
            .decode(text.trim().as_bytes())
            .ok()?;
        (bytes.len() == 32).then(|| Self(bytes.into()))
    }

    /// Returns 64 hexadecimal digits, for the store that keeps the key. Never logged.
    pub fn expose(&self) -> String {
        data_encoding::HEXLOWER.encode(self.0.expose_secret())
    }

    /// Returns a short digest that identifies the key without revealing it.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(b"leasehold deployment key");
        digest.update(self.0.expose_secret());
        ArgumentsHash::cut(&digest.finalize()).to_string()
    }

    /// Derives a key that differs for different sets of `names`. The order of the names does not
    /// matter.
    #[must_use]
    pub fn bound_to(&self, names: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret())
            .expect("HMAC takes a key of any length");
        mac.update(b"leasehold deployment of");
        for name in names {
            mac.update(&(name.len() as u64).to_be_bytes());
            mac.update(name.as_bytes());
        }
        Self(mac.finalize().into_bytes().to_vec().into())
    }

    /// Returns `HMAC(key, caller, owner id, request id, locks)`, which is identical for a repeated
    /// call at every broker. `locks` are in canonical (bytewise) order.
    pub fn lease_token(
        &self,
        caller: &str,
        owner_id: &str,
        request_id: &RequestId,
        locks: &[&LockKey],
    ) -> LeaseToken {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret())
            .expect("HMAC takes a key of any length");
        let mut field = |bytes: &[u8]| {
            mac.update(&(bytes.len() as u64).to_be_bytes());
            mac.update(bytes);
        };
        field(caller.as_bytes());
        field(owner_id.as_bytes());
        field(request_id.0.as_bytes());
        for lock in locks {
            field(lock.namespace().as_bytes());
            field(lock.name().as_bytes());
        }
        LeaseToken::from_caller(BASE32.encode(&mac.finalize().into_bytes()))
    }
}

impl PartialEq for DeploymentKey {
    fn eq(&self, other: &Self) -> bool {
        let (left, right) = (self.0.expose_secret(), other.0.expose_secret());
        left.ct_eq(right).into()
    }
}

impl Eq for DeploymentKey {}

impl fmt::Debug for DeploymentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeploymentKey({})", self.fingerprint())
    }
}
