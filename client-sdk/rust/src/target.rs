//! The lock to acquire: its name and mode.

use leasehold_proto::v1::{LockMode, LockRef, LockTarget};

/// A lock to acquire, and its mode.
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
    /// Creates a target for the lock with this name, 1 to 512 bytes without control characters. The
    /// mode is exclusive.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(LockTarget {
            name: name.into(),
            mode: LockMode::Exclusive.into(),
            ..LockTarget::default()
        })
    }

    /// Sets the namespace, 1 to 63 characters of `[a-z0-9-]`. Default: `default`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.namespace = namespace.into();
        self
    }

    /// Sets the mode to shared: any number of shared holders, and no holder of another mode.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.0.mode = LockMode::Shared.into();
        self
    }

    /// Sets the mode to semaphore, with `permits` of the lock's `limit` (1 to 1000) permits. All
    /// callers use the same limit; 0 means the limit in use.
    #[must_use]
    pub fn permits(mut self, permits: u32, limit: u32) -> Self {
        self.0.mode = LockMode::Semaphore.into();
        // Larger values are rejected by the broker as too large.
        self.0.permits = i32::try_from(permits).unwrap_or(i32::MAX);
        self.0.limit = i32::try_from(limit).unwrap_or(i32::MAX);
        self
    }

    pub(crate) fn lock_ref(&self) -> LockRef {
        lock_ref(&self.0)
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

/// Returns the lock of a target, with the default namespace filled in.
pub(crate) fn lock_ref(target: &LockTarget) -> LockRef {
    let namespace = match target.namespace.as_str() {
        "" => "default",
        named => named,
    };
    LockRef {
        namespace: namespace.to_owned(),
        name: target.name.clone(),
    }
}

/// Formats a lock for people.
pub(crate) fn display_lock(lock: &LockRef) -> String {
    format!("{}/{}", lock.namespace, lock.name)
}
