//! A model of the limit of spans and of the time without grants after a store has lost data: brokers,
//! the masters of a store, one after the other, and copies of any age from which they begin.
//!
//! The span of a lease is the time for which it can block its lock after a grant or a renewal. The
//! store has a limit for spans, and brokers wait after a loss of data as long as the limit requires.
//! The model has one lock. A step of its time stands for a second or more.

mod action;
mod data;
pub mod early_end;
pub mod limit;
pub mod random;
mod world;

pub use self::{
    action::{RecoveryAction, Source},
    world::{Deployment, RecoveryWorld},
};

/// Number of brokers.
pub const BROKERS: usize = 3;
/// The span that is always allowed.
pub const SPAN_MIN: u64 = 4;
/// The largest span that the brokers are configured to grant.
pub const SPAN_CONFIGURED: u64 = 40;
/// Age at which what a broker or a copy has recorded about the limit no longer counts.
pub const TRUSTED: u64 = 10;
/// Longest time for which a replaced master executes commands after the era of its successor was
/// written.
pub const FORMER_MASTER_MAX: u64 = 3;
/// Time that is added to each time without grants.
const MARGIN: u64 = 1;

/// The rules of the limit, and of an early end. A test removes one at a time, and the model must find
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A grant is cut to the limit.
    GrantsAreLimited,
    /// A renewal is cut to the limit.
    RenewalsAreLimited,
    /// A raised limit is used after the longest roll-back that is trusted.
    RaiseOutlastsRollBack,
    /// A raised limit is used after a master that was replaced meanwhile has stopped.
    RaiseOutlastsFormerMaster,
    /// A lowered limit counts for the next recovery after all larger spans have passed.
    LoweringOutlastsSpans,
    /// A lowered limit counts after every broker has read it, or has a record that is too old.
    LoweringOutlastsRecords,
    /// A raise during a lowering waits as every raise.
    RaiseDuringLoweringWaits,
    /// A raise during a lowering keeps the former limit in force.
    RaiseDuringLoweringKeepsLimit,
    /// The larger limit counts while a change is pending.
    PendingChangeCounts,
    /// A broker's record counts from the time at which it sent the query.
    RecordHasTimeOfQuery,
    /// A broker's record counts for [`TRUSTED`].
    RecordsExpire,
    /// The stamp of a copy counts for [`TRUSTED`].
    StampsExpire,
    /// A stamp counts only on the server whose clock wrote it.
    StampsNeedOneClock,
    /// Without a record or a stamp the configured limit counts.
    ConfiguredWithoutRecord,
    /// A pending raise is not used in a new era.
    NewEraEndsRaise,
    /// The limit of the past eras counts until grants are allowed.
    NewEraKeepsLimit,
    /// A new era uses what the broker has recorded, not what the copy contains.
    NewEraUsesRecord,
    /// The time without grants includes the life of a replaced master.
    QuarantineOutlastsFormerMaster,
    /// The early end needs a report of every broker that is registered in the copy.
    EveryMemberReports,
    /// The early end needs a copy that contains the last number that each broker has seen.
    ProgressIsInTheCopy,
    /// The early end needs a past era in which grants were allowed, as each broker has seen.
    PastEraWasOpen,
    /// The early end needs a master whose clock agrees with that of the former one.
    ClocksAgree,
    /// A number counts only in its era.
    ProgressIsOfTheEra,
    /// A report counts only soon after the broker's last contact with a former master.
    ReportsAreFresh,
    /// A broker grants and renews only once another broker has seen its registration.
    BrokersAreAcknowledged,
    /// A broker that nobody acknowledges waits until no silent broker's report counts.
    LoneBrokerWaits,
}

impl Rule {
    /// The rules of an early end of the time without grants.
    pub const OF_EARLY_END: [Self; 8] = [
        Self::EveryMemberReports,
        Self::ProgressIsInTheCopy,
        Self::PastEraWasOpen,
        Self::ClocksAgree,
        Self::ProgressIsOfTheEra,
        Self::ReportsAreFresh,
        Self::BrokersAreAcknowledged,
        Self::LoneBrokerWaits,
    ];

    /// The rules of the limit.
    pub const OF_LIMIT: [Self; 18] = [
        Self::GrantsAreLimited,
        Self::RenewalsAreLimited,
        Self::RaiseOutlastsRollBack,
        Self::RaiseOutlastsFormerMaster,
        Self::LoweringOutlastsSpans,
        Self::LoweringOutlastsRecords,
        Self::RaiseDuringLoweringWaits,
        Self::RaiseDuringLoweringKeepsLimit,
        Self::PendingChangeCounts,
        Self::RecordHasTimeOfQuery,
        Self::RecordsExpire,
        Self::StampsExpire,
        Self::StampsNeedOneClock,
        Self::ConfiguredWithoutRecord,
        Self::NewEraEndsRaise,
        Self::NewEraKeepsLimit,
        Self::NewEraUsesRecord,
        Self::QuarantineOutlastsFormerMaster,
    ];
}
