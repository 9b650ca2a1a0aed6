//! Verification of JSON Web Tokens (RFC 7519) with the keys of one issuer.

use std::{
    collections::HashMap,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, Jwk, KeyOperations, PublicKeyUse},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{signatures::use_ring, tokens::TokenDigest};

/// Tolerated clock skew of the issuer.
const LEEWAY: Duration = Duration::from_secs(30);
/// Maximum number of tokens whose verified claims are cached.
const CACHE_MAX: usize = 10_000;
/// The length of a public key for Ed25519 (RFC 8032, section 5.1.5).
const ED25519_BYTES: usize = 32;
const REQUIRED_CLAIMS: [&str; 4] = ["exp", "iss", "aud", "sub"];
/// Values of `typ` for tokens that are meant for an API (RFC 7519, section 5.1;
/// RFC 9068, section 4).
const ACCEPTED_TYPES: [&str; 2] = ["jwt", "at+jwt"];
/// Minimum length of an RSA key (RFC 7518, section 3.3).
const RSA_MIN_BITS: usize = 2_048;

/// Verifies tokens of an issuer, and caches the claims of verified tokens.
pub struct Jwt {
    keys: Vec<Key>,
    /// Claims of verified tokens, by the digest of the token. Verifying a signature is the most
    /// expensive step of a call.
    cache: Mutex<HashMap<TokenDigest, VerifiedToken>>,
    /// True if a token named a key that is not in `keys`.
    has_unknown_key: AtomicBool,
}

struct Key {
    id: Option<String>,
    digest: TokenDigest,
    key: DecodingKey,
    /// Restricts the algorithms to those of this key; the header of a token cannot
    /// choose another one.
    validation: Validation,
}

/// The verified claims of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifiedToken {
    pub subject: String,
    /// Time after which the token is rejected, [`LEEWAY`] after its `exp`.
    pub expires: SystemTime,
    /// Digest of the key that signed the token.
    pub(super) key: TokenDigest,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
}

/// A JSON Web Key Set. Each key is parsed separately, so that an unsupported key does not
/// affect the others.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Jwt {
    /// Parses a JSON Web Key Set (RFC 7517). Unusable keys are skipped; without a usable key every
    /// token is rejected.
    ///
    /// # Errors
    /// If the text is not a JSON Web Key Set.
    pub fn new(key_set: &str, issuer: &str, audience: &str) -> Result<Self, String> {
        use_ring();
        let set: KeySet = serde_json::from_str(key_set)
            .map_err(|error| format!("invalid JSON Web Key Set: {error}"))?;
        let keys = set.keys.into_iter();
        let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        Ok(Self {
            keys: keys
                .filter_map(|jwk| Key::new(&jwk, issuer, audience))
                .collect(),
            cache: Mutex::default(),
            has_unknown_key: AtomicBool::default(),
        })
    }

    /// Returns true if the key set has no usable key, so that every token is rejected.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the claims of a valid token, from the cache if the token was verified before. The
    /// signature of any other token is verified only if `may_verify` returns true.
    pub(super) fn claims(
        &self,
        token: &str,
        may_verify: impl FnOnce() -> bool,
    ) -> Option<VerifiedToken> {
        let digest = digest(token);
        if let Some(verified) = self.cache.lock().get(&digest) {
            return (SystemTime::now() < verified.expires).then(|| verified.clone());
        }
        may_verify().then(|| self.verify(token)).flatten()
    }

    /// Verifies a token and caches its claims. Returns `None` for an invalid token,
    /// without the reason.
    pub(super) fn verify(&self, token: &str) -> Option<VerifiedToken> {
        let verified = self.verify_signature(token)?;
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_MAX {
            let now = SystemTime::now();
            cache.retain(|_, verified| now < verified.expires);
        }
        if cache.len() < CACHE_MAX {
            cache.insert(digest(token), verified.clone());
        }
        Some(verified)
    }

    /// Returns true if a token has named a missing key since the previous call,
    /// and resets the flag.
    pub(super) fn take_unknown_key_flag(&self) -> bool {
        self.has_unknown_key.swap(false, Ordering::Relaxed)
    }

    /// Returns true if the key set contains the key with this digest.
    pub(super) fn contains_key(&self, key: &TokenDigest) -> bool {
        self.keys.iter().any(|candidate| candidate.digest == *key)
    }

    fn verify_signature(&self, token: &str) -> Option<VerifiedToken> {
        let header = decode_header(token).ok()?;
        if !is_supported(&header) {
            return None;
        }
        let id = header.kid;
        if id.is_some() && self.keys.iter().all(|key| key.id != id) {
            self.has_unknown_key.store(true, Ordering::Relaxed);
        }
        let is_match = |key: &&Key| id.is_none() || key.id.is_none() || key.id == id;
        let mut verified = self.keys.iter().filter(is_match).filter_map(|key| {
            let token = decode::<Claims>(token, &key.key, &key.validation).ok()?;
            let expires_at = Duration::try_from_secs_f64(token.claims.exp).ok()? + LEEWAY;
            Some(VerifiedToken {
                subject: token.claims.sub,
                expires: SystemTime::UNIX_EPOCH.checked_add(expires_at)?,
                key: key.digest,
            })
        });
        verified.next()
    }
}

impl Key {
    /// Returns `None` unless the key is a public signature key of sufficient length.
    fn new(jwk: &Jwk, issuer: &str, audience: &str) -> Option<Self> {
        if !is_for_signatures(jwk) || !is_long_enough(jwk) || !has_valid_length(jwk) {
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
        validation.set_required_spec_claims(&REQUIRED_CLAIMS);
        Some(Self {
            id: jwk.common.key_id.clone(),
            digest: digest(&serde_json::to_string(jwk).ok()?),
            key,
            validation,
        })
    }
}

/// Returns true if the token's type is one for APIs and its header has no `crit`. A token that
/// requires an unknown extension must be rejected (RFC 7515, section 4.1.11), and no extension
/// is supported here.
fn is_supported(header: &Header) -> bool {
    let is_known_type = |typ: &String| {
        let typ = typ.to_ascii_lowercase();
        ACCEPTED_TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
    };
    header.crit.is_none() && header.typ.as_ref().is_none_or(is_known_type)
}

fn is_for_signatures(jwk: &Jwk) -> bool {
    let key = &jwk.common;
    let is_signature = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
    let can_verify = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
    key.public_key_use.as_ref().is_none_or(is_signature)
        && key.key_operations.as_ref().is_none_or(can_verify)
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

/// Returns false for an Ed25519 key of the wrong length. jsonwebtoken does not check the length,
/// and panics at the first token for a shorter key.
fn has_valid_length(jwk: &Jwk) -> bool {
    let AlgorithmParameters::OctetKeyPair(key) = &jwk.algorithm else {
        return true;
    };
    let bytes = BASE64URL_NOPAD.decode(key.x.as_bytes());
    bytes.is_ok_and(|bytes| bytes.len() == ED25519_BYTES)
}

fn digest(text: &str) -> TokenDigest {
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

    /// Returns a public P-256 key with the additional fields of `extra`.
    fn ec(extra: &Value) -> Value {
        let mut key = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        });
        let (Value::Object(fields), Value::Object(extra)) = (&mut key, extra) else {
            panic!("both are objects");
        };
        fields.extend(extra.clone());
        key
    }

    fn rsa(modulus: &[u8]) -> Value {
        json!({ "kty": "RSA", "e": "AQAB", "n": BASE64URL_NOPAD.encode(modulus) })
    }

    #[test]
    fn keys_for_other_uses_are_ignored() {
        for (fields, count) in [
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
            assert_eq!(usable(json!([ec(&fields)])), count, "{fields}");
            let keys = json!([ec(&fields), ec(&json!({}))]);
            assert_eq!(usable(keys), count + 1, "{fields}");
        }
        let secret = json!([{ "kty": "oct", "k": "c2VjcmV0" }]);
        assert_eq!((usable(secret), usable(json!([]))), (0, 0));
    }

    #[test]
    fn short_rsa_keys_are_ignored() {
        let mut longest_rejected = [0xff; 256];
        longest_rejected[0] = 0x7f;
        let mut padded = vec![0; 200];
        padded.extend([0xff; 128]);
        for (modulus, count) in [
            (&[0x80; 256][..], 1),
            (&[0xff; 512], 1),
            (&longest_rejected, 0),
            (&[0xff; 128], 0),
            (&padded, 0),
            (&[0; 512], 0),
            (&[], 0),
        ] {
            assert_eq!(usable(json!([rsa(modulus)])), count, "{}", modulus.len());
        }
    }

    #[test]
    fn an_invalid_key_set_is_rejected() {
        for text in ["", "[]", "{}", r#"{"keys": 1}"#, "<html></html>"] {
            let problem = Jwt::new(text, "issuer", "audience").expect_err("no key set");
            assert!(problem.starts_with("invalid JSON Web Key Set"), "{problem}");
        }
    }

    #[test]
    fn tokens_with_unknown_types_or_critical_headers_are_rejected() {
        for (header, is_accepted) in [
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
            let (Value::Object(map), Value::Object(extra)) = (&mut fields, &header) else {
                panic!("both are objects");
            };
            map.extend(extra.clone());
            let parsed: Header = serde_json::from_value(fields).expect("a header");
            assert_eq!(is_supported(&parsed), is_accepted, "{header}");
        }
    }

    #[test]
    fn ed25519_keys_of_another_length_are_ignored() {
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
    fn the_token_cache_is_bounded_and_evicts_expired_tokens() {
        let samples: Value =
            serde_json::from_str(include_str!("signatures/samples.json")).expect("JSON");
        let jwt = Jwt::new(&samples.to_string(), "https://issuer.test", "leasehold");
        let jwt = jwt.expect("public keys");
        let token = |name: &str| samples["tokens"][name].as_str().expect("a token");
        let verified = jwt.verify(token("EdDSA")).expect("a good token");
        let insert = |number: usize, verified: &VerifiedToken| {
            let mut cache = jwt.cache.lock();
            cache.insert(digest(&number.to_string()), verified.clone());
        };
        (1..CACHE_MAX).for_each(|number| insert(number, &verified));
        assert!(jwt.verify(token("ES256")).is_some());
        let cached = jwt.claims(token("ES256"), || false);
        assert_eq!(cached, None, "it is verified again");
        let expired = VerifiedToken {
            expires: SystemTime::UNIX_EPOCH,
            ..verified
        };
        insert(1, &expired);
        assert!(jwt.verify(token("ES256")).is_some());
        assert!(jwt.claims(token("ES256"), || false).is_some());
    }
}
