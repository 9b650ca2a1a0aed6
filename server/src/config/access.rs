//! Settings `tls.*`, `authentication.*` and `authorization.*`, and the connection limits.

use std::{net::SocketAddr, time::Duration};

use super::{
    reader::Reader,
    setting_def::{SettingDef, ValueType, boolean, duration, number, setting, text},
    store::{protected_file, secret_file},
};
use crate::access::{JwtSource, KeySet, KeySetUrl, RulesSource};
use crate::transport::{ConnectionLimits, TlsFiles};

const CERT: SettingDef = setting(
    "tls.cert_file",
    "Certificate chain of the broker (PEM); if set, both listeners require TLS 1.3",
);
const KEY: SettingDef = setting(
    "tls.key_file",
    "Private key of the broker's certificate (PEM)",
);
const CLIENT_CA: SettingDef = setting(
    "tls.client_ca_file",
    "Certificate authorities that sign client certificates (PEM); if set, every client must \
     present one",
);
const TOKENS: SettingDef = setting(
    "authentication.tokens_file",
    "Static tokens: a name and the SHA-256 of a token on each line",
);
const JWT_KEYS: SettingDef = setting(
    "authentication.jwt_keys_file",
    "Keys that verify JSON Web Tokens, as a JSON Web Key Set",
);
const JWT_URL: SettingDef = setting(
    "authentication.jwt_keys_url",
    "Address of the JSON Web Key Set, such as the issuer's jwks_uri; fetched again every 5 minutes",
);
const JWT_CA: SettingDef = setting(
    "authentication.jwt_keys_ca_file",
    "Certificate authorities for jwt_keys_url (PEM); default: the system trust store",
);
const JWT_MAX_AGE: SettingDef = setting(
    "authentication.jwt_keys_max_age",
    "Time for which the last fetched keys are used while jwt_keys_url cannot be fetched",
)
.with_default("24h");
const JWT_ISSUER: SettingDef = setting("authentication.jwt_issuer", "Required iss claim of tokens");
const JWT_AUDIENCE: SettingDef = setting(
    "authentication.jwt_audience",
    "Required aud claim of tokens",
);
const POLICY: SettingDef = setting(
    "authorization.policy_file",
    "Authorization policy (TOML); if set, callers must authenticate",
);
const INSECURE: &str = "server.insecure";
const CONNECTIONS_MAX: u32 = 1_000_000;
const MAX_AGE_MIN: Duration = Duration::from_secs(10);
const MAX_AGE_MAX: Duration = Duration::from_secs(30 * 86_400);

/// Access settings of both listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Sources of credentials and of the policy.
    pub rules: RulesSource,
    /// Certificate files, or `None` for plaintext.
    pub tls: Option<TlsFiles>,
    /// Connection limits of each listener.
    pub limits: ConnectionLimits,
}

impl Access {
    /// Reads the access settings. Plaintext is allowed only on loopback addresses, unless
    /// `server.insecure` is set.
    pub(super) fn read(reader: &mut Reader, listeners: [(&'static str, SocketAddr); 2]) -> Self {
        let about = "Serve without TLS on addresses that other machines can reach";
        let insecure = reader.read(setting(INSECURE, about).with_default("false"), boolean());
        let about =
            "Maximum number of open connections of a listener; further connections are closed";
        let total = setting("server.max_connections", about).with_default("20000");
        let about = "Maximum number of open connections from one address; a proxy has one address \
            for all its clients";
        let per_address = setting("server.max_connections_per_address", about).with_default("1000");
        let about = "Maximum number of open connections with client certificates of one name";
        let per_identity =
            setting("server.max_connections_per_identity", about).with_default("1000");
        let counted = || number(1, CONNECTIONS_MAX);
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
                    "other machines can reach this address: set tls.cert_file and tls.key_file, or \
                     --insecure where the network itself is trusted",
                );
            }
        }
        let rules = rules(
            reader,
            tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
        );
        if tls.is_none() && !is_set && rules.has_bearer_tokens() {
            for (key, _) in reachable {
                let message = "other machines can reach this address, and bearer tokens can be \
                    read on the network: set tls.cert_file and tls.key_file";
                reader.warn(key, message);
            }
        }
        Self { rules, tls, limits }
    }
}

fn rules(reader: &mut Reader, has_certificates: bool) -> RulesSource {
    let (tokens, keys) = (protected_file(reader, TOKENS), key_set(reader));
    let (issuer, audience) = (
        reader.find(JWT_ISSUER, &text("a text")),
        reader.find(JWT_AUDIENCE, &text("a text")),
    );
    let policy = protected_file(reader, POLICY);
    let has_keys = [JWT_KEYS, JWT_URL].map(|key| reader.is_set(key.name));
    let are_set = [JWT_ISSUER, JWT_AUDIENCE].map(|key| reader.is_set(key.name));
    let are_set = [has_keys.contains(&true), are_set[0], are_set[1]];
    if are_set.contains(&true) && are_set.contains(&false) {
        let message = "authentication.jwt_keys_file (or jwt_keys_url), jwt_issuer and jwt_audience \
            belong together: set all three";
        reader.problem(JWT_KEYS.name, message);
    }
    let has_authentication = has_certificates || are_set[0] || reader.is_set(TOKENS.name);
    match (has_authentication, reader.is_set(POLICY.name)) {
        (true, false) => reader.problem(
            POLICY.name,
            "is required if callers authenticate: without a policy every request is denied",
        ),
        (false, true) => reader.problem(
            POLICY.name,
            "is not used while callers cannot authenticate: set tls.client_ca_file, \
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
    let source = RulesSource {
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
    let (file, ca) = (
        protected_file(reader, JWT_KEYS),
        protected_file(reader, JWT_CA),
    );
    let url = reader.find(JWT_URL, &https());
    let max_age = reader.read(JWT_MAX_AGE, duration(MAX_AGE_MIN, MAX_AGE_MAX));
    match (file, url) {
        (Some(_), Some(_)) => {
            reader.problem(
                JWT_URL.name,
                "conflicts with authentication.jwt_keys_file: set only one of them",
            );
            None
        }
        (None, Some(url)) => Some(KeySet::Url {
            url: KeySetUrl { url, ca },
            max_age,
        }),
        (file, None) => {
            if ca.is_some() {
                let message = "is not used without authentication.jwt_keys_url";
                reader.problem(JWT_CA.name, message);
            }
            file.map(KeySet::File)
        }
    }
}

fn tls(reader: &mut Reader) -> Option<TlsFiles> {
    let (cert, key) = (protected_file(reader, CERT), secret_file(reader, KEY));
    let client_ca = protected_file(reader, CLIENT_CA);
    let is_set = [CERT, KEY, CLIENT_CA].map(|key| reader.is_set(key.name));
    if is_set[0] != is_set[1] {
        let message = "tls.cert_file and tls.key_file belong together: set both";
        reader.problem(CERT.name, message);
    } else if is_set[2] && !is_set[0] {
        let message = "is not used without TLS: set tls.cert_file and tls.key_file";
        reader.problem(CLIENT_CA.name, message);
    }
    let are_read = [&cert, &key, &client_ca].map(Option::is_some) == is_set;
    let files = TlsFiles {
        cert: cert?,
        key: key?,
        client_ca,
    };
    if let Some(problem) = files.check().err().filter(|_| are_read) {
        reader.problem(CERT.name, &problem);
    }
    Some(files)
}

fn https() -> ValueType<String> {
    let schema = serde_json::json!({ "type": "string", "pattern": "^https://." });
    ValueType::new("an https address", schema, |text| {
        let is_https = text.len() > "https://".len() && text.starts_with("https://");
        is_https.then(|| text.to_owned())
    })
}
