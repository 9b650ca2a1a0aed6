//! Ids and digests: fixed-length lower-case base32, so that they pack and compare without escaping.

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
            /// How many characters the text form has.
            pub const LEN: usize = $len;

            /// The first bits of `digest`.
            #[allow(dead_code, reason = "random ids have no digest")]
            fn cut(digest: &[u8]) -> Self {
                let mut text = [0; $len];
                BASE32.encode_mut(&digest[..$bytes], &mut text);
                Self(text)
            }

            /// Reads the text form; `None` if it is none.
            pub fn parse(text: &str) -> Option<Self> {
                let bytes: [u8; $len] = text.as_bytes().try_into().ok()?;
                let legal = |b: &u8| b.is_ascii_lowercase() || (b'2'..=b'7').contains(b);
                bytes.iter().all(legal).then_some(Self(bytes))
            }

            /// The text form.
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
    /// Public name of a lease: SHA-256 of its token cut to 128 bits.
    LeaseId, bytes 16, characters 26
);
id!(
    /// SHA-256 of a request id cut to 128 bits: records hold this, never the id.
    RequestHash, bytes 16, characters 26
);
id!(
    /// Digest of the arguments that a repeat of a call must share.
    ArgumentsHash, bytes 8, characters 13
);
id!(
    /// One RPC attempt. Random.
    AttemptId, bytes 8, characters 13
);
id!(
    /// One broker process. Random.
    BrokerId, bytes 10, characters 16
);

impl AttemptId {
    /// A fresh id.
    pub fn random() -> Self {
        let mut bytes = [0; 8];
        rand::thread_rng().fill_bytes(&mut bytes);
        Self::cut(&bytes)
    }
}

impl BrokerId {
    /// A fresh id.
    pub fn random() -> Self {
        let mut bytes = [0; 10];
        OsRng.fill_bytes(&mut bytes);
        Self::cut(&bytes)
    }
}

impl ArgumentsHash {
    /// Digest of `fields`, each with its length before it.
    pub fn of(fields: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for field in fields {
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        Self::cut(&digest.finalize())
    }
}

/// The caller's id of a call. A secret: the lease token is derived from it.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestId(Uuid);

impl RequestId {
    /// `None` if the text is no UUID. Upper and lower case are the same id.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    /// A fresh id for a call that brought none.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// What records and messages between brokers hold instead of the id.
    pub fn hash(&self) -> RequestHash {
        RequestHash::cut(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestId(..)")
    }
}

/// Secret proof that a lease is the caller's. Never logged.
#[derive(Clone)]
pub struct LeaseToken(SecretString);

impl LeaseToken {
    /// What a caller handed back. Any text can be one; only the right one hashes to its lease id.
    pub fn from_caller(text: String) -> Self {
        Self(text.into())
    }

    /// The id of the lease that this token proves to be this caller's. Shown by anybody else it
    /// proves another one, which nobody has.
    pub fn lease_id(&self, caller: &str) -> LeaseId {
        let mut digest = Sha256::new();
        digest.update(self.expose().as_bytes());
        // No base32 digit: token and caller cannot run into each other.
        digest.update([0]);
        digest.update(caller.as_bytes());
        LeaseId::cut(&digest.finalize())
    }

    /// The secret itself, for the reply to the caller that acquired, and for nothing else.
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

/// The key shared by all brokers of a deployment: any of them derives the same lease tokens.
#[derive(Clone)]
pub struct DeploymentKey(SecretSlice<u8>);

impl DeploymentKey {
    /// A fresh key from the system's random source.
    pub fn random() -> Self {
        let mut key = vec![0; 32];
        OsRng.fill_bytes(&mut key);
        Self(key.into())
    }

    /// Reads 64 hexadecimal digits, with white space around them.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE
            .decode(text.trim().as_bytes())
            .ok()?;
        (bytes.len() == 32).then(|| Self(bytes.into()))
    }

    /// 64 hexadecimal digits, for the store that keeps the key. Never logged.
    pub fn expose(&self) -> String {
        data_encoding::HEXLOWER.encode(self.0.expose_secret())
    }

    /// Names the key without telling it.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(b"leasehold deployment key");
        digest.update(self.0.expose_secret());
        ArgumentsHash::cut(&digest.finalize()).to_string()
    }

    /// The key of a deployment that is another one wherever these names differ, in whatever order.
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

    /// `HMAC(key, caller, owner id, request id, locks)`: the same call has the same token at every
    /// broker. `locks` are in canonical (bytewise) order.
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
        let (one, other) = (self.0.expose_secret(), other.0.expose_secret());
        one.ct_eq(other).into()
    }
}

impl Eq for DeploymentKey {}

impl fmt::Debug for DeploymentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeploymentKey({})", self.fingerprint())
    }
}
