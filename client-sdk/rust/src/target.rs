//! What to take: a lock's name, and how it is shared.

use leasehold_proto::v1::{LockMode, LockRef, LockTarget};

/// One lock to take, and how.
///
/// ```
/// use leasehold::Target;
///
/// let mutex = Target::from("orders/42");
/// let reader = Target::new("catalogue").shared();
/// let permits = Target::new("gpu").namespace("render").permits(2, 8);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Target(LockTarget);

impl Target {
    /// The lock with this name, 1-512 bytes without control characters, for one holder alone.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(LockTarget {
            name: name.into(),
            mode: LockMode::Exclusive.into(),
            ..LockTarget::default()
        })
    }

    /// In this namespace, 1-63 characters of `[a-z0-9-]`, instead of `default`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.namespace = namespace.into();
        self
    }

    /// Together with any number of other holders that share it, but with none that does not.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.0.mode = LockMode::Shared.into();
        self
    }

    /// As a semaphore: `permits` of the `limit` (1-1000) that the lock has in all. All callers name the
    /// same limit; 0 takes the one in use.
    #[must_use]
    pub fn permits(mut self, permits: u32, limit: u32) -> Self {
        self.0.mode = LockMode::Semaphore.into();
        // What does not fit is refused by the broker, as too much.
        self.0.permits = i32::try_from(permits).unwrap_or(i32::MAX);
        self.0.limit = i32::try_from(limit).unwrap_or(i32::MAX);
        self
    }

    pub(crate) fn lock(&self) -> LockRef {
        lock(&self.0)
    }

    pub(crate) fn from_proto(target: LockTarget) -> Self {
        Self(target)
    }

    pub(crate) fn into_proto(self) -> LockTarget {
        self.0
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// The lock of a target, with the default namespace filled in.
pub(crate) fn lock(target: &LockTarget) -> LockRef {
    let namespace = match target.namespace.as_str() {
        "" => "default",
        named => named,
    };
    LockRef {
        namespace: namespace.to_owned(),
        name: target.name.clone(),
    }
}

/// A lock for people.
pub(crate) fn shown(lock: &LockRef) -> String {
    format!("{}/{}", lock.namespace, lock.name)
}
