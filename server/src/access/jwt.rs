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

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, Jwk, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{signatures::use_ring, tokens::Sum};

/// How far the issuer's clock may be off.
const LEEWAY: Duration = Duration::from_secs(30);
/// Tokens whose signatures are known to be good.
const KNOWN_MOST: usize = 10_000;
/// The length of a public key for Ed25519 (RFC 8032, section 5.1.5).
const ED25519_BYTES: usize = 32;
const NEEDED: [&str; 4] = ["exp", "iss", "aud", "sub"];
/// Values of `typ` of tokens that are meant for an API (RFC 7519, section 5.1; RFC 9068, section 4).
const TYPES: [&str; 2] = ["jwt", "at+jwt"];
/// Length of the shortest RSA key that may be used (RFC 7518, section 3.3).
const RSA_MIN_BITS: usize = 2_048;

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

/// A JSON Web Key Set. Each key is read alone: one of an unknown kind says nothing about the others.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Jwt {
    /// Reads a JSON Web Key Set (RFC 7517). Keys that cannot be used are passed over; without any other
    /// no token is good.
    ///
    /// # Errors
    /// If the text is no key set.
    pub fn new(key_set: &str, issuer: &str, audience: &str) -> Result<Self, String> {
        use_ring();
        let set: KeySet = serde_json::from_str(key_set)
            .map_err(|error| format!("no JSON Web Key Set: {error}"))?;
        let keys = set.keys.into_iter();
        let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        Ok(Self {
            keys: keys
                .filter_map(|jwk| Key::new(&jwk, issuer, audience))
                .collect(),
            known: Mutex::default(),
            wants_keys: AtomicBool::default(),
        })
    }

    /// Returns true if no key can be used, so that no token is good.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
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
        let header = decode_header(token).ok()?;
        if !is_understood(&header) {
            return None;
        }
        let id = header.kid;
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
    /// Returns `None` unless it is a public key for signatures that is long enough.
    fn new(jwk: &Jwk, issuer: &str, audience: &str) -> Option<Self> {
        if !is_for_signatures(jwk) || !is_long_enough(jwk) || !is_whole(jwk) {
            return None;
        }
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

/// Returns whether a token is of a type for APIs and asks for no extension: none is known here, and a
/// token must be refused that names an unknown one as critical (RFC 7515, section 4.1.11).
fn is_understood(header: &Header) -> bool {
    let is_known = |typ: &String| {
        let typ = typ.to_ascii_lowercase();
        TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
    };
    header.crit.is_none() && header.typ.as_ref().is_none_or(is_known)
}

fn is_for_signatures(jwk: &Jwk) -> bool {
    let key = &jwk.common;
    let is_meant = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
    let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
    key.public_key_use.as_ref().is_none_or(is_meant)
        && key.key_operations.as_ref().is_none_or(verifies)
}

fn is_long_enough(jwk: &Jwk) -> bool {
    let AlgorithmParameters::RSA(rsa) = &jwk.algorithm else {
        return true;
    };
    let modulus = BASE64URL_NOPAD.decode(rsa.n.as_bytes()).unwrap_or_default();
    let is_digit = |byte: &u8| *byte != 0;
    let first = modulus.iter().position(is_digit).unwrap_or(modulus.len());
    let zeros = modulus.get(first).map_or(0, |byte| byte.leading_zeros());
    let zeros = usize::try_from(zeros).unwrap_or_default();
    (modulus.len() - first) * 8 - zeros >= RSA_MIN_BITS
}

/// Returns false for an Ed25519 key of another length than such keys have. jsonwebtoken does not check
/// it, and panics at the first token for a shorter key.
fn is_whole(jwk: &Jwk) -> bool {
    let AlgorithmParameters::OctetKeyPair(key) = &jwk.algorithm else {
        return true;
    };
    let bytes = BASE64URL_NOPAD.decode(key.x.as_bytes());
    bytes.is_ok_and(|bytes| bytes.len() == ED25519_BYTES)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn usable(keys: Value) -> usize {
        let set = json!({ "keys": keys }).to_string();
        let jwt = Jwt::new(&set, "issuer", "audience").expect("a key set");
        jwt.keys.len()
    }

    /// A public key on P-256 with these fields besides.
    fn ec(other: &Value) -> Value {
        let mut key = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        });
        let (Value::Object(fields), Value::Object(other)) = (&mut key, other) else {
            panic!("both are objects");
        };
        fields.extend(other.clone());
        key
    }

    fn rsa(modulus: &[u8]) -> Value {
        json!({ "kty": "RSA", "e": "AQAB", "n": BASE64URL_NOPAD.encode(modulus) })
    }

    #[test]
    fn keys_for_other_uses_are_passed_over() {
        for (other, count) in [
            (json!({}), 1),
            (json!({ "use": "sig" }), 1),
            (json!({ "key_ops": ["sign", "verify"] }), 1),
            (json!({ "use": "enc" }), 0),
            (json!({ "use": "other" }), 0),
            (json!({ "key_ops": ["sign"] }), 0),
            (json!({ "key_ops": [] }), 0),
            (json!({ "use": "sig", "key_ops": ["encrypt"] }), 0),
            (json!({ "kty": "other" }), 0),
            (json!({ "alg": "none" }), 0),
        ] {
            assert_eq!(usable(json!([ec(&other)])), count, "{other}");
            let beside = json!([ec(&other), ec(&json!({}))]);
            assert_eq!(usable(beside), count + 1, "{other}");
        }
        let secret = json!([{ "kty": "oct", "k": "c2VjcmV0" }]);
        assert_eq!((usable(secret), usable(json!([]))), (0, 0));
    }

    #[test]
    fn short_rsa_keys_are_passed_over() {
        let mut longest_refused = [0xff; 256];
        longest_refused[0] = 0x7f;
        let mut padded = vec![0; 200];
        padded.extend([0xff; 128]);
        for (modulus, count) in [
            (&[0x80; 256][..], 1),
            (&[0xff; 512], 1),
            (&longest_refused, 0),
            (&[0xff; 128], 0),
            (&padded, 0),
            (&[0; 512], 0),
            (&[], 0),
        ] {
            assert_eq!(usable(json!([rsa(modulus)])), count, "{}", modulus.len());
        }
    }

    #[test]
    fn what_is_no_key_set_is_refused() {
        for text in ["", "[]", "{}", r#"{"keys": 1}"#, "<html></html>"] {
            let problem = Jwt::new(text, "issuer", "audience").expect_err("no key set");
            assert!(problem.starts_with("no JSON Web Key Set"), "{problem}");
        }
    }

    #[test]
    fn tokens_that_ask_for_more_are_not_understood() {
        for (header, is_good) in [
            (json!({}), true),
            (json!({ "typ": "JWT" }), true),
            (json!({ "typ": "jwt" }), true),
            (json!({ "typ": "at+jwt" }), true),
            (json!({ "typ": "application/at+jwt" }), true),
            (json!({ "typ": "" }), false),
            (json!({ "typ": "dpop+jwt" }), false),
            (json!({ "typ": "logout+jwt" }), false),
            (json!({ "crit": [] }), false),
            (json!({ "crit": ["b64"] }), false),
        ] {
            let mut fields = json!({ "alg": "ES256" });
            let (Value::Object(fields_of), Value::Object(other)) = (&mut fields, &header) else {
                panic!("both are objects");
            };
            fields_of.extend(other.clone());
            let parsed: Header = serde_json::from_value(fields).expect("a header");
            assert_eq!(is_understood(&parsed), is_good, "{header}");
        }
    }

    #[test]
    fn ed25519_keys_of_another_length_are_passed_over() {
        let key = |bytes: usize| {
            let x = BASE64URL_NOPAD.encode(&vec![9; bytes]);
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#)
        };
        let keys = [0, 31, ED25519_BYTES, 33].map(key).join(",");
        let set = format!(r#"{{"keys":[{keys}]}}"#);
        let jwt = Jwt::new(&set, "issuer", "audience").expect("one key is whole");
        assert_eq!(jwt.keys.len(), 1);
        let parts = [br#"{"alg":"EdDSA"}"#.as_slice(), b"{}", &[0; 64]];
        let token = parts.map(|part| BASE64URL_NOPAD.encode(part)).join(".");
        assert_eq!(jwt.verify(&token), None);
    }

    #[test]
    fn so_many_tokens_are_known_and_those_that_are_over_make_room() {
        let samples: Value =
            serde_json::from_str(include_str!("signatures/samples.json")).expect("JSON");
        let jwt = Jwt::new(&samples.to_string(), "https://issuer.test", "leasehold");
        let jwt = jwt.expect("public keys");
        let token = |name: &str| samples["tokens"][name].as_str().expect("a token");
        let shown = jwt.verify(token("EdDSA")).expect("a good token");
        let remember = |number: usize, shown: &Shown| {
            let mut known = jwt.known.lock().expect("nobody has panicked");
            known.insert(digest(&number.to_string()), shown.clone());
        };
        (1..KNOWN_MOST).for_each(|number| remember(number, &shown));
        assert!(jwt.verify(token("ES256")).is_some());
        assert_eq!(jwt.known(token("ES256")), None, "it is verified again");
        let expires = SystemTime::UNIX_EPOCH;
        remember(1, &Shown { expires, ..shown });
        assert!(jwt.verify(token("ES256")).is_some());
        assert!(jwt.known(token("ES256")).is_some());
    }
}
