//! Access control: authenticates callers by their credentials and authorizes
//! requests by the policy.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{
    future::{BoxFuture, FutureExt as _, pending},
    stream::{self, Stream},
};
use thiserror::Error;
use tokio::{sync::watch, time::Instant};

use super::{
    auth_limits::AuthLimits,
    certificate::{Certificate, CertificateNameError, sleep_until_system_time},
    denials::{Denial, DenialLog},
    jwt::Jwt,
    policy::{Policy, Verb},
    tokens::{TokenDigest, Tokens},
};
use crate::{
    lock::LockKey,
    metrics::{Metrics, RejectionReason},
};

/// Prefix of the names of callers with static tokens.
const TOKEN_NAME_PREFIX: &str = "token:";
/// Fraction of a certificate's remaining lifetime after which its streams move to a connection with
/// a newer certificate.
const CERT_REFRESH_FRACTION: f64 = 0.8;
/// Remaining lifetime of a certificate at which its streams no longer move, because the client has
/// no newer certificate.
const CERT_REFRESH_MIN_REMAINING: Duration = Duration::from_secs(10);

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Name by which policies refer to the caller: `spiffe://…`, `jwt:…` or `token:…`. The prefix
    /// prevents one kind of credential from claiming the name of another kind. Empty if
    /// authentication is disabled.
    pub name: Arc<str>,
    /// Time after which the credential is no longer valid.
    pub expires: Option<SystemTime>,
    proof: Proof,
}

/// The credential by which a caller was authenticated.
#[derive(Debug, Clone)]
enum Proof {
    /// No credential, because authentication is disabled.
    None,
    /// The certificate of the caller's connection.
    Certificate(Certificate),
    /// A static token, identified by its digest.
    Token(TokenDigest),
    /// A signed token, identified by the digest of the key that signed it.
    Signed(TokenDigest),
}

/// The credentials of a request, by which its caller is authenticated.
#[derive(Debug, Clone, Copy)]
pub struct PresentedCredentials<'a> {
    /// Address of the client.
    pub address: Option<IpAddr>,
    pub certificate: Option<&'a Certificate>,
    pub bearer: Option<&'a str>,
}

/// The reason why a caller could not be authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AuthError {
    /// No valid credential was presented.
    #[error(
        "missing or invalid credentials; provide a client certificate, or a bearer token in the \
         `authorization` metadata"
    )]
    InvalidCredential,
    /// The certificate of the connection is valid, but names no caller.
    #[error(
        "the client certificate does not identify a caller: {_0}; it must have exactly one URI, a \
         SPIFFE ID such as spiffe://example.org/worker"
    )]
    NoCallerName(CertificateNameError),
    /// The address exceeds the rate limit for failed attempts; the next attempt is
    /// possible after this time.
    #[error(
        "too many calls without a valid credential from this address; send a valid credential, or \
         retry later"
    )]
    RateLimited(Duration),
}

/// The accepted credentials and the policy.
#[derive(Debug)]
pub struct AccessRules {
    /// True if callers must authenticate.
    pub requires_authentication: bool,
    pub tokens: Tokens,
    /// Keys of signed tokens.
    pub jwt: Option<Jwt>,
    pub policy: Policy,
}

/// Access control by the current rules. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AccessControl {
    rules: watch::Receiver<Arc<AccessRules>>,
    limits: AuthLimits,
    metrics: Metrics,
    denials: Arc<DenialLog>,
}

impl Caller {
    /// Returns the time at which a stream that the caller opens now must end.
    pub fn deadline(&self) -> Option<Instant> {
        let remaining = self.expires?.duration_since(SystemTime::now());
        Some(Instant::now() + remaining.unwrap_or_default())
    }

    /// Returns the time at which a stream that the caller opens now must move to another
    /// connection, because a connection cannot replace its certificate. `None` if the caller has no
    /// certificate, or one that expires within `CERT_REFRESH_MIN_REMAINING`.
    pub fn reconnects_at(&self) -> Option<Instant> {
        let Proof::Certificate(certificate) = &self.proof else {
            return None;
        };
        let remaining = certificate.expires().duration_since(SystemTime::now());
        let remaining = remaining
            .ok()
            .filter(|remaining| *remaining > CERT_REFRESH_MIN_REMAINING)?;
        Some(Instant::now() + remaining.mul_f64(CERT_REFRESH_FRACTION))
    }

    /// Returns a future that completes when the certificate is no longer valid or the token has
    /// expired. `None` for a token without an expiry.
    fn credential_end(&self) -> Option<BoxFuture<'static, ()>> {
        if let Proof::Certificate(certificate) = &self.proof {
            let certificate = certificate.clone();
            return Some(async move { certificate.until_invalid().await }.boxed());
        }
        self.expires
            .map(|expires_at| sleep_until_system_time(expires_at).boxed())
    }
}

impl AccessRules {
    /// Returns rules that allow every operation without authentication.
    pub fn allow_all() -> Self {
        Self {
            requires_authentication: false,
            tokens: Tokens::default(),
            jwt: None,
            policy: Policy::allow_all(),
        }
    }
}

impl AccessControl {
    /// Creates access control that follows the newest value of `rules`.
    pub fn new(rules: watch::Receiver<Arc<AccessRules>>, metrics: Metrics) -> Self {
        Self {
            rules,
            limits: AuthLimits::default(),
            denials: Arc::default(),
            metrics,
        }
    }

    /// Creates access control that requires no authentication and allows every operation.
    #[cfg(test)]
    pub(crate) fn allow_all() -> Self {
        let (_, rules) = watch::channel(Arc::new(AccessRules::allow_all()));
        Self::new(rules, Metrics::off())
    }

    /// Authenticates a caller by its bearer token if it presents one, otherwise by the certificate
    /// of the connection. Counts and logs a failure.
    ///
    /// # Errors
    /// If the credential is missing or invalid, or its address exceeds a rate limit.
    pub fn authenticate(&self, credentials: PresentedCredentials<'_>) -> Result<Caller, AuthError> {
        let rules = Arc::clone(&self.rules.borrow());
        let caller = self.identify(&rules, credentials);
        caller.map_err(|error| self.record_failure(credentials.address, error))
    }

    fn identify(
        &self,
        rules: &AccessRules,
        credentials: PresentedCredentials<'_>,
    ) -> Result<Caller, AuthError> {
        let new_caller = |name: Arc<str>, expires, proof| Caller {
            name,
            expires,
            proof,
        };
        if !rules.requires_authentication {
            return Ok(new_caller(Arc::default(), None, Proof::None));
        }
        let Some(token) = credentials.bearer else {
            let certificate = credentials.certificate;
            let certificate = certificate
                .filter(|certificate| certificate.is_valid())
                .ok_or(AuthError::InvalidCredential)?;
            let name = certificate.name().map_err(AuthError::NoCallerName)?;
            let proof = Proof::Certificate(certificate.clone());
            return Ok(new_caller(
                Arc::clone(name),
                Some(certificate.expires()),
                proof,
            ));
        };
        if let Some((name, digest)) = rules.tokens.caller(token) {
            let name = format!("{TOKEN_NAME_PREFIX}{name}");
            return Ok(new_caller(name.into(), None, Proof::Token(digest)));
        }
        let jwt = rules.jwt.as_ref().ok_or(AuthError::InvalidCredential)?;
        let may_verify = |address| self.limits.may_verify_signature(address);
        let verified = jwt.claims(token, || credentials.address.is_none_or(may_verify));
        let verified = verified.ok_or(AuthError::InvalidCredential)?;
        let name = format!("jwt:{}", verified.subject);
        Ok(new_caller(
            name.into(),
            Some(verified.expires),
            Proof::Signed(verified.key),
        ))
    }

    /// Returns true if the caller's credential is still valid.
    pub fn is_still_valid(&self, caller: &Caller) -> bool {
        let rules = self.rules.borrow();
        let has_expired = caller
            .expires
            .is_some_and(|expires_at| expires_at <= SystemTime::now());
        !has_expired
            && match &caller.proof {
                Proof::None => true,
                Proof::Certificate(certificate) => certificate.is_valid(),
                Proof::Token(digest) => {
                    let name = caller.name.strip_prefix(TOKEN_NAME_PREFIX);
                    name.is_some_and(|name| rules.tokens.has(name, digest))
                }
                Proof::Signed(key) => rules.jwt.as_ref().is_some_and(|jwt| jwt.contains_key(key)),
            }
    }

    /// Counts and logs a request that the policy denies. `lock` is `None` if the policy allows the
    /// operation on no lock.
    pub fn record_denial(
        &self,
        caller: &Caller,
        peer: Option<IpAddr>,
        verb: Verb,
        lock: Option<&LockKey>,
    ) {
        self.metrics.request_rejected(RejectionReason::Denied);
        self.denials.record(Denial {
            caller: Some(&caller.name),
            peer,
            lock,
            operation: verb.to_string(),
        });
    }

    /// Returns true if the policy allows the caller to use `verb` on the lock.
    pub fn allows(&self, caller: &Caller, verb: Verb, lock: &LockKey) -> bool {
        self.rules.borrow().policy.allows(&caller.name, verb, lock)
    }

    /// Returns true if the policy allows the caller to use `verb` on at least one lock.
    pub fn allows_some(&self, caller: &Caller, verb: Verb) -> bool {
        self.rules.borrow().policy.allows_some(&caller.name, verb)
    }

    /// Returns the log of denials.
    pub fn denials(&self) -> &DenialLog {
        &self.denials
    }

    /// Returns true if callers must authenticate.
    pub fn requires_authentication(&self) -> bool {
        self.rules.borrow().requires_authentication
    }

    /// Returns a clone whose [`changes`](Self::changes) begin now.
    #[must_use]
    pub fn from_now(&self) -> Self {
        let mut access = self.clone();
        access.rules.mark_unchanged();
        access
    }

    /// Yields whenever the rules have changed since `self` was created, or the caller's credential
    /// has ended. The caller's access must then be checked again.
    pub fn changes(&self, caller: &Caller) -> impl Stream<Item = ()> + Send + use<> {
        let changes = (self.rules.clone(), caller.credential_end());
        stream::unfold(changes, |(mut rules, mut end)| async move {
            let ended = async {
                match &mut end {
                    Some(end) => end.await,
                    None => pending().await,
                }
            };
            let has_ended = tokio::select! {
                changed = rules.changed() => {
                    changed.ok()?;
                    false
                }
                () = ended => true,
            };
            let end = end.filter(|_| !has_ended);
            Some(((), (rules, end)))
        })
    }

    /// Counts and logs a failed attempt to authenticate. Returns the error to report: `error`, or
    /// [`AuthError::RateLimited`] if the address exceeds the limit.
    fn record_failure(&self, address: Option<IpAddr>, error: AuthError) -> AuthError {
        let result = address.map(|address| self.limits.record_failure(address));
        let (reason, error) = match result {
            Some(Err(retry_after)) => (
                RejectionReason::RateLimited,
                AuthError::RateLimited(retry_after),
            ),
            Some(Ok(())) | None => (RejectionReason::Credential, error),
        };
        self.metrics.request_rejected(reason);
        self.denials.record(Denial {
            caller: None,
            peer: address,
            lock: None,
            operation: match error {
                AuthError::NoCallerName(reason) => {
                    format!("to call with a certificate that does not identify a caller: {reason}")
                }
                AuthError::InvalidCredential | AuthError::RateLimited(_) => {
                    "to call without a valid credential".to_owned()
                }
            },
        });
        error
    }
}
