//! Recovery of a store: the period after a loss of data in which it grants nothing new.

/// Reason for which a store recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecoveryCause {
    /// The server was restarted with its data, of which the last writes may be missing.
    Restarted,
    /// Another server process became the master: a replica was promoted, or a master with replicas
    /// was restarted.
    Promoted,
    /// The store had no data: it lost them, or was never used.
    Emptied,
    /// The deployment key was lost, so that repeats of older calls cannot be recognized.
    KeyLost,
    /// The server violated an assumption of the guarantees, so that locks may have been lost
    /// without a trace.
    AssumptionViolated,
    /// In a cluster: another server process has the slot, because the slot moved or its server was
    /// restarted.
    SlotMoved,
    /// In a cluster: the slot was moving to another server but stayed, so that the writes of the
    /// other server may be lost.
    SlotStayed,
}

impl RecoveryCause {
    pub const ALL: [Self; 7] = [
        Self::Restarted,
        Self::Promoted,
        Self::Emptied,
        Self::KeyLost,
        Self::AssumptionViolated,
        Self::SlotMoved,
        Self::SlotStayed,
    ];

    /// Returns the word for the cause in eras, in the log and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Promoted => "promoted",
            Self::Emptied => "emptied",
            Self::KeyLost => "key_lost",
            Self::AssumptionViolated => "assumption_violated",
            Self::SlotMoved => "slot_moved",
            Self::SlotStayed => "slot_stayed",
        }
    }

    /// Returns the cause with this name. `None` if only a later version has the cause.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}
