//! Loads and reloads the rule files and the key set of a URL whenever they change.

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

use super::{
    access_control::AccessRules, jwt::Jwt, key_set::KeySetUrl, policy::Policy, tokens::Tokens,
};
use crate::{
    file_watch::FileFingerprints,
    metrics::{File, Metrics},
};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum age of a downloaded key set before it is downloaded again.
const FETCH_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum interval between downloads when a token names a key that the key set does not contain.
/// Also the retry interval after a failed download while a key set is in use.
const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Retry interval after a failed download while no key set is in use.
const FETCH_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The files and the URL that rules are loaded from. Without a policy, authentication is disabled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesSource {
    /// File of static tokens.
    pub tokens: Option<PathBuf>,
    /// Issuer of signed tokens.
    pub jwt: Option<JwtSource>,
    /// File of the policy.
    pub policy: Option<PathBuf>,
}

/// The keys and the expected claims of signed tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSource {
    /// Location of the issuer's keys.
    pub keys: KeySet,
    /// Required value of the claim `iss`.
    pub issuer: String,
    /// Required value of the claim `aud`.
    pub audience: String,
}

/// The location of a key set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySet {
    File(PathBuf),
    /// A URL, from which the key set is downloaded.
    Url {
        url: KeySetUrl,
        /// Maximum age of the last downloaded keys; older keys are discarded.
        max_age: Duration,
    },
}

/// A downloaded key set.
#[derive(Debug)]
struct DownloadedKeySet {
    text: String,
    downloaded_at: Instant,
}

/// Reloads rules from their [`RulesSource`].
#[derive(Debug)]
pub struct RulesReloader {
    source: RulesSource,
    files: FileFingerprints,
    fetched: Option<DownloadedKeySet>,
    fetch_at: Instant,
    next_fetch_min: Instant,
}

impl RulesSource {
    /// Returns true if callers can present bearer tokens.
    #[must_use]
    pub fn has_bearer_tokens(&self) -> bool {
        self.tokens.is_some() || self.jwt.is_some()
    }

    /// Loads the rules from the files. Signed tokens are rejected until a key set was downloaded.
    ///
    /// # Errors
    /// A message for every problem, with the name of its file.
    pub fn load(&self) -> Result<AccessRules, Vec<String>> {
        self.load_with(None)
    }

    fn load_with(&self, fetched: Option<&str>) -> Result<AccessRules, Vec<String>> {
        let Some(policy) = &self.policy else {
            return Ok(AccessRules::allow_all());
        };
        let mut problems = Vec::new();
        let policy = read(policy, Policy::parse, &mut problems);
        let tokens = self.tokens.as_deref();
        let tokens = tokens.map(|file| read(file, Tokens::parse, &mut problems));
        let jwt = self.jwt.as_ref().and_then(|jwt| {
            let keys = |text: &str| jwt.keys(text).map_err(|problem| vec![problem]);
            match &jwt.keys {
                KeySet::File(file) => read(file, keys, &mut problems),
                KeySet::Url { .. } => jwt.keys(fetched?).ok(),
            }
        });
        match policy {
            Some(policy) if problems.is_empty() => Ok(AccessRules {
                requires_authentication: true,
                tokens: tokens.flatten().unwrap_or_default(),
                jwt,
                policy,
            }),
            Some(_) | None => Err(problems),
        }
    }

    fn files(&self) -> FileFingerprints {
        let keys = self.jwt.as_ref().and_then(|jwt| match &jwt.keys {
            KeySet::File(file) => Some(file.as_path()),
            KeySet::Url { .. } => None,
        });
        let files = [&self.tokens, &self.policy].map(Option::as_deref);
        FileFingerprints::read(files.into_iter().flatten().chain(keys))
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

impl RulesReloader {
    /// Loads the current rules and returns them with the [`RulesReloader`] that reloads them. A
    /// failed download of the key set is not an error, so that callers with other credentials do
    /// not depend on the issuer.
    ///
    /// # Errors
    /// A message for every problem, with the name of its file.
    pub async fn start(source: RulesSource) -> Result<(AccessRules, Self), Vec<String>> {
        let mut reloader = Self {
            files: source.files(),
            source,
            fetched: None,
            fetch_at: Instant::now(),
            next_fetch_min: Instant::now(),
        };
        reloader.fetch().await;
        let rules = reloader.load()?;
        Ok((rules, reloader))
    }

    /// Reloads the rules whenever a file or the key set changes. Invalid rules are logged, and the
    /// rules in force stay.
    pub async fn run(mut self, rules: watch::Sender<Arc<AccessRules>>, metrics: Metrics) {
        metrics.reloaded(File::Rules, true);
        metrics.count_by_name(rules.borrow().policy.namespaces());
        loop {
            sleep(CHECK_INTERVAL).await;
            let has_unknown_key = rules
                .borrow()
                .jwt
                .as_ref()
                .is_some_and(Jwt::take_unknown_key_flag);
            let now = Instant::now();
            let is_due = now >= self.fetch_at || has_unknown_key && now >= self.next_fetch_min;
            let is_changed = is_due && self.fetch().await;
            let is_too_old = self.drop_old_keys();
            if !self.files.has_changed() && !is_changed && !is_too_old {
                continue;
            }
            match self.load() {
                Ok(new_rules) => {
                    metrics.count_by_name(new_rules.policy.namespaces());
                    rules.send_replace(Arc::new(new_rules));
                    metrics.reloaded(File::Rules, true);
                    tracing::info!("tokens, keys and policy reloaded");
                }
                Err(problems) => {
                    metrics.reloaded(File::Rules, false);
                    for problem in problems {
                        tracing::error!("{problem}");
                    }
                    tracing::error!("keeping the current access rules");
                }
            }
        }
    }

    fn load(&self) -> Result<AccessRules, Vec<String>> {
        let fetched = self.fetched.as_ref();
        let rules = self
            .source
            .load_with(fetched.map(|fetched| &*fetched.text))?;
        if rules.jwt.as_ref().is_some_and(Jwt::is_empty) {
            tracing::warn!("the key set has no usable key: all signed tokens are rejected");
        }
        Ok(rules)
    }

    /// Discards keys that were last downloaded at least `max_age` ago. Returns true
    /// if there were any.
    fn drop_old_keys(&mut self) -> bool {
        let Some((.., max_age)) = self.source.url() else {
            return false;
        };
        let is_too_old =
            |fetched: &mut DownloadedKeySet| fetched.downloaded_at.elapsed() >= max_age;
        let is_too_old = self.fetched.take_if(is_too_old).is_some();
        if is_too_old {
            self.fetch_at = self.fetch_at.min(Instant::now() + FETCH_RETRY_INTERVAL);
            tracing::error!("the key set is too old: all signed tokens are rejected");
        }
        is_too_old
    }

    /// Downloads the key set. Returns true if it differs from the previous one. An invalid response
    /// leaves the keys in use unchanged.
    async fn fetch(&mut self) -> bool {
        let Some((jwt, url, max_age)) = self.source.url() else {
            return false;
        };
        let result = url.get().await;
        let result = result.and_then(|text| match jwt.keys(&text) {
            Ok(_) => Ok(text),
            Err(error) => Err(format!("{}: {error}", url.url)),
        });
        let now = Instant::now();
        self.next_fetch_min = now + FETCH_INTERVAL_MIN;
        match result {
            Ok(text) => {
                self.fetch_at = now + FETCH_INTERVAL.min(max_age / 2);
                let is_changed = self
                    .fetched
                    .as_ref()
                    .is_none_or(|previous| previous.text != text);
                self.fetched = Some(DownloadedKeySet {
                    text,
                    downloaded_at: now,
                });
                is_changed
            }
            Err(error) => {
                tracing::error!("{error}; keeping the current keys");
                let delay = self
                    .fetched
                    .as_ref()
                    .map_or(FETCH_RETRY_INTERVAL, |_| FETCH_INTERVAL_MIN);
                self.fetch_at = now + delay;
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
    let path = file.display();
    let text = fs::read_to_string(file).map_err(|error| vec![error.to_string()]);
    let result = text.and_then(|text| parse(&text));
    result
        .map_err(|messages| {
            problems.extend(messages.iter().map(|problem| format!("{path}: {problem}")))
        })
        .ok()
}
