//! The store of the model: one record for each lock, its era and its snapshots.

use leasehold_server::{
    lock::BrokerId,
    store::{
        memory::{
            context::{Bounds, Context, Grants, SpanLimit},
            record::Record,
        },
        redis::era::EraBounds,
    },
};

use super::keys::LockIndex;
use crate::differential::{
    StepResult,
    steps::{START_MS, StoreCommand},
};

/// Longest ttl of a call.
pub const TTL_MAX_MS: u64 = 2_000;
/// Longest lock delay of a call.
pub const LOCK_DELAY_MAX_MS: u64 = 1_000;
/// Longest time for which a master serves on after its replica was promoted.
const FORMER_MASTER_MAX_MS: u64 = 3_000;
/// Time without grants after a loss of data.
pub const QUARANTINE_MS: u64 = EraBounds {
    ttl_max_ms: TTL_MAX_MS,
    lock_delay_max_ms: LOCK_DELAY_MAX_MS,
    former_master_max_ms: FORMER_MASTER_MAX_MS,
}
.quarantine_ms();
/// Number of snapshots that the store can fall back to.
pub const SAVES_MAX: usize = 3;

/// Records of all locks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelStore {
    pub records: Vec<Record>,
    /// Number of the era; rises with each loss of data.
    pub era: u32,
    pub no_grants_before_ms: u64,
    /// The master whose replica was promoted, while brokers still reach it.
    former: Option<FormerMaster>,
    saves: Vec<Vec<Record>>,
    /// Everything that the store executed, if it is to be executed on the scripts, too.
    pub journal: Option<Vec<JournalEntry>>,
}

/// A master whose replica was promoted. It executes the commands of brokers that have not verified
/// the new era.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FormerMaster {
    records: Vec<Record>,
    era: u32,
    no_grants_before_ms: u64,
    until_ms: u64,
}

/// A command with all inputs of its reply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelStep {
    pub now_us: u64,
    pub lock: LockIndex,
    pub broker: BrokerId,
    pub not_after_ms: u64,
    /// Era that the broker has verified.
    pub era: u32,
    pub command: StoreCommand,
}

/// Something that the store executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalEntry {
    Step(Box<ModelStep>, Box<StepResult>),
    /// The store wrote a snapshot, the newest of those it keeps.
    Save,
    /// The store fell back to the snapshot at this index, with a new era.
    RollBack {
        save: usize,
        era: u32,
        no_grants_before_ms: u64,
    },
}

// The journal does not affect what happens later.
impl std::hash::Hash for JournalEntry {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl ModelStore {
    #[must_use]
    pub fn new(locks: usize, has_journal: bool) -> Self {
        Self {
            records: vec![Record::default(); locks],
            era: 0,
            no_grants_before_ms: 0,
            former: None,
            saves: vec![vec![Record::default(); locks]],
            journal: has_journal.then(Vec::new),
        }
    }

    /// Returns the record of a lock, and the era, for a broker that has verified `era`.
    #[must_use]
    pub fn record_at(&self, era: u32, lock: LockIndex, now_us: u64) -> (&Record, u32) {
        let lock = usize::from(lock);
        match &self.former {
            Some(former) if former.serves(era, now_us) => (&former.records[lock], former.era),
            Some(_) | None => (&self.records[lock], self.era),
        }
    }

    /// Executes a command, and returns its reply and the leases that it found expired.
    pub fn execute(&mut self, step: ModelStep, bounds: Bounds) -> StepResult {
        let former = self.former.as_mut();
        let former = former.filter(|former| former.serves(step.era, step.now_us));
        let is_at_former = former.is_some();
        let (records, era, no_grants_before_ms) = match former {
            Some(former) => (&mut former.records, former.era, former.no_grants_before_ms),
            None => (&mut self.records, self.era, self.no_grants_before_ms),
        };
        let context = Context {
            now_us: step.now_us,
            broker: step.broker,
            not_after_ms: step.not_after_ms,
            grants: match step.era == era {
                true => Grants::NotBefore(no_grants_before_ms),
                false => Grants::Never,
            },
            span_limit: SpanLimit::None,
            token_floor: None,
            bounds,
        };
        let record = &mut records[usize::from(step.lock)];
        let reply = step.command.execute(record, &context);
        let result = (reply, std::mem::take(&mut record.end_events));
        // The scripts run on the new master only.
        if let Some(journal) = self.journal.as_mut().filter(|_| !is_at_former) {
            journal.push(JournalEntry::Step(Box::new(step), Box::new(result.clone())));
        }
        result
    }

    /// Writes a snapshot.
    pub fn save(&mut self) {
        if self.saves.len() == SAVES_MAX {
            self.saves.remove(0);
        }
        self.saves.push(self.records.clone());
        if let Some(journal) = &mut self.journal {
            journal.push(JournalEntry::Save);
        }
    }

    /// Returns true if a lock has other holders in the snapshot, where 0 is the newest.
    #[must_use]
    pub fn has_other_holders(&self, saves_ago: u8) -> bool {
        let save = self.saves.len().checked_sub(usize::from(saves_ago) + 1);
        let saved = save.and_then(|save| self.saves.get(save));
        let tokens = |record: &Record| {
            let holders = record.get(0).holders;
            let tokens = holders.into_iter().map(|holder| holder.fencing_token);
            tokens.collect::<Vec<_>>()
        };
        let mut pairs = saved.into_iter().flatten().zip(&self.records);
        pairs.any(|(saved, record)| tokens(saved) != tokens(record))
    }

    /// Falls back to a snapshot, where 0 is the newest. Returns false if there is none.
    pub fn roll_back(&mut self, saves_ago: u8, now_us: u64) -> bool {
        let Some(save) = self.saves.len().checked_sub(usize::from(saves_ago) + 1) else {
            return false;
        };
        self.former = None;
        self.records.clone_from(&self.saves[save]);
        self.era += 1;
        self.no_grants_before_ms = now_us / 1_000 + QUARANTINE_MS;
        if let Some(journal) = &mut self.journal {
            journal.push(JournalEntry::RollBack {
                save,
                era: self.era,
                no_grants_before_ms: self.no_grants_before_ms,
            });
        }
        true
    }

    /// Promotes a replica that has the data of a snapshot. Brokers that have not verified the new era
    /// still reach the former master for a while. Returns false if there is no such snapshot.
    pub fn promote(&mut self, saves_ago: u8, now_us: u64) -> bool {
        let former = FormerMaster {
            records: self.records.clone(),
            era: self.era,
            no_grants_before_ms: self.no_grants_before_ms,
            until_ms: now_us / 1_000 + FORMER_MASTER_MAX_MS,
        };
        let is_promoted = self.roll_back(saves_ago, now_us);
        if is_promoted {
            self.former = Some(former);
        }
        is_promoted
    }
}

impl FormerMaster {
    fn serves(&self, era: u32, now_us: u64) -> bool {
        era == self.era && now_us / 1_000 < self.until_ms
    }
}

/// Time at which each history begins, in microseconds since 1970.
pub const START_US: u64 = START_MS * 1_000;
