//! JSON Web Tokens (RFC 7519): whose they are, if one of the issuer's keys has signed them.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header,
    jwk::{Jwk, JwkSet},
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{signatures::use_ring, tokens::Sum};

/// How far the issuer's clock may be off.
const LEEWAY: Duration = Duration::from_secs(30);
/// Tokens whose signatures are known to be good.
const KNOWN_MOST: usize = 10_000;
const NEEDED: [&str; 4] = ["exp", "iss", "aud", "sub"];

/// What the tokens of an issuer are known by.
pub struct Jwt {
    keys: Vec<Key>,
    /// By their digests. A signature costs more than all else in a call.
    known: Mutex<HashMap<Sum, Shown>>,
    /// A token named a key that is not here.
    wants_keys: AtomicBool,
}

struct Key {
    id: Option<String>,
    sum: Sum,
    key: DecodingKey,
    /// Pins the algorithms of this key: a token does not choose.
    validation: Validation,
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    /// Its subject.
    pub subject: String,
    /// When it is worth nothing any more.
    pub expires: SystemTime,
    /// Of the key that has signed it.
    pub(super) key: Sum,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
}

impl Jwt {
    /// With a JSON Web Key Set (RFC 7517). Keys of kinds that cannot be used are passed over.
    ///
    /// # Errors
    /// If it is none, or has no key that can be used.
    pub fn new(key_set: &str, issuer: &str, audience: &str) -> Result<Self, String> {
        use_ring();
        let set: JwkSet = serde_json::from_str(key_set)
            .map_err(|error| format!("no JSON Web Key Set: {error}"))?;
        let keys = set.keys.iter();
        let keys: Vec<_> = keys
            .filter_map(|jwk| Key::new(jwk, issuer, audience))
            .collect();
        if keys.is_empty() {
            return Err(
                "no key in it can be used: it must be public, RSA, EC or Ed25519".to_owned(),
            );
        }
        Ok(Self {
            keys,
            known: Mutex::default(),
            wants_keys: AtomicBool::default(),
        })
    }

    /// What a token says whose signature is known to be good: `Some(None)` if it is too late. `None`:
    /// it is not known.
    pub(super) fn known(&self, token: &str) -> Option<Option<Shown>> {
        let digest = digest(token);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = known.get(&digest)?;
        Some((SystemTime::now() < shown.expires).then(|| shown.clone()))
    }

    /// What a token says, if it is good now. `None` tells nobody why not.
    pub(super) fn verify(&self, token: &str) -> Option<Shown> {
        let shown = self.signed(token)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MOST {
            let now = SystemTime::now();
            known.retain(|_, shown| now < shown.expires);
        }
        if known.len() < KNOWN_MOST {
            known.insert(digest(token), shown.clone());
        }
        Some(shown)
    }

    /// Whether a token has named a key that is not here since it was asked last.
    pub(super) fn wants_keys(&self) -> bool {
        self.wants_keys.swap(false, Ordering::Relaxed)
    }

    /// Whether the key is in use still.
    pub(super) fn has(&self, key: &Sum) -> bool {
        self.keys.iter().any(|known| known.sum == *key)
    }

    fn signed(&self, token: &str) -> Option<Shown> {
        let id = decode_header(token).ok()?.kid;
        if id.is_some() && self.keys.iter().all(|key| key.id != id) {
            self.wants_keys.store(true, Ordering::Relaxed);
        }
        let is_it = |key: &&Key| id.is_none() || key.id.is_none() || key.id == id;
        let mut read = self.keys.iter().filter(is_it).filter_map(|key| {
            let token = decode::<Claims>(token, &key.key, &key.validation).ok()?;
            let expires = Duration::try_from_secs_f64(token.claims.exp).ok()? + LEEWAY;
            Some(Shown {
                subject: token.claims.sub,
                expires: SystemTime::UNIX_EPOCH.checked_add(expires)?,
                key: key.sum,
            })
        });
        read.next()
    }
}

impl Key {
    /// `None`: it is no public key for signatures.
    fn new(jwk: &Jwk, issuer: &str, audience: &str) -> Option<Self> {
        let key = DecodingKey::from_jwk(jwk).ok()?;
        if key.family() == AlgorithmFamily::Hmac {
            return None;
        }
        let mut validation = Validation::new_for_family(key.family());
        if let Some(algorithm) = jwk.common.key_algorithm {
            validation.algorithms = vec![Algorithm::try_from(algorithm).ok()?];
        }
        validation.leeway = LEEWAY.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&NEEDED);
        Some(Self {
            id: jwk.common.key_id.clone(),
            sum: digest(&serde_json::to_string(jwk).ok()?),
            key,
            validation,
        })
    }
}

fn digest(text: &str) -> Sum {
    Sha256::digest(text.as_bytes()).into()
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| &key.id);
        f.debug_struct("Jwt")
            .field("keys", &ids.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
