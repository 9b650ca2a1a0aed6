//! Brokers that require TLS, certificates or tokens, on the store of a scene, and the credentials
//! for them.

use std::time::Duration;

use leasehold::Client;
use serde_json::json;

use super::{language::Language, messages::Failure, probe::Probe, scenario::ScenarioFixture};
use crate::{
    access::files_and_callers::{AccessFiles, TOKEN_LEEWAY, replace_file},
    broker::{
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    net::certificates::{Authority, SignedCertificate},
    process::temp_dir::TempDir,
    until::until,
};

/// Name of the caller that may acquire all locks.
pub const WORKER: &str = "worker";
/// Name of the caller that may acquire public locks.
pub const PUBLIC_CALLER: &str = "other";
/// The worker's static token. Its occurrence in an output is a leak.
pub const TOKEN: &str = "canary-b09e4f1d7c6a4e2f";
const RULES: &str = r#"
    [[rule]]
    callers = ["spiffe://leasehold.test/worker", "jwt:worker", "token:worker"]
    verbs = ["acquire", "observe"]
    [[rule]]
    callers = ["spiffe://leasehold.test/other", "jwt:other"]
    verbs = ["acquire"]
    names = ["public/*"]
"#;
/// Number of characters by which a key is recognized. Fewer could occur by chance.
const KEY_FRAGMENT_LENGTH: usize = 32;

/// The brokers, and the credential files of their clients.
#[derive(Debug)]
pub struct SecuredBrokers {
    dir: TempDir,
    tls: BrokerTls,
    keys: Vec<String>,
    /// The issuer of signed tokens.
    pub access_files: AccessFiles,
    /// A broker with TLS that does not authenticate clients.
    pub tls_broker: BrokerProcess,
    /// A broker that requires a client certificate. A token takes precedence over the certificate.
    pub mutual_tls_broker: BrokerProcess,
    /// A broker that requires a token.
    pub token_broker: BrokerProcess,
}

/// The credentials of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientCredentials<'a> {
    /// Name of the caller in the client certificate.
    pub certificate: Option<&'a str>,
    pub token: Option<&'a str>,
}

impl SecuredBrokers {
    pub async fn start(fixture: &ScenarioFixture) -> Self {
        let tls = BrokerTls::create(true);
        let access_files = AccessFiles::new(RULES, &[(WORKER, TOKEN)]);
        let start = async |mutual: bool, asks: bool| {
            let mut options = BrokerOptions::for_store(fixture.deployment.redis.url());
            options.env.extend(tls.settings(mutual));
            if asks {
                options.env.extend(access_files.settings());
            }
            BrokerProcess::start(&options).await
        };
        let (encrypted, mutual) = (start(false, false).await, start(true, true).await);
        let tokens = start(false, true).await;
        let mut secured = Self {
            dir: TempDir::new("house"),
            keys: Vec::new(),
            tls,
            access_files,
            tls_broker: encrypted,
            mutual_tls_broker: mutual,
            token_broker: tokens,
        };
        secured.create_keys();
        secured.wait_until_responding().await;
        secured
    }

    /// Returns once every broker has responded, because the first response takes long on a busy
    /// machine.
    async fn wait_until_responding(&self) {
        let clients = self.tls.client_authority.as_ref().expect("mutual");
        let worker = clients.client(WORKER);
        for (broker, found) in [
            (&self.tls_broker, None),
            (&self.mutual_tls_broker, Some(&worker)),
            (&self.token_broker, None),
        ] {
            let url = format!("https://{}", broker.addr());
            let tls = self.tls.sdk_client_config(found);
            until("the broker answers", async || {
                let client = Client::builder(&url).tls(tls.clone());
                client.bearer_token(TOKEN).connect().await.ok()
            })
            .await;
        }
    }

    fn create_keys(&mut self) {
        let strangers = Authority::new("strangers");
        let clients = self.tls.client_authority.as_ref().expect("mutual");
        let signed = [
            (WORKER, clients.client(WORKER)),
            (PUBLIC_CALLER, clients.client(PUBLIC_CALLER)),
            ("stranger", strangers.client(WORKER)),
        ];
        self.write("ca.pem", &self.tls.authority.pem());
        self.write("stranger-ca.pem", &strangers.pem());
        for (name, signed) in &signed {
            self.write(&format!("{name}.pem"), &signed.pem());
            self.write(&format!("{name}.key"), &signed.key_pem());
        }
        self.keys = signed
            .iter()
            .map(|(_, signed)| key_fragment(signed))
            .collect();
    }

    /// Starts a probe with these credentials, which logs at trace level.
    pub async fn probe(
        &self,
        language: Language,
        broker: &BrokerProcess,
        credentials: ClientCredentials<'_>,
    ) -> Result<Probe, Failure> {
        let env = self.env(broker, credentials, "ca.pem");
        Probe::start_with(language.command(), &Self::borrow_env(&env)).await
    }

    /// Returns the environment variables of such a probe, with the authority in this file.
    #[must_use]
    pub fn env(
        &self,
        broker: &BrokerProcess,
        credentials: ClientCredentials<'_>,
        authority: &str,
    ) -> Vec<(&'static str, String)> {
        let mut env = vec![
            ("LEASEHOLD_ENDPOINTS", format!("https://{}", broker.addr())),
            ("LEASEHOLD_LOG", "trace".to_owned()),
            ("LEASEHOLD_TLS_CA", self.path(authority)),
        ];
        if let Some(name) = credentials.certificate {
            env.push(("LEASEHOLD_TLS_CERT", self.path(&format!("{name}.pem"))));
            env.push(("LEASEHOLD_TLS_KEY", self.path(&format!("{name}.key"))));
        }
        let token = credentials.token.map(str::to_owned);
        env.extend(token.map(|token| ("LEASEHOLD_BEARER_TOKEN", token)));
        env
    }

    /// Returns the environment variables of a probe that reads its token from the file.
    #[must_use]
    pub fn env_with_token_file(&self, broker: &BrokerProcess) -> Vec<(&'static str, String)> {
        let mut env = self.env(broker, ClientCredentials::default(), "ca.pem");
        env.push(("LEASEHOLD_BEARER_TOKEN_FILE", self.path("token")));
        env
    }

    /// Returns the variables as borrowed strings.
    #[must_use]
    pub fn borrow_env<'a>(env: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
        let variables = env.iter();
        variables.map(|(name, value)| (*name, &**value)).collect()
    }

    /// Replaces the token in the file atomically.
    pub fn set_token(&self, token: &str) {
        // Many editors and all mounts of secrets end the file with a newline.
        replace_file(&self.dir.path().join("token"), &format!("{token}\n"));
    }

    /// Returns a token of the worker that brokers accept for `time`.
    #[must_use]
    pub fn token_valid_for(&self, time: Duration) -> String {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("a short time");
        let good_for = seconds(time) - seconds(TOKEN_LEEWAY);
        self.access_files.issuer.token(WORKER, good_for, json!({}))
    }

    /// Returns the secrets that occur in a text, among the keys and this token.
    #[must_use]
    pub fn secrets_in(&self, text: &str, token: Option<&str>) -> Vec<String> {
        // The signature of a signed token is as secret as the whole token.
        let token = token.map(|token| token.rsplit('.').next().unwrap_or(token));
        let secrets = self.keys.iter().map(String::as_str).chain(token);
        let found = secrets.filter(|secret| text.contains(*secret));
        found.map(str::to_owned).collect()
    }

    /// Returns the path of one of the files.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        let path = self.dir.path().join(file);
        path.to_str().expect("a plain path").to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).expect("write a file");
    }
}

/// Returns a part of a key that identifies it.
fn key_fragment(signed: &SignedCertificate) -> String {
    let pem = signed.key_pem();
    let body = pem.lines().nth(1).expect("a key is longer");
    // All keys of a kind begin alike.
    body[body.len() - KEY_FRAGMENT_LENGTH..].to_owned()
}
