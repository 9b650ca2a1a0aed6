//! The files that rules are read from, and the key set on the web: again whenever they change.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{gate::Rules, jwt::Jwt, key_set::KeySetUrl, policy::Policy, tokens::Tokens};
use crate::{
    files::Files,
    metrics::{File, Metrics},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How old a key set from the web may become.
const FETCH_EVERY: Duration = Duration::from_secs(300);
/// How soon it is fetched again for a token that names a key that is not in it.
const FETCH_LEAST: Duration = Duration::from_secs(60);
/// How soon after it could not be fetched, while there is none.
const FETCH_AGAIN: Duration = Duration::from_secs(5);

/// Where rules come from. Without a policy nobody is asked who calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Static tokens.
    pub tokens: Option<PathBuf>,
    /// Signed tokens.
    pub jwt: Option<JwtSource>,
    /// Who may do what.
    pub policy: Option<PathBuf>,
}

/// What signed tokens are known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSource {
    /// The issuer's keys.
    pub keys: KeySet,
    /// `iss`.
    pub issuer: String,
    /// `aud`.
    pub audience: String,
}

/// Where a key set is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySet {
    /// In a file.
    File(PathBuf),
    /// On the web.
    Url {
        /// Its address.
        url: KeySetUrl,
        /// How long the last keys are used while the address gives no others.
        max_age: Duration,
    },
}

/// A key set that was fetched.
#[derive(Debug)]
struct Fetched {
    text: String,
    at: Instant,
}

/// Rules as they are read, again and again.
#[derive(Debug)]
pub struct Follower {
    source: Source,
    files: Files,
    fetched: Option<Fetched>,
    fetch_at: Instant,
    fetch_least: Instant,
}

impl Source {
    /// Returns whether callers can show bearer tokens.
    #[must_use]
    pub fn has_bearer_tokens(&self) -> bool {
        self.tokens.is_some() || self.jwt.is_some()
    }

    /// What is in the files. Signed tokens are unknown until a key set was fetched.
    ///
    /// # Errors
    /// Every problem, with the file that has it.
    pub fn load(&self) -> Result<Rules, Vec<String>> {
        self.load_with(None)
    }

    fn load_with(&self, fetched: Option<&str>) -> Result<Rules, Vec<String>> {
        let Some(policy) = &self.policy else {
            return Ok(Rules::open());
        };
        let mut problems = Vec::new();
        let policy = read(policy, Policy::parse, &mut problems);
        let tokens = self.tokens.as_deref();
        let tokens = tokens.map(|file| read(file, Tokens::parse, &mut problems));
        let jwt = self.jwt.as_ref().and_then(|jwt| {
            let keys = |text: &str| jwt.keys(text).map_err(|why| vec![why]);
            match &jwt.keys {
                KeySet::File(file) => read(file, keys, &mut problems),
                KeySet::Url { .. } => jwt.keys(fetched?).ok(),
            }
        });
        match policy {
            Some(policy) if problems.is_empty() => Ok(Rules {
                asks: true,
                tokens: tokens.flatten().unwrap_or_default(),
                jwt,
                policy,
            }),
            Some(_) | None => Err(problems),
        }
    }

    fn files(&self) -> Files {
        let keys = self.jwt.as_ref().and_then(|jwt| match &jwt.keys {
            KeySet::File(file) => Some(file.as_path()),
            KeySet::Url { .. } => None,
        });
        let others = [&self.tokens, &self.policy].map(Option::as_deref);
        Files::look(others.into_iter().flatten().chain(keys))
    }

    fn url(&self) -> Option<(&JwtSource, &KeySetUrl, Duration)> {
        let jwt = self.jwt.as_ref()?;
        match &jwt.keys {
            KeySet::File(_) => None,
            KeySet::Url { url, max_age } => Some((jwt, url, *max_age)),
        }
    }
}

impl JwtSource {
    fn keys(&self, text: &str) -> Result<Jwt, String> {
        Jwt::new(text, &self.issuer, &self.audience)
    }
}

impl Follower {
    /// The rules as they are now, and what follows them. An issuer that does not answer keeps nobody
    /// waiting who shows something else.
    ///
    /// # Errors
    /// Every problem, with the file that has it.
    pub async fn start(source: Source) -> Result<(Rules, Self), Vec<String>> {
        let mut follower = Self {
            files: source.files(),
            source,
            fetched: None,
            fetch_at: Instant::now(),
            fetch_least: Instant::now(),
        };
        follower.fetch().await;
        let rules = follower.load()?;
        Ok((rules, follower))
    }

    /// Reads again whatever changes. While something is wrong the rules in force stay.
    pub async fn follow(mut self, rules: watch::Sender<Arc<Rules>>, metrics: Metrics) {
        metrics.reloaded(File::Rules, true);
        metrics.name(rules.borrow().policy.namespaces());
        loop {
            sleep(LOOK_EVERY).await;
            let wants_keys = rules.borrow().jwt.as_ref().is_some_and(Jwt::wants_keys);
            let now = Instant::now();
            let is_due = now >= self.fetch_at || wants_keys && now >= self.fetch_least;
            let is_other = is_due && self.fetch().await;
            let is_too_old = self.drop_old_keys();
            if !self.files.have_changed() && !is_other && !is_too_old {
                continue;
            }
            match self.load() {
                Ok(newest) => {
                    metrics.name(newest.policy.namespaces());
                    rules.send_replace(Arc::new(newest));
                    metrics.reloaded(File::Rules, true);
                    tracing::info!("tokens, keys and policy were read again");
                }
                Err(problems) => {
                    metrics.reloaded(File::Rules, false);
                    for problem in problems {
                        tracing::error!("{problem}");
                    }
                    tracing::error!("the rules in force stay");
                }
            }
        }
    }

    fn load(&self) -> Result<Rules, Vec<String>> {
        let fetched = self.fetched.as_ref();
        let rules = self
            .source
            .load_with(fetched.map(|fetched| &*fetched.text))?;
        if rules.jwt.as_ref().is_some_and(Jwt::is_empty) {
            tracing::warn!("no key of the key set can be used: no signed token is accepted");
        }
        Ok(rules)
    }

    /// Drops keys that the issuer has not confirmed for too long. Returns whether there were any.
    fn drop_old_keys(&mut self) -> bool {
        let Some((.., max_age)) = self.source.url() else {
            return false;
        };
        let is_too_old = |fetched: &mut Fetched| fetched.at.elapsed() >= max_age;
        let is_too_old = self.fetched.take_if(is_too_old).is_some();
        if is_too_old {
            self.fetch_at = self.fetch_at.min(Instant::now() + FETCH_AGAIN);
            tracing::error!("no signed token is accepted: the key set is too old");
        }
        is_too_old
    }

    /// Returns whether there is another key set than before. An answer that is none counts for nothing.
    async fn fetch(&mut self) -> bool {
        let Some((jwt, url, max_age)) = self.source.url() else {
            return false;
        };
        let got = url.get().await;
        let got = got.and_then(|text| match jwt.keys(&text) {
            Ok(_) => Ok(text),
            Err(why) => Err(format!("{}: {why}", url.url)),
        });
        let now = Instant::now();
        self.fetch_least = now + FETCH_LEAST;
        match got {
            Ok(text) => {
                self.fetch_at = now + FETCH_EVERY.min(max_age / 2);
                let is_other = self.fetched.as_ref().is_none_or(|last| last.text != text);
                self.fetched = Some(Fetched { text, at: now });
                is_other
            }
            Err(why) => {
                tracing::error!("{why}; the keys in use stay");
                let again = self.fetched.as_ref().map_or(FETCH_AGAIN, |_| FETCH_LEAST);
                self.fetch_at = now + again;
                false
            }
        }
    }
}

fn read<T>(
    file: &Path,
    parse: impl Fn(&str) -> Result<T, Vec<String>>,
    problems: &mut Vec<String>,
) -> Option<T> {
    let shown = file.display();
    let read = fs::read_to_string(file).map_err(|error| vec![error.to_string()]);
    let wrong = read.and_then(|text| parse(&text));
    wrong
        .map_err(|whys| problems.extend(whys.iter().map(|why| format!("{shown}: {why}"))))
        .ok()
}
