//! Limits of the requests per client address that cannot be authenticated, or only at a cost.

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    address::AddressBlock,
    rate_limit::{KeyedRateLimiter, RateLimit},
};

/// Failed authentication attempts.
const FAILURE_RATE: RateLimit = RateLimit::per_second(5, 10);
/// Verifications of the signatures of tokens that are not cached. Verification is the most
/// expensive step of a call.
const SIGNATURE_RATE: RateLimit = RateLimit::per_second(50, 200);

/// Counters of failed attempts and of verified signatures. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AuthLimits(Arc<Mutex<Limiters>>);

#[derive(Debug, Default)]
struct Limiters {
    failures: KeyedRateLimiter<AddressBlock>,
    signatures: KeyedRateLimiter<AddressBlock>,
}

impl AuthLimits {
    /// Counts a failed attempt. `Err` is the time after which the address may try again.
    pub(super) fn record_failure(&self, address: IpAddr) -> Result<(), Duration> {
        self.0.lock().failures.check(FAILURE_RATE, address.into())
    }

    /// Returns true if one more signature may be verified for the address, and counts it.
    pub(super) fn may_verify_signature(&self, address: IpAddr) -> bool {
        let signatures = &mut self.0.lock().signatures;
        signatures.check(SIGNATURE_RATE, address.into()).is_ok()
    }
}
