//! Kinds of callers: one role for each permission on each part of the locks, with each kind of
//! credential.

use std::fmt;

use leasehold_proto::v1::{ErrorReason, LockRef, LockTarget};
use tonic::Code;

use crate::net::certificates::spiffe_id;

/// A permission of an authorization rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Permission to acquire locks, and to renew and release them.
    Acquire,
    /// Permission to see holders.
    Observe,
    /// Permission to list locks.
    List,
    /// Permission to force-release locks.
    ForceRelease,
    /// Permission to set the limits of locks.
    SetLimit,
    /// Permission to close and open locks, and to set their limits.
    Admin,
}

pub const PERMISSIONS: [Permission; 6] = [
    Permission::Acquire,
    Permission::Observe,
    Permission::List,
    Permission::ForceRelease,
    Permission::SetLimit,
    Permission::Admin,
];

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Observe => "observe",
            Self::List => "list",
            Self::ForceRelease => "force_release",
            Self::SetLimit => "set_limit",
            Self::Admin => "admin",
        })
    }
}

/// A part of the locks. Each lock of the tests is in one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockGroup {
    /// A namespace that only few roles may access.
    Vault,
    /// Names in the default namespace that only few roles may access.
    Closed,
    /// A namespace that callers may use.
    Open,
    /// Names in the default namespace that callers may use.
    Shared,
}

pub const LOCK_GROUPS: [LockGroup; 4] = [
    LockGroup::Vault,
    LockGroup::Closed,
    LockGroup::Open,
    LockGroup::Shared,
];
/// The parts that only few roles may access.
pub const RESTRICTED_GROUPS: [LockGroup; 2] = [LockGroup::Vault, LockGroup::Closed];
/// The parts that callers may use.
pub const OPEN_GROUPS: [LockGroup; 2] = [LockGroup::Open, LockGroup::Shared];

impl LockGroup {
    /// Returns the namespace pattern and the name pattern of a rule for the part.
    const fn patterns(self) -> (&'static str, &'static str) {
        match self {
            Self::Vault => ("vault", "*"),
            Self::Closed => ("default", "closed/*"),
            Self::Open => ("open", "*"),
            Self::Shared => ("default", "shared/*"),
        }
    }

    /// Returns the part of a lock of the tests.
    #[must_use]
    pub fn group_of(lock: &LockTarget) -> Option<Self> {
        LOCK_GROUPS.into_iter().find(|part| {
            let first = part.lock("");
            first.namespace == lock.namespace && lock.name.starts_with(&first.name)
        })
    }

    /// Returns a lock in the part.
    #[must_use]
    pub fn lock(self, name: &str) -> LockRef {
        let (namespace, pattern) = self.patterns();
        LockRef {
            namespace: namespace.to_owned(),
            name: pattern.replace('*', name),
        }
    }
}

/// The kind of credential that a caller presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    Absent,
    /// An unknown token.
    UnknownToken,
    /// A static token.
    StaticToken,
    /// A signed token (JWT).
    SignedToken,
    ClientCertificate,
}

#[derive(Debug, Clone)]
pub struct Role {
    /// Name in the policy, without the prefix before the colon.
    pub name: String,
    /// Kind of the credential.
    pub credential: CredentialKind,
    permissions: Vec<(LockGroup, Vec<Permission>)>,
}

impl Role {
    /// Creates a role with these rights and no others.
    #[must_use]
    pub fn new(
        name: &str,
        credential: CredentialKind,
        permissions: Vec<(LockGroup, Vec<Permission>)>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            credential,
            permissions,
        }
    }

    /// Returns true if the role has the permission for the locks of a part.
    #[must_use]
    pub fn has_permission(&self, verb: Permission, part: LockGroup) -> bool {
        let has = |verbs: &[Permission]| {
            let is_implied = verb == Permission::SetLimit && verbs.contains(&Permission::Admin);
            is_implied || verbs.contains(&verb)
        };
        let mut rights = self.permissions.iter();
        rights.any(|(of, verbs)| *of == part && has(verbs))
    }

    /// Returns true if the role has the permission for any part.
    #[must_use]
    pub fn has_permission_anywhere(&self, verb: Permission) -> bool {
        LOCK_GROUPS
            .iter()
            .any(|part| self.has_permission(verb, *part))
    }

    /// Returns true if brokers can authenticate the role.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        !matches!(
            self.credential,
            CredentialKind::Absent | CredentialKind::UnknownToken
        )
    }

    /// Returns the code and the reason of a rejection of the role.
    #[must_use]
    pub fn rejection(&self) -> (Code, ErrorReason) {
        match self.is_authenticated() {
            true => (Code::PermissionDenied, ErrorReason::PermissionDenied),
            false => (Code::Unauthenticated, ErrorReason::Unauthenticated),
        }
    }

    /// Returns the name of the caller in a policy.
    #[must_use]
    pub fn caller(&self) -> String {
        let name = &self.name;
        match self.credential {
            CredentialKind::Absent | CredentialKind::UnknownToken => String::new(),
            CredentialKind::StaticToken => format!("token:{name}"),
            CredentialKind::SignedToken => format!("jwt:{name}"),
            CredentialKind::ClientCertificate => spiffe_id(name),
        }
    }

    fn rules(&self) -> String {
        let rule = |(part, verbs): &(LockGroup, Vec<Permission>)| {
            let verbs: Vec<_> = verbs.iter().map(|verb| format!("\"{verb}\"")).collect();
            let (namespaces, names) = part.patterns();
            format!(
                "[[rule]]\ncallers = [\"{}\"]\nverbs = [{}]\nnamespaces = [\"{namespaces}\"]\nnames = [\"{names}\"]\n",
                self.caller(),
                verbs.join(", ")
            )
        };
        self.permissions.iter().map(rule).collect()
    }
}

/// Returns the role with all permissions.
#[must_use]
pub fn root_role() -> Role {
    let rights = LOCK_GROUPS
        .map(|part| (part, PERMISSIONS.to_vec()))
        .to_vec();
    Role::new("root", CredentialKind::StaticToken, rights)
}

/// Returns every kind of caller. With `all`, each right on the open parts is combined with each
/// kind of credential, otherwise with one of them.
#[must_use]
pub fn roles(all: bool) -> Vec<Role> {
    let mut roles = vec![
        root_role(),
        Role::new("nobody", CredentialKind::Absent, Vec::new()),
        Role::new("liar", CredentialKind::UnknownToken, Vec::new()),
        Role::new("stranger", CredentialKind::StaticToken, Vec::new()),
        Role::new("stranger-signed", CredentialKind::SignedToken, Vec::new()),
        Role::new(
            "stranger-certified",
            CredentialKind::ClientCertificate,
            Vec::new(),
        ),
    ];
    let credentials = [
        (CredentialKind::StaticToken, "token"),
        (CredentialKind::SignedToken, "signed"),
        (CredentialKind::ClientCertificate, "certificate"),
    ];
    let scoped = OPEN_GROUPS
        .iter()
        .flat_map(|part| PERMISSIONS.map(|verb| (*part, verb)));
    for (number, (part, verb)) in scoped.enumerate() {
        let presented = credentials.iter().enumerate();
        let presented = presented.filter(|(kind, _)| all || *kind == number % credentials.len());
        for (_, (shows, kind)) in presented {
            let name = format!("{verb}-{part:?}-{kind}")
                .to_lowercase()
                .replace('_', "-");
            roles.push(Role::new(&name, *shows, vec![(part, vec![verb])]));
        }
    }
    for verb in PERMISSIONS {
        let name = verb.to_string().replace('_', "-");
        let only = RESTRICTED_GROUPS.map(|part| (part, vec![verb])).to_vec();
        roles.push(Role::new(
            &format!("only-{name}"),
            CredentialKind::StaticToken,
            only,
        ));
        let others: Vec<_> = PERMISSIONS
            .into_iter()
            .filter(|other| *other != verb)
            .collect();
        let secret = RESTRICTED_GROUPS.map(|part| (part, others.clone()));
        let open = OPEN_GROUPS.map(|part| (part, PERMISSIONS.to_vec()));
        let all_but = secret.into_iter().chain(open).collect();
        roles.push(Role::new(
            &format!("all-but-{name}"),
            CredentialKind::SignedToken,
            all_but,
        ));
    }
    roles
}

/// Returns the policy that grants the roles their rights.
#[must_use]
pub fn policy(roles: &[Role]) -> String {
    roles.iter().map(Role::rules).collect()
}
