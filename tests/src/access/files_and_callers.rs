//! Brokers that authenticate callers, and callers with static and signed tokens.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, SystemTime},
};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use leasehold_proto::v1::{
    admin_service_client::AdminServiceClient, inspection_service_client::InspectionServiceClient,
    lock_service_client::LockServiceClient,
};
use rcgen::KeyPair;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{broker::process::BrokerOptions, process::temp_dir::TempDir};

/// The issuer of signed tokens.
pub const ISSUER: &str = "https://issuer.test";
/// The audience of signed tokens.
pub const AUDIENCE: &str = "leasehold";

/// Files with tokens, keys and rules.
#[derive(Debug)]
pub struct AccessFiles {
    dir: TempDir,
    has_tokens: bool,
    /// The issuer whose keys brokers accept at first.
    pub issuer: Issuer,
}

/// An issuer of signed tokens.
#[derive(Debug)]
pub struct Issuer {
    key: KeyPair,
    id: String,
}

impl AccessFiles {
    /// Creates the files with these rules and these static tokens, given as names and secrets.
    #[must_use]
    pub fn new(policy: &str, tokens: &[(&str, &str)]) -> Self {
        let access_files = Self {
            dir: TempDir::new("doors"),
            has_tokens: !tokens.is_empty(),
            issuer: Issuer::new("key-1"),
        };
        access_files.write("policy.toml", policy);
        access_files.set_tokens(tokens);
        access_files.set_keys(&[&access_files.issuer]);
        access_files
    }

    /// Replaces the static tokens.
    pub fn set_tokens(&self, tokens: &[(&str, &str)]) {
        let line = |(name, token): &(&str, &str)| {
            let sum = Sha256::digest(token.as_bytes());
            format!("{name} {}\n", HEXLOWER.encode(&sum))
        };
        let lines: String = tokens.iter().map(line).collect();
        self.write("tokens", &lines);
    }

    /// Replaces the key set by this text.
    pub fn set_key_set_text(&self, text: &str) {
        self.write("keys.json", text);
    }

    /// Replaces the key set by the keys of these issuers.
    pub fn set_keys(&self, issuers: &[&Issuer]) {
        self.write("keys.json", &key_set(issuers));
    }

    pub fn set_policy(&self, policy: &str) {
        self.write("policy.toml", policy);
    }

    /// Returns the options of a broker on this store with these files.
    #[must_use]
    pub fn options(&self, store: String) -> BrokerOptions {
        let mut options = BrokerOptions::for_store(store);
        options.env.extend(self.settings());
        options
    }

    /// Returns the settings as environment variables.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, String)> {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        // A broker rejects an empty file of tokens at its start.
        let tokens = self.has_tokens.then(|| ("TOKENS_FILE", path("tokens")));
        let tokens =
            tokens.map(|(key, value)| (format!("LEASEHOLD__AUTHENTICATION__{key}"), value));
        let others = [
            ("AUTHENTICATION__JWT_KEYS_FILE", path("keys.json")),
            ("AUTHENTICATION__JWT_ISSUER", ISSUER.to_owned()),
            ("AUTHENTICATION__JWT_AUDIENCE", AUDIENCE.to_owned()),
            ("AUTHORIZATION__POLICY_FILE", path("policy.toml")),
        ]
        .map(|(key, value)| (format!("LEASEHOLD__{key}"), value));
        tokens.into_iter().chain(others).collect()
    }

    fn write(&self, file: &str, text: &str) {
        replace_file(&self.dir.path().join(file), text);
    }
}

/// Replaces a file atomically, so that a concurrent reader gets the old or the new text.
pub fn replace_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("write a file");
    fs::rename(&new, path).expect("the same folder");
}

/// Returns a key set with the public keys of these issuers.
#[must_use]
pub fn key_set(issuers: &[&Issuer]) -> String {
    let keys: Vec<_> = issuers.iter().map(|issuer| issuer.public_jwk()).collect();
    json!({ "keys": keys }).to_string()
}

impl Issuer {
    /// Creates an issuer with a new key of this id.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self {
            key: KeyPair::generate().expect("a key"),
            id: id.to_owned(),
        }
    }

    /// Returns the public key as a JWK.
    #[must_use]
    pub fn public_jwk(&self) -> Value {
        let raw = self.key.public_key_raw();
        let half = |from: usize| BASE64URL_NOPAD.encode(&raw[from..from + 32]);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": half(1), "y": half(33),
        })
    }

    /// Returns a token with the usual claims, valid for `good_for_s`. `other` replaces claims, and
    /// removes those that are null.
    #[must_use]
    pub fn token(&self, subject: &str, good_for_s: i64, other: Value) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(now.expect("after 1970").as_secs()).expect("before the end");
        let mut claims = json!({
            "iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": now + good_for_s,
        });
        let (Value::Object(claims_of), Value::Object(other)) = (&mut claims, other) else {
            panic!("claims are an object");
        };
        for (name, value) in other {
            if value.is_null() {
                claims_of.remove(&name);
            } else {
                claims_of.insert(name, value);
            }
        }
        self.sign(&claims)
    }

    /// Returns the usual token of a subject, with additional header fields.
    #[must_use]
    pub fn token_with_header(&self, subject: &str, header: &Value) -> String {
        let claims = json!({
            "iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": 4_000_000_000_i64,
        });
        self.sign_with(header, &claims)
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({ "typ": "JWT" }), claims)
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let mut header = header.clone();
        header["alg"] = "ES256".into();
        header["kid"] = self.id.clone().into();
        let encode = |part: &Value| BASE64URL_NOPAD.encode(part.to_string().as_bytes());
        let message = format!("{}.{}", encode(&header), encode(claims));
        let (scheme, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::from_pkcs8(scheme, &self.key.serialize_der(), &random);
        let signature = key.expect("a key").sign(&random, message.as_bytes());
        let signature = BASE64URL_NOPAD.encode(signature.expect("it signs").as_ref());
        format!("{message}.{signature}")
    }
}

/// An interceptor that adds a bearer token to every call.
#[derive(Debug, Clone)]
pub struct BearerTokenInterceptor(pub Option<String>);

impl Interceptor for BearerTokenInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let value = format!("Bearer {token}").parse().expect("a token of ASCII");
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

type AuthenticatedChannel = InterceptedService<Channel, BearerTokenInterceptor>;

/// The services of a broker, called with one token.
#[derive(Debug, Clone)]
pub struct Caller {
    pub locks: LockServiceClient<AuthenticatedChannel>,
    pub inspection: InspectionServiceClient<AuthenticatedChannel>,
    pub admin: AdminServiceClient<AuthenticatedChannel>,
}

impl Caller {
    /// Creates a caller with its own local address, because brokers count authentication
    /// failures by address.
    #[must_use]
    pub fn new(api: SocketAddr, admin: SocketAddr, token: Option<&str>) -> Self {
        let shows = BearerTokenInterceptor(token.map(str::to_owned));
        let from = unused_loopback_address();
        let channel = |addr: SocketAddr| {
            let endpoint = Endpoint::from_shared(format!("http://{addr}"));
            let endpoint = endpoint
                .expect("a socket address")
                .local_address(Some(from));
            endpoint.connect_lazy()
        };
        let api = channel(api);
        Self {
            locks: LockServiceClient::with_interceptor(api.clone(), shows.clone()),
            inspection: InspectionServiceClient::with_interceptor(api, shows.clone()),
            admin: AdminServiceClient::with_interceptor(channel(admin), shows),
        }
    }
}

/// Returns a loopback address that is unused in this process.
fn unused_loopback_address() -> IpAddr {
    static LAST: AtomicU16 = AtomicU16::new(256);
    let [high, low] = LAST.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low).into()
}

/// Time after its expiry for which a token is still accepted, because clocks may differ.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(30);
