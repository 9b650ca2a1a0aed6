//! Who calls, by what they show, and whether the policy allows them what they ask for.

use std::{
    net::IpAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use futures::{
    future::{BoxFuture, FutureExt as _, pending},
    stream::{self, Stream, StreamExt as _},
};
use tokio::{sync::watch, time::Instant};

use super::{
    certificate::{Certificate, Unnamed, reached},
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

/// Before the names of callers with static tokens.
const TOKEN: &str = "token:";
/// From one address so many credentials may be wrong; then who shows another one is told to wait.
const FAILURES: Pace = Pace::per_second(5, 10);
/// Share of what is left of a certificate after which streams move to a connection with a newer one.
const MOVES_AFTER: f64 = 0.8;
/// Time before the end of a certificate in which they move no more: there is none.
const MOVES_NO_MORE: Duration = Duration::from_secs(10);
/// Signatures cost more than all else: so many of tokens that are not known yet are looked at.
const SIGNATURES: Pace = Pace::per_second(50, 200);

/// Somebody who calls.
#[derive(Debug, Clone)]
pub struct Caller {
    /// As policies name them: `spiffe://…`, `jwt:…`, `token:…`, so that no kind of credential can show
    /// the name of another; empty where nobody is asked.
    pub name: Arc<str>,
    /// When what they have shown is worth nothing any more.
    pub expires: Option<SystemTime>,
    proof: Proof,
}

/// What a caller has shown.
#[derive(Debug, Clone)]
enum Proof {
    /// Nothing: nobody is asked.
    None,
    /// The certificate of its connection.
    Certificate(Certificate),
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
    /// The certificate of the connection.
    pub certificate: Option<&'a Certificate>,
    /// A token.
    pub bearer: Option<&'a str>,
}

/// Why nobody knows who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Nothing that is good now was shown.
    Worthless,
    /// The certificate of the connection is good, but names no caller.
    Unnamed(Unnamed),
    /// So much of that comes from the address that it is told to wait.
    TooOften(Duration),
}

/// What no longer admits a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawn {
    /// What it has shown has expired, or counts no more.
    Credential,
    /// The rules no longer allow what it does.
    Rule,
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

    /// When a stream that it opens now has to go on with another connection: its certificate cannot be
    /// replaced on this one. `None`: it shows no certificate, or one that is about to expire.
    pub fn moves_at(&self) -> Option<Instant> {
        let Proof::Certificate(certificate) = &self.proof else {
            return None;
        };
        let left = certificate.expires().duration_since(SystemTime::now());
        let left = left.ok().filter(|left| *left > MOVES_NO_MORE)?;
        Some(Instant::now() + left.mul_f64(MOVES_AFTER))
    }

    /// Returns a future that is ready when the certificate no longer counts, or the token has expired. `None`: a token
    /// without an expiry.
    fn end(&self) -> Option<BoxFuture<'static, ()>> {
        if let Proof::Certificate(certificate) = &self.proof {
            let certificate = certificate.clone();
            return Some(async move { certificate.ended().await }.boxed());
        }
        self.expires.map(|expires| reached(expires).boxed())
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

    /// A gate that asks nobody and allows everything.
    #[cfg(test)]
    pub(crate) fn open() -> Self {
        let (_, rules) = watch::channel(Arc::new(Rules::open()));
        Self::new(rules, Metrics::off())
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
            return Ok(named(Arc::default(), Proof::None));
        }
        let Some(token) = shown.bearer else {
            let certificate = shown.certificate.filter(|one| one.counts());
            return match certificate.map(|one| (one, one.name())) {
                Some((certificate, Ok(name))) => Ok(Caller {
                    name: Arc::clone(name),
                    expires: Some(certificate.expires()),
                    proof: Proof::Certificate(certificate.clone()),
                }),
                Some((_, Err(why))) => Err(self.failed(shown.address, Unknown::Unnamed(why))),
                None => Err(self.failed(shown.address, Unknown::Worthless)),
            };
        };
        if let Some((name, sum)) = rules.tokens.caller(token) {
            return Ok(named(format!("{TOKEN}{name}").into(), Proof::Token(sum)));
        }
        let Some(jwt) = &rules.jwt else {
            return Err(self.failed(shown.address, Unknown::Worthless));
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
        } = signed.ok_or_else(|| self.failed(shown.address, Unknown::Worthless))?;
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
                Proof::None => true,
                Proof::Certificate(certificate) => certificate.counts(),
                Proof::Token(sum) => {
                    let name = caller.name.strip_prefix(TOKEN);
                    name.is_some_and(|name| rules.tokens.has(name, sum))
                }
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

    /// Returns the same gate, whose [`changes`](Self::changes) begin now.
    #[must_use]
    pub fn from_now(&self) -> Self {
        let mut gate = self.clone();
        gate.rules.mark_unchanged();
        gate
    }

    /// Yields whenever the rules have changed since the gate was made, or the caller's credential has
    /// ended: whether it still admits the caller is to be asked again then.
    pub fn changes(&self, caller: &Caller) -> impl Stream<Item = ()> + Send + use<> {
        let changes = (self.rules.clone(), caller.end());
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

    /// Waits until the credential no longer admits what it was shown for: it has expired or was
    /// withdrawn, or `is_allowed`, which asks the rules, returns false.
    pub async fn until_withdrawn(
        &self,
        caller: &Caller,
        is_allowed: impl Fn() -> bool,
    ) -> Withdrawn {
        let mut changes = pin!(self.changes(caller));
        loop {
            if !self.knows(caller) {
                return Withdrawn::Credential;
            }
            if !is_allowed() {
                return Withdrawn::Rule;
            }
            if changes.next().await.is_none() {
                // The source of the rules has ended: the broker stops.
                pending::<()>().await;
            }
        }
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

    fn failed(&self, address: Option<IpAddr>, why: Unknown) -> Unknown {
        let paced = address.map(|address| self.strangers().failures.take(FAILURES, address.into()));
        match paced {
            Some(Err(early)) => {
                self.metrics.refused(Refusal::TooOften);
                Unknown::TooOften(early)
            }
            Some(Ok(())) | None => {
                self.metrics.refused(Refusal::Credential);
                why
            }
        }
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
