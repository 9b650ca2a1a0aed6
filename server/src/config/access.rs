//! Who may connect: certificates, and how many connections there may be.

use std::{net::SocketAddr, time::Duration};

use super::{
    key::{Key, Kind, key, number, switch, time},
    reader::Reader,
    store::{readable, secret},
};
use crate::access::{JwtSource, KeySet, KeySetUrl, Source};
use crate::transport::{ConnectionLimits, TlsFiles};

const CERT: Key = key(
    "tls.cert_file",
    "The broker's certificate (PEM), with those in between: both listeners then speak TLS 1.3 only",
);
const KEY: Key = key(
    "tls.key_file",
    "The private key of the broker's certificate (PEM)",
);
const CLIENT_CA: Key = key(
    "tls.client_ca_file",
    "Who signs the certificates that clients must show (PEM); without it they need none",
);
const TOKENS: Key = key(
    "authentication.tokens_file",
    "Static tokens: a name and the SHA-256 of a token on each line",
);
const JWT_KEYS: Key = key(
    "authentication.jwt_keys_file",
    "The keys that sign JSON Web Tokens, as a JSON Web Key Set",
);
const JWT_URL: Key = key(
    "authentication.jwt_keys_url",
    "The same at an https address, such as the issuer's jwks_uri; it is fetched again every 5 minutes",
);
const JWT_CA: Key = key(
    "authentication.jwt_keys_ca_file",
    "Who signs the certificate of that address (PEM); else whom the machine trusts",
);
const JWT_MAX_AGE: Key = key(
    "authentication.jwt_keys_max_age",
    "How long the last keys are used while that address gives no others",
)
.or("24h");
const JWT_ISSUER: Key = key("authentication.jwt_issuer", "The iss of tokens");
const JWT_AUDIENCE: Key = key("authentication.jwt_audience", "The aud of tokens");
const POLICY: Key = key(
    "authorization.policy_file",
    "Who may do what (TOML); with it callers must show who they are",
);
const INSECURE: &str = "server.insecure";
const CONNECTIONS_MOST: u32 = 1_000_000;
const MAX_AGE_MIN: Duration = Duration::from_secs(10);
const MAX_AGE_MAX: Duration = Duration::from_secs(30 * 86_400);

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// How callers are known, and what they may do.
    pub rules: Source,
    /// `None`: plaintext.
    pub tls: Option<TlsFiles>,
    /// For each listener.
    pub limits: ConnectionLimits,
}

impl Access {
    /// Plaintext is for addresses of this machine, unless it is asked for.
    pub(super) fn read(reader: &mut Reader, listeners: [(&'static str, SocketAddr); 2]) -> Self {
        let about = "Serve without TLS where others than this machine can connect";
        let insecure = reader.read(key(INSECURE, about).or("false"), switch());
        let about = "Connections to a listener at once; what comes then is closed";
        let total = key("server.max_connections", about).or("20000");
        let about = "The same from one address; a proxy has one for all its clients";
        let per_address = key("server.max_connections_per_address", about).or("1000");
        let about = "The same with client certificates of one name";
        let per_identity = key("server.max_connections_per_identity", about).or("1000");
        let counted = || number(1, CONNECTIONS_MOST);
        let limits = ConnectionLimits {
            total: reader.read(total, counted()),
            per_address: reader.read(per_address, counted()),
            per_identity: reader.read(per_identity, counted()),
        };
        let tls = tls(reader);
        let is_set = reader.is_set(CERT.name) || reader.is_set(KEY.name);
        let is_reachable = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
        let reachable = listeners
            .into_iter()
            .filter(|(_, address)| is_reachable(*address));
        let reachable: Vec<_> = reachable.collect();
        if tls.is_none() && !is_set && !insecure {
            for (key, _) in &reachable {
                reader.problem(
                    key,
                    "others than this machine can connect there: set tls.cert_file and \
                     tls.key_file, or --insecure where the network itself is trusted",
                );
            }
        }
        let rules = rules(
            reader,
            tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
        );
        if tls.is_none() && !is_set && rules.has_bearer_tokens() {
            for (key, _) in reachable {
                let why = "others than this machine can connect there, and bearer tokens can be read on \
                           the network: set tls.cert_file and tls.key_file";
                reader.warn(key, why);
            }
        }
        Self { rules, tls, limits }
    }
}

fn rules(reader: &mut Reader, has_certificates: bool) -> Source {
    let (tokens, keys) = (readable(reader, TOKENS), key_set(reader));
    let (issuer, audience) = (
        reader.find(JWT_ISSUER, &name()),
        reader.find(JWT_AUDIENCE, &name()),
    );
    let policy = readable(reader, POLICY);
    let has_keys = [JWT_KEYS, JWT_URL].map(|key| reader.is_set(key.name));
    let are_set = [JWT_ISSUER, JWT_AUDIENCE].map(|key| reader.is_set(key.name));
    let are_set = [has_keys.contains(&true), are_set[0], are_set[1]];
    if are_set.contains(&true) && are_set.contains(&false) {
        let why = "authentication.jwt_keys_file (or jwt_keys_url), jwt_issuer and jwt_audience \
                   belong together: give all three";
        reader.problem(JWT_KEYS.name, why);
    }
    let asks = has_certificates || are_set[0] || reader.is_set(TOKENS.name);
    match (asks, reader.is_set(POLICY.name)) {
        (true, false) => reader.problem(
            POLICY.name,
            "is required where callers show who they are: without it nobody may do anything",
        ),
        (false, true) => reader.problem(
            POLICY.name,
            "is not used while nobody can show who they are: set tls.client_ca_file, \
             authentication.tokens_file or authentication.jwt_keys_file",
        ),
        (true, true) | (false, false) => {}
    }
    let jwt = keys.zip(issuer).zip(audience);
    let jwt = jwt.map(|((keys, issuer), audience)| JwtSource {
        keys,
        issuer,
        audience,
    });
    let source = Source {
        tokens,
        jwt,
        policy,
    };
    if let Err(problems) = source.load() {
        for problem in problems {
            reader.problem(POLICY.name, &problem);
        }
    }
    source
}

fn key_set(reader: &mut Reader) -> Option<KeySet> {
    let (file, ca) = (readable(reader, JWT_KEYS), readable(reader, JWT_CA));
    let url = reader.find(JWT_URL, &https());
    let max_age = reader.read(JWT_MAX_AGE, time(MAX_AGE_MIN, MAX_AGE_MAX));
    match (file, url) {
        (Some(_), Some(_)) => {
            reader.problem(
                JWT_URL.name,
                "there is authentication.jwt_keys_file: give one",
            );
            None
        }
        (None, Some(url)) => Some(KeySet::Url {
            url: KeySetUrl { url, ca },
            max_age,
        }),
        (file, None) => {
            if ca.is_some() {
                let why = "is not used without authentication.jwt_keys_url";
                reader.problem(JWT_CA.name, why);
            }
            file.map(KeySet::File)
        }
    }
}

fn tls(reader: &mut Reader) -> Option<TlsFiles> {
    let (cert, key) = (readable(reader, CERT), secret(reader, KEY));
    let client_ca = readable(reader, CLIENT_CA);
    let is_set = [CERT, KEY, CLIENT_CA].map(|key| reader.is_set(key.name));
    if is_set[0] != is_set[1] {
        let why = "tls.cert_file and tls.key_file belong together: give both";
        reader.problem(CERT.name, why);
    } else if is_set[2] && !is_set[0] {
        let why = "is not used without TLS: set tls.cert_file and tls.key_file";
        reader.problem(CLIENT_CA.name, why);
    }
    let are_read = [&cert, &key, &client_ca].map(Option::is_some) == is_set;
    let files = TlsFiles {
        cert: cert?,
        key: key?,
        client_ca,
    };
    if let Some(why) = files.check().err().filter(|_| are_read) {
        reader.problem(CERT.name, &why);
    }
    Some(files)
}

fn https() -> Kind<String> {
    let schema = serde_json::json!({ "type": "string", "pattern": "^https://." });
    Kind::new("an https address", schema, |text| {
        let is_one = text.len() > "https://".len() && text.starts_with("https://");
        is_one.then(|| text.to_owned())
    })
}

fn name() -> Kind<String> {
    let schema = serde_json::json!({ "type": "string", "minLength": 1 });
    Kind::new("a text", schema, |text| {
        (!text.is_empty()).then(|| text.to_owned())
    })
}
