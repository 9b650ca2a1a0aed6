//! Brokers with locked doors on the store of a scene, and the keys to them.

use std::time::Duration;

use leasehold::Client;
use serde_json::json;

use super::{language::Language, probe::Probe, scene::Scene, wire::Failure};
use crate::{
    broker_process::{BrokerOptions, BrokerProcess},
    broker_tls::BrokerTls,
    callers::{Doors, LEEWAY, replace},
    certificates::{Authority, Signed},
    temp_dir::TempDir,
    until::until,
};

/// Whom the rules allow everything.
pub const WORKER: &str = "worker";
/// Whom the rules allow public locks.
pub const OTHER: &str = "other";
/// The worker's static token. What shows it gives it away.
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
/// Of the text of a key; less could be anywhere.
const PART_OF_KEY: usize = 32;

/// Brokers, and the files of those who connect.
#[derive(Debug)]
pub struct House {
    dir: TempDir,
    tls: BrokerTls,
    keys: Vec<String>,
    /// Who issues tokens.
    pub doors: Doors,
    /// Asks nobody who they are.
    pub encrypted: BrokerProcess,
    /// Asks for a certificate; a token goes before it.
    pub mutual: BrokerProcess,
    /// Asks for a token.
    pub tokens: BrokerProcess,
}

/// What a client shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shows<'a> {
    /// Whose certificate.
    pub certificate: Option<&'a str>,
    /// Which token.
    pub token: Option<&'a str>,
}

impl House {
    /// Starts the brokers.
    pub async fn start(scene: &Scene) -> Self {
        let tls = BrokerTls::create(true);
        let doors = Doors::new(RULES, &[(WORKER, TOKEN)]);
        let start = async |mutual: bool, asks: bool| {
            let mut options = BrokerOptions::on(scene.deployment.redis.url());
            options.env.extend(tls.settings(mutual));
            if asks {
                options.env.extend(doors.settings());
            }
            BrokerProcess::start(&options).await
        };
        let (encrypted, mutual) = (start(false, false).await, start(true, true).await);
        let tokens = start(false, true).await;
        let mut house = Self {
            dir: TempDir::new("house"),
            keys: Vec::new(),
            tls,
            doors,
            encrypted,
            mutual,
            tokens,
        };
        house.cut_keys();
        house.is_up().await;
        house
    }

    /// Returns once every broker has answered: the first time takes long on a busy machine.
    async fn is_up(&self) {
        let clients = self.tls.clients.as_ref().expect("mutual");
        let worker = clients.client(WORKER);
        for (broker, shown) in [
            (&self.encrypted, None),
            (&self.mutual, Some(&worker)),
            (&self.tokens, None),
        ] {
            let url = format!("https://{}", broker.addr());
            let tls = self.tls.trust(shown);
            until("the broker answers", async || {
                let client = Client::builder(&url).tls(tls.clone());
                client.bearer_token(TOKEN).connect().await.ok()
            })
            .await;
        }
    }

    fn cut_keys(&mut self) {
        let strangers = Authority::new("strangers");
        let clients = self.tls.clients.as_ref().expect("mutual");
        let signed = [
            (WORKER, clients.client(WORKER)),
            (OTHER, clients.client(OTHER)),
            ("stranger", strangers.client(WORKER)),
        ];
        self.write("ca.pem", &self.tls.authority.pem());
        self.write("stranger-ca.pem", &strangers.pem());
        for (name, signed) in &signed {
            self.write(&format!("{name}.pem"), &signed.pem());
            self.write(&format!("{name}.key"), &signed.key_pem());
        }
        self.keys = signed.iter().map(|(_, signed)| part_of(signed)).collect();
    }

    /// A probe that shows this, with all that it can log.
    pub async fn probe(
        &self,
        language: Language,
        broker: &BrokerProcess,
        shows: Shows<'_>,
    ) -> Result<Probe, Failure> {
        let env = self.env(broker, shows, "ca.pem");
        Probe::start_with(language.command(), &Self::borrowed(&env)).await
    }

    /// Its variables, with this authority.
    #[must_use]
    pub fn env(
        &self,
        broker: &BrokerProcess,
        shows: Shows<'_>,
        authority: &str,
    ) -> Vec<(&'static str, String)> {
        let mut env = vec![
            ("LEASEHOLD_ENDPOINTS", format!("https://{}", broker.addr())),
            ("LEASEHOLD_LOG", "trace".to_owned()),
            ("LEASEHOLD_TLS_CA", self.path(authority)),
        ];
        if let Some(name) = shows.certificate {
            env.push(("LEASEHOLD_TLS_CERT", self.path(&format!("{name}.pem"))));
            env.push(("LEASEHOLD_TLS_KEY", self.path(&format!("{name}.key"))));
        }
        let token = shows.token.map(str::to_owned);
        env.extend(token.map(|token| ("LEASEHOLD_BEARER_TOKEN", token)));
        env
    }

    /// Those of one that shows the token of the file.
    #[must_use]
    pub fn env_of_file(&self, broker: &BrokerProcess) -> Vec<(&'static str, String)> {
        let mut env = self.env(broker, Shows::default(), "ca.pem");
        env.push(("LEASEHOLD_BEARER_TOKEN_FILE", self.path("token")));
        env
    }

    /// As probes are given them.
    #[must_use]
    pub fn borrowed<'a>(env: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
        let variables = env.iter();
        variables.map(|(name, value)| (*name, &**value)).collect()
    }

    /// Puts another token into the file, as a whole.
    pub fn set_token(&self, token: &str) {
        // As many editors and all mounts of secrets end it.
        replace(&self.dir.path().join("token"), &format!("{token}\n"));
    }

    /// A token of the worker's that brokers accept for so long.
    #[must_use]
    pub fn living_for(&self, time: Duration) -> String {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("a short time");
        let good_for = seconds(time) - seconds(LEEWAY);
        self.doors.issuer.token(WORKER, good_for, json!({}))
    }

    /// The secrets, and this token, that are in a text: what stands there of them.
    #[must_use]
    pub fn secrets_in(&self, text: &str, token: Option<&str>) -> Vec<String> {
        // Of a signed token its signature is as secret as all of it.
        let token = token.map(|token| token.rsplit('.').next().unwrap_or(token));
        let secrets = self.keys.iter().map(String::as_str).chain(token);
        let shown = secrets.filter(|secret| text.contains(*secret));
        shown.map(str::to_owned).collect()
    }

    /// The path of one of the files.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        let path = self.dir.path().join(file);
        path.to_str().expect("a plain path").to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).expect("write a file");
    }
}

/// Enough of a key to know it by.
fn part_of(signed: &Signed) -> String {
    let pem = signed.key_pem();
    let body = pem.lines().nth(1).expect("a key is longer");
    // All keys of a kind begin alike.
    body[body.len() - PART_OF_KEY..].to_owned()
}
