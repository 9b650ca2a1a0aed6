//! Brokers that ask who calls, and callers with tokens: static ones, and signed ones.

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

use crate::{broker_process::BrokerOptions, temp_dir::TempDir};

/// Who signs tokens, and for whom.
pub const ISSUER: &str = "https://issuer.test";
/// The brokers.
pub const AUDIENCE: &str = "leasehold";

/// Files of tokens, keys and rules.
#[derive(Debug)]
pub struct Doors {
    dir: TempDir,
    has_tokens: bool,
    /// What the issuer signs with.
    pub issuer: Issuer,
}

/// Signs tokens.
#[derive(Debug)]
pub struct Issuer {
    key: KeyPair,
    id: String,
}

impl Doors {
    /// With these rules, and these static tokens: names and secrets.
    #[must_use]
    pub fn new(policy: &str, tokens: &[(&str, &str)]) -> Self {
        let doors = Self {
            dir: TempDir::new("doors"),
            has_tokens: !tokens.is_empty(),
            issuer: Issuer::new("key-1"),
        };
        doors.write("policy.toml", policy);
        doors.set_tokens(tokens);
        doors.set_keys(&[&doors.issuer]);
        doors
    }

    /// Puts other static tokens in the place of the old ones.
    pub fn set_tokens(&self, tokens: &[(&str, &str)]) {
        let line = |(name, token): &(&str, &str)| {
            let sum = Sha256::digest(token.as_bytes());
            format!("{name} {}\n", HEXLOWER.encode(&sum))
        };
        let lines: String = tokens.iter().map(line).collect();
        self.write("tokens", &lines);
    }

    /// Puts another text in the place of the key set.
    pub fn set_key_set(&self, text: &str) {
        self.write("keys.json", text);
    }

    /// Has the tokens of these issuers accepted, and no others.
    pub fn set_keys(&self, issuers: &[&Issuer]) {
        self.write("keys.json", &key_set(issuers));
    }

    /// Puts another policy in the place of the old one.
    pub fn set_policy(&self, policy: &str) {
        self.write("policy.toml", policy);
    }

    /// A broker on this store that has these doors.
    #[must_use]
    pub fn options(&self, store: String) -> BrokerOptions {
        let mut options = BrokerOptions::on(store);
        options.env.extend(self.settings());
        options
    }

    /// As environment variables.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, String)> {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        // A broker does not start with a file of no tokens.
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
        replace(&self.dir.path().join(file), text);
    }
}

/// Puts another file in the place of the old one, as a whole: who reads it meanwhile has one or the
/// other.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("write a file");
    fs::rename(&new, path).expect("the same folder");
}

/// The public keys of these issuers.
#[must_use]
pub fn key_set(issuers: &[&Issuer]) -> String {
    let keys: Vec<_> = issuers.iter().map(|issuer| issuer.public()).collect();
    json!({ "keys": keys }).to_string()
}

impl Issuer {
    /// One with a key of its own, of this name.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self {
            key: KeyPair::generate().expect("a key"),
            id: id.to_owned(),
        }
    }

    /// Its public key, as brokers get it.
    #[must_use]
    pub fn public(&self) -> Value {
        let raw = self.key.public_key_raw();
        let half = |from: usize| BASE64URL_NOPAD.encode(&raw[from..from + 32]);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": half(1), "y": half(33),
        })
    }

    /// A token with the usual claims, good for so long, with these claims in their place.
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

    /// The usual token of a subject, with a header that also says this.
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

/// Shows a token at every call.
#[derive(Debug, Clone)]
pub struct Shows(pub Option<String>);

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let value = format!("Bearer {token}").parse().expect("a token of ASCII");
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

type Shown = InterceptedService<Channel, Shows>;

/// The services of a broker for somebody with that token.
#[derive(Debug, Clone)]
pub struct Caller {
    /// LockService.
    pub locks: LockServiceClient<Shown>,
    /// InspectionService.
    pub looks: InspectionServiceClient<Shown>,
    /// AdminService.
    pub admin: AdminServiceClient<Shown>,
}

impl Caller {
    /// At these addresses, from one of its own: brokers count failures by that.
    #[must_use]
    pub fn new(api: SocketAddr, admin: SocketAddr, token: Option<&str>) -> Self {
        let shows = Shows(token.map(str::to_owned));
        let from = next_address();
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
            looks: InspectionServiceClient::with_interceptor(api, shows.clone()),
            admin: AdminServiceClient::with_interceptor(channel(admin), shows),
        }
    }
}

/// Of this machine, and of nobody else in this process.
fn next_address() -> IpAddr {
    static LAST: AtomicU16 = AtomicU16::new(256);
    let [high, low] = LAST.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low).into()
}

/// Behind its end a token is good for so long: clocks may differ.
pub const LEEWAY: Duration = Duration::from_secs(30);
