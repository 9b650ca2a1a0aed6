//! Verification of JWT signatures with ring, which is also used for TLS.

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind},
    signature::{self, Verifier},
};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static SCHEMES: [(Algorithm, Scheme); 9] = [
    (Algorithm::RS256, Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA256)),
    (Algorithm::RS384, Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA384)),
    (Algorithm::RS512, Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA512)),
    (Algorithm::PS256, Scheme::Rsa(&RSA_PSS_2048_8192_SHA256)),
    (Algorithm::PS384, Scheme::Rsa(&RSA_PSS_2048_8192_SHA384)),
    (Algorithm::PS512, Scheme::Rsa(&RSA_PSS_2048_8192_SHA512)),
    (Algorithm::ES256, Scheme::Curve(&ECDSA_P256_SHA256_FIXED)),
    (Algorithm::ES384, Scheme::Curve(&ECDSA_P384_SHA384_FIXED)),
    (Algorithm::EdDSA, Scheme::Curve(&ED25519)),
];

static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier::new(*algorithm, key)?)),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs ring as the signature verifier of jsonwebtoken in this process.
/// Further calls do nothing.
pub(super) fn use_ring() {
    // An error means that a provider is already installed.
    let _ = RING.install_default();
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

#[derive(Clone, Copy)]
enum Scheme {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl RingVerifier {
    /// # Errors
    /// If the algorithm uses a shared secret, or does not belong to the family of the key.
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<Self, Error> {
        if algorithm.family() != key.family() {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        let scheme = SCHEMES
            .iter()
            .find(|(candidate, _)| *candidate == algorithm);
        let (_, scheme) = scheme.ok_or(ErrorKind::UnsupportedAlgorithm)?;
        Ok(Self {
            algorithm,
            scheme: *scheme,
            key: key.clone(),
        })
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.scheme, self.key.kind()) {
            (Scheme::Rsa(scheme), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // Some issuers write a zero byte before the modulus.
                let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
                RsaPublicKeyComponents { n, e }.verify(scheme, message, signature)
            }
            (Scheme::Curve(scheme), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(scheme, key).verify(message, signature)
            }
            (Scheme::Rsa(_) | Scheme::Curve(_), _) => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::access::Jwt;

    /// Public keys, and tokens that are valid until 2100. Another library signed the tokens
    /// with the private keys.
    const SAMPLES: &str = include_str!("signatures/samples.json");

    struct Samples {
        jwt: Jwt,
        tokens: serde_json::Map<String, Value>,
    }

    impl Samples {
        fn read() -> Self {
            let Value::Object(mut samples) = serde_json::from_str(SAMPLES).expect("JSON") else {
                panic!("an object");
            };
            let Some(Value::Object(tokens)) = samples.remove("tokens") else {
                panic!("tokens by name");
            };
            let keys = Value::Object(samples).to_string();
            let jwt = Jwt::new(&keys, "https://issuer.test", "leasehold").expect("public keys");
            Self { jwt, tokens }
        }

        fn token(&self, name: &str) -> &str {
            self.tokens[name].as_str().expect("a token")
        }

        fn subject(&self, token: &str) -> Option<String> {
            self.jwt.verify(token).map(|verified| verified.subject)
        }
    }

    #[test]
    fn each_asymmetric_algorithm_is_verified() {
        let samples = Samples::read();
        for name in [
            "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA",
        ] {
            let token = samples.token(name);
            assert_eq!(samples.subject(token).as_deref(), Some(name));
            // Changes a bit of the signature that is not Base64 padding.
            let index = token.len() - 9;
            let replacement = if token[index..].starts_with('A') {
                'B'
            } else {
                'A'
            };
            let forged = format!("{}{replacement}{}", &token[..index], &token[index + 1..]);
            assert_eq!(samples.subject(&forged), None, "{name}: {forged}");
        }
    }

    #[test]
    fn an_rsa_key_below_2048_bits_verifies_nothing() {
        let samples = Samples::read();
        assert_eq!(samples.subject(samples.token("short")), None);
    }

    #[test]
    fn a_modulus_may_begin_with_a_zero_byte() {
        let mut samples: Value = serde_json::from_str(SAMPLES).expect("JSON");
        let key = &mut samples["keys"][0];
        let modulus = key["n"].as_str().expect("Base64").to_owned();
        let modulus = data_encoding::BASE64URL_NOPAD.decode(modulus.as_bytes());
        let modulus = [vec![0], modulus.expect("Base64")].concat();
        key["n"] = data_encoding::BASE64URL_NOPAD.encode(&modulus).into();
        let jwt = Jwt::new(&samples.to_string(), "https://issuer.test", "leasehold");
        let token = samples["tokens"]["RS256"].as_str().expect("a token");
        assert!(jwt.expect("public keys").verify(token).is_some());
    }
}
