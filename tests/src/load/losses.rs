//! Losses of leases that clients receive, and their causes. A loss without a cause is a fault of
//! the broker or of its store.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use tonic::Status;

use crate::{scale::print_figures, status::error_reason};

/// Period of time.
#[derive(Debug, Clone, Copy)]
pub struct Period {
    pub started_at: Duration,
    pub ended_at: Duration,
}

impl Period {
    /// Returns true if the periods have a moment in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.started_at <= other.ended_at && other.started_at <= self.ended_at
    }
}

/// A loss of data in the store: the writes of this period may be lost. It ends when the store that
/// lost them serves.
pub type DataLoss = Period;

/// A reply by which a client is notified that it has lost a lease.
#[derive(Debug, Clone)]
pub struct LossReport {
    pub reason: ErrorReason,
    /// Time at which the reply arrived.
    pub received_at: Duration,
    /// Latest acknowledged acquire or renewal of the lock with the earliest end of its validity,
    /// from its sending to its reply.
    pub acknowledged: Period,
    /// End of the validity.
    pub valid_until: Duration,
    /// True if an earlier release by the client may have been executed.
    pub is_release_sent: bool,
}

/// Cause of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// The client itself has sent a release.
    ReleaseSent,
    /// The validity passed without an acknowledged renewal.
    ValidityPassed,
    /// The store lost data that the lease needs.
    DataLost,
}

/// Numbers of losses by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    pub release_sent: usize,
    pub validity_passed: usize,
    pub data_lost: usize,
    pub without_cause: usize,
}

impl LossReport {
    /// Returns the cause of the loss, or `None` if the lease should not have been lost.
    #[must_use]
    pub fn cause(&self, data_losses: &[DataLoss]) -> Option<LossCause> {
        let is_lost_in = |loss: &DataLoss| {
            self.acknowledged.overlaps(loss) && self.received_at >= loss.started_at
        };
        if self.is_release_sent {
            Some(LossCause::ReleaseSent)
        } else if self.received_at >= self.valid_until {
            Some(LossCause::ValidityPassed)
        } else if data_losses.iter().any(is_lost_in) {
            Some(LossCause::DataLost)
        } else {
            None
        }
    }
}

impl LossCounts {
    /// Counts the losses by cause. Prints each loss without a cause.
    #[must_use]
    pub fn of(losses: &[LossReport], data_losses: &[DataLoss]) -> Self {
        let mut counts = Self::default();
        for loss in losses {
            let count = match loss.cause(data_losses) {
                Some(LossCause::ReleaseSent) => &mut counts.release_sent,
                Some(LossCause::ValidityPassed) => &mut counts.validity_passed,
                Some(LossCause::DataLost) => &mut counts.data_lost,
                None => {
                    print_figures(&format!("a loss without a cause: {loss:?}"));
                    &mut counts.without_cause
                }
            };
            *count += 1;
        }
        counts
    }
}

/// Returns the reason of an error that reports the loss of a lease.
#[must_use]
pub fn loss_reason(status: &Status) -> Option<ErrorReason> {
    let losses = [
        ErrorReason::LeaseExpired,
        ErrorReason::LeaseRevoked,
        ErrorReason::LeaseNotFound,
        ErrorReason::StaleToken,
        ErrorReason::NotHolder,
    ];
    error_reason(status).filter(|reason| losses.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn period(started_ms: u64, ended_ms: u64) -> Period {
        Period {
            started_at: at(started_ms),
            ended_at: at(ended_ms),
        }
    }

    fn loss() -> LossReport {
        LossReport {
            reason: ErrorReason::LeaseNotFound,
            received_at: at(500),
            acknowledged: period(100, 110),
            valid_until: at(1_100),
            is_release_sent: false,
        }
    }

    #[test]
    fn a_loss_of_a_valid_lease_has_no_cause() {
        let later = period(600, 700);
        let earlier = period(10, 50);
        assert_eq!(loss().cause(&[earlier, later]), None);
        let counts = LossCounts::of(&[loss(), loss()], &[]);
        assert_eq!(counts.without_cause, 2);
    }

    #[test]
    fn each_cause_is_found() {
        let passed = LossReport {
            received_at: at(1_100),
            ..loss()
        };
        let released = LossReport {
            is_release_sent: true,
            ..loss()
        };
        let data_loss = period(105, 400);
        assert_eq!(passed.cause(&[]), Some(LossCause::ValidityPassed));
        assert_eq!(released.cause(&[]), Some(LossCause::ReleaseSent));
        assert_eq!(loss().cause(&[data_loss]), Some(LossCause::DataLost));
    }
}
