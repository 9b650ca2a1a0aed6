//! Who calls: one role for each right on each part of the locks, by each kind of credential.

use std::fmt;

use leasehold_proto::v1::{ErrorReason, LockRef, LockTarget};
use tonic::Code;

use crate::certificates::spiffe;

/// What may be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// To take locks, and what follows.
    Acquire,
    /// To see who holds them.
    Observe,
    /// To find them.
    List,
    /// To take them away.
    ForceRelease,
    /// To change their limits.
    Admin,
}

/// All of them.
pub const VERBS: [Verb; 5] = [
    Verb::Acquire,
    Verb::Observe,
    Verb::List,
    Verb::ForceRelease,
    Verb::Admin,
];

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Observe => "observe",
            Self::List => "list",
            Self::ForceRelease => "force_release",
            Self::Admin => "admin",
        })
    }
}

/// A part of the locks: each lock of the tests is in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A namespace that most may not touch.
    Vault,
    /// Names in the default namespace that most may not touch.
    Closed,
    /// A namespace that callers may use.
    Open,
    /// Names in the default namespace that callers may use.
    Shared,
}

/// All of them.
pub const PARTS: [Part; 4] = [Part::Vault, Part::Closed, Part::Open, Part::Shared];
/// Those that most may not touch.
pub const SECRET: [Part; 2] = [Part::Vault, Part::Closed];
/// Those that callers may use.
pub const OPEN: [Part; 2] = [Part::Open, Part::Shared];

impl Part {
    /// The namespaces and names of a rule for it.
    const fn patterns(self) -> (&'static str, &'static str) {
        match self {
            Self::Vault => ("vault", "*"),
            Self::Closed => ("default", "closed/*"),
            Self::Open => ("open", "*"),
            Self::Shared => ("default", "shared/*"),
        }
    }

    /// The one that a lock is in, if it is one of the tests'.
    #[must_use]
    pub fn of(lock: &LockTarget) -> Option<Self> {
        PARTS.into_iter().find(|part| {
            let first = part.lock("");
            first.namespace == lock.namespace && lock.name.starts_with(&first.name)
        })
    }

    /// A lock of it.
    #[must_use]
    pub fn lock(self, name: &str) -> LockRef {
        let (namespace, pattern) = self.patterns();
        LockRef {
            namespace: namespace.to_owned(),
            name: pattern.replace('*', name),
        }
    }
}

/// What a caller shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Nothing.
    Nothing,
    /// A token that nobody has given out.
    Nonsense,
    /// A static token.
    Token,
    /// A signed token.
    Signed,
    /// The certificate of its connection.
    Certificate,
}

/// One kind of caller.
#[derive(Debug, Clone)]
pub struct Role {
    /// As in policies, without what is before the colon.
    pub name: String,
    /// By what it is known.
    pub shows: Shows,
    rights: Vec<(Part, Vec<Verb>)>,
}

impl Role {
    /// With these rights and no others.
    #[must_use]
    pub fn new(name: &str, shows: Shows, rights: Vec<(Part, Vec<Verb>)>) -> Self {
        Self {
            name: name.to_owned(),
            shows,
            rights,
        }
    }

    /// Whether it may do that to the locks of a part.
    #[must_use]
    pub fn may(&self, verb: Verb, part: Part) -> bool {
        let mut rights = self.rights.iter();
        rights.any(|(of, verbs)| *of == part && verbs.contains(&verb))
    }

    /// Whether it may do that to any lock.
    #[must_use]
    pub fn may_somewhere(&self, verb: Verb) -> bool {
        PARTS.iter().any(|part| self.may(verb, *part))
    }

    /// Whether anybody knows who it is.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self.shows, Shows::Nothing | Shows::Nonsense)
    }

    /// What it is told where it may not.
    #[must_use]
    pub fn refusal(&self) -> (Code, ErrorReason) {
        match self.is_known() {
            true => (Code::PermissionDenied, ErrorReason::PermissionDenied),
            false => (Code::Unauthenticated, ErrorReason::Unauthenticated),
        }
    }

    /// Its name in a policy.
    #[must_use]
    pub fn caller(&self) -> String {
        let name = &self.name;
        match self.shows {
            Shows::Nothing | Shows::Nonsense => String::new(),
            Shows::Token => format!("token:{name}"),
            Shows::Signed => format!("jwt:{name}"),
            Shows::Certificate => spiffe(name),
        }
    }

    fn rules(&self) -> String {
        let rule = |(part, verbs): &(Part, Vec<Verb>)| {
            let verbs: Vec<_> = verbs.iter().map(|verb| format!("\"{verb}\"")).collect();
            let (namespaces, names) = part.patterns();
            format!(
                "[[rule]]\ncallers = [\"{}\"]\nverbs = [{}]\nnamespaces = [\"{namespaces}\"]\nnames = [\"{names}\"]\n",
                self.caller(),
                verbs.join(", ")
            )
        };
        self.rights.iter().map(rule).collect()
    }
}

/// Who may do everything.
#[must_use]
pub fn root() -> Role {
    let rights = PARTS.map(|part| (part, VERBS.to_vec())).to_vec();
    Role::new("root", Shows::Token, rights)
}

/// Every kind of caller; `all`: each right on the open parts by each credential, not by one of them.
#[must_use]
pub fn roles(all: bool) -> Vec<Role> {
    let mut roles = vec![
        root(),
        Role::new("nobody", Shows::Nothing, Vec::new()),
        Role::new("liar", Shows::Nonsense, Vec::new()),
        Role::new("stranger", Shows::Token, Vec::new()),
        Role::new("stranger-signed", Shows::Signed, Vec::new()),
        Role::new("stranger-certified", Shows::Certificate, Vec::new()),
    ];
    let credentials = [
        (Shows::Token, "token"),
        (Shows::Signed, "signed"),
        (Shows::Certificate, "certificate"),
    ];
    let scoped = OPEN.iter().flat_map(|part| VERBS.map(|verb| (*part, verb)));
    for (number, (part, verb)) in scoped.enumerate() {
        let shown = credentials.iter().enumerate();
        let shown = shown.filter(|(kind, _)| all || *kind == number % credentials.len());
        for (_, (shows, kind)) in shown {
            let name = format!("{verb}-{part:?}-{kind}")
                .to_lowercase()
                .replace('_', "-");
            roles.push(Role::new(&name, *shows, vec![(part, vec![verb])]));
        }
    }
    for verb in VERBS {
        let name = verb.to_string().replace('_', "-");
        let only = SECRET.map(|part| (part, vec![verb])).to_vec();
        roles.push(Role::new(&format!("only-{name}"), Shows::Token, only));
        let others: Vec<_> = VERBS.into_iter().filter(|other| *other != verb).collect();
        let secret = SECRET.map(|part| (part, others.clone()));
        let open = OPEN.map(|part| (part, VERBS.to_vec()));
        let all_but = secret.into_iter().chain(open).collect();
        roles.push(Role::new(
            &format!("all-but-{name}"),
            Shows::Signed,
            all_but,
        ));
    }
    roles
}

/// The policy that gives them their rights.
#[must_use]
pub fn policy(roles: &[Role]) -> String {
    roles.iter().map(Role::rules).collect()
}
