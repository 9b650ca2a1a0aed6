//! Who calls, by what they show, and whether the policy allows them what they ask for.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use futures::stream::{self, Stream};
use tokio::{sync::watch, time::Instant};

use super::{
    denials::Denials,
    jwt::{self, Jwt},
    policy::{Policy, Verb},
    tokens::{Sum, Tokens},
};
use crate::{
    address::AddressBlock,
    lock::LockKey,
    metrics::{Metrics, Refusal},
    pace::{Pace, Paces},
};

/// From one address so many credentials may be wrong; then who shows another one is told to wait.
const FAILURES: Pace = Pace::per_second(5, 10);
/// Signatures cost more than all else: so many of tokens that are not known yet are looked at.
const SIGNATURES: Pace = Pace::per_second(50, 200);

/// Somebody who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// As policies name them: `spiffe://…`, `dns:…`, `jwt:…`, `token:…`; empty where nobody is asked.
    pub name: Arc<str>,
    /// When what they have shown is worth nothing any more.
    pub expires: Option<SystemTime>,
    proof: Proof,
}

/// What a caller has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Proof {
    /// Nothing, or the certificate of its connection.
    Connection,
    /// A static token.
    Token(Sum),
    /// A token that this key has signed.
    Signed(Sum),
}

/// What somebody shows.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Where from.
    pub address: Option<IpAddr>,
    /// Whom the certificate of the connection names.
    pub certified: Option<&'a Arc<str>>,
    /// A token.
    pub bearer: Option<&'a str>,
}

/// Why nobody knows who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Nothing that is good now was shown.
    Worthless,
    /// So much of that comes from the address that it is told to wait.
    TooOften(Duration),
}

/// What callers are known by, and what they may do.
#[derive(Debug)]
pub struct Rules {
    /// Callers must show who they are.
    pub asks: bool,
    /// Static tokens.
    pub tokens: Tokens,
    /// Signed tokens.
    pub jwt: Option<Jwt>,
    /// Who may do what.
    pub policy: Policy,
}

/// The rules in force. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate {
    rules: watch::Receiver<Arc<Rules>>,
    strangers: Arc<Mutex<Strangers>>,
    metrics: Metrics,
    denials: Arc<Denials>,
}

/// What comes from where, that nobody knows.
#[derive(Debug, Default)]
struct Strangers {
    failures: Paces<AddressBlock>,
    signatures: Paces<AddressBlock>,
}

impl Caller {
    /// When a stream that it opens now has to end.
    pub fn deadline(&self) -> Option<Instant> {
        let left = self.expires?.duration_since(SystemTime::now());
        Some(Instant::now() + left.unwrap_or_default())
    }
}

impl Rules {
    /// Everybody may do everything.
    pub fn open() -> Self {
        Self {
            asks: false,
            tokens: Tokens::default(),
            jwt: None,
            policy: Policy::open(),
        }
    }
}

impl Gate {
    /// By the newest rules that are told.
    pub fn new(rules: watch::Receiver<Arc<Rules>>, metrics: Metrics) -> Self {
        Self {
            rules,
            strangers: Arc::default(),
            denials: Arc::default(),
            metrics,
        }
    }

    /// Who calls: by a bearer token, or else by the certificate of the connection.
    ///
    /// # Errors
    /// If that says nothing.
    pub fn caller(&self, shown: Shown<'_>) -> Result<Caller, Unknown> {
        let rules = Arc::clone(&self.rules.borrow());
        let named = |name: Arc<str>, proof| Caller {
            name,
            expires: None,
            proof,
        };
        if !rules.asks {
            return Ok(named(Arc::default(), Proof::Connection));
        }
        let Some(token) = shown.bearer else {
            let certified = shown.certified.cloned();
            let certified = certified.map(|name| named(name, Proof::Connection));
            return certified.ok_or_else(|| self.failed(shown.address));
        };
        if let Some((name, sum)) = rules.tokens.caller(token) {
            return Ok(named(format!("token:{name}").into(), Proof::Token(sum)));
        }
        let Some(jwt) = &rules.jwt else {
            return Err(self.failed(shown.address));
        };
        let signed = match jwt.known(token) {
            Some(signed) => signed,
            None if self.may_verify(shown.address) => jwt.verify(token),
            None => None,
        };
        let jwt::Shown {
            subject,
            expires,
            key,
        } = signed.ok_or_else(|| self.failed(shown.address))?;
        Ok(Caller {
            name: format!("jwt:{subject}").into(),
            expires: Some(expires),
            proof: Proof::Signed(key),
        })
    }

    /// Whether what the caller has shown is good still.
    pub fn knows(&self, caller: &Caller) -> bool {
        let rules = self.rules.borrow();
        let is_late = caller.expires.is_some_and(|end| end <= SystemTime::now());
        !is_late
            && match &caller.proof {
                Proof::Connection => true,
                Proof::Token(sum) => rules.tokens.has(sum),
                Proof::Signed(key) => rules.jwt.as_ref().is_some_and(|jwt| jwt.has(key)),
            }
    }

    /// A caller was denied what was asked for.
    pub fn denied(&self) {
        self.metrics.refused(Refusal::Denied);
    }

    /// Whether a caller may do that to this lock.
    pub fn allows(&self, caller: &Caller, verb: Verb, lock: &LockKey) -> bool {
        self.rules.borrow().policy.allows(&caller.name, verb, lock)
    }

    /// Whether a caller may do that to any lock at all.
    pub fn allows_some(&self, caller: &Caller, verb: Verb) -> bool {
        self.rules.borrow().policy.allows_some(&caller.name, verb)
    }

    /// What was denied.
    pub fn denials(&self) -> &Denials {
        &self.denials
    }

    /// Whether anybody is asked who calls.
    pub fn asks(&self) -> bool {
        self.rules.borrow().asks
    }

    /// Each time that the rules become others.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.rules.clone(), |mut rules| async move {
            rules.mark_unchanged();
            rules.changed().await.ok()?;
            Some(((), rules))
        })
    }

    fn may_verify(&self, address: Option<IpAddr>) -> bool {
        let mut strangers = self.strangers();
        address.is_none_or(|address| {
            strangers
                .signatures
                .take(SIGNATURES, address.into())
                .is_ok()
        })
    }

    fn failed(&self, address: Option<IpAddr>) -> Unknown {
        let paced = address.map(|address| self.strangers().failures.take(FAILURES, address.into()));
        match paced {
            Some(Err(early)) => {
                self.metrics.refused(Refusal::TooOften);
                Unknown::TooOften(early)
            }
            Some(Ok(())) | None => {
                self.metrics.refused(Refusal::Credential);
                Unknown::Worthless
            }
        }
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
