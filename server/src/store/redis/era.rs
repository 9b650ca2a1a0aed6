//! The era: what a store records of the server process that keeps it, and since when it may grant.

use super::scripts::SCHEMA;
use crate::lock::{BrokerId, DeploymentKey, expiry_ms};

/// The longest times that brokers of a deployment allow, from which the quarantine follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EraBounds {
    /// The longest validity of a lease.
    pub ttl_max_ms: u64,
    /// The longest lock_delay.
    pub lock_delay_max_ms: u64,
    /// How long a master that was replaced may still take writes.
    pub former_master_max_ms: u64,
}

/// Where a deployment key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// Created once, and kept in the store.
    Store,
    /// Given to every broker in a file; not in the store.
    File,
}

/// Which data a server process serves, as INFO tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// New at every start of the process.
    pub run_id: String,
    /// The replication id of the data.
    pub replid: String,
    /// The replication id before the last promotion; all zeros if there was none.
    pub replid2: String,
}

/// The record under `<prefix>era`. Scripts compare its first field and read its second; the third is
/// the [`SCHEMA`], and all three are there in every version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Era {
    /// Random.
    pub id: String,
    /// Redis time before which nothing new is granted.
    pub no_grants_before_ms: u64,
    /// The process for which it was written.
    pub run_id: String,
    /// The replication id of that process then.
    pub replid: String,
    /// The largest bounds of the brokers that serve in it.
    pub bounds: EraBounds,
    /// Names the deployment key without telling it.
    pub key_fingerprint: String,
    /// Where that key is.
    pub key_source: KeySource,
    /// The master that the process has replaced, and which may still take writes.
    pub former: Option<FormerMaster>,
    /// In a cluster: the slot was on its way to another server, which may have some of its locks.
    pub is_moving: bool,
}

/// A master that was replaced. It may still take writes: it ends leases in time, and grants their locks, without
/// knowing how its successor has renewed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerMaster {
    /// Its process.
    pub process: FormerProcess,
    /// Redis time of the successor, from which on it takes none.
    pub until_ms: u64,
}

/// The process of a former master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormerProcess {
    /// The one with this run id.
    Known(Box<str>),
    /// It is not known which, or there are several.
    Unknown,
}

/// What stands behind the fields of an era whose slot is on its way: moving.lua.
const MOVING: &str = "moving";
/// What a field begins with that names the former master: era.lua.
const FORMER: &str = "former:";
/// Its run id, where that is unknown.
const UNKNOWN: &str = "*";

/// Why a stored text is no era in which this version may serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOurs {
    /// It is none at all.
    Unreadable,
    /// Its brokers keep locks in another way.
    OtherSchema(String),
}

impl Default for EraBounds {
    fn default() -> Self {
        Self {
            ttl_max_ms: 60_000,
            lock_delay_max_ms: 10_000,
            former_master_max_ms: 12_000,
        }
    }
}

impl EraBounds {
    /// `Q`: after so long, nothing that a lost grant allowed can still be in force.
    pub const fn quarantine_ms(&self) -> u64 {
        expiry_ms(self.ttl_max_ms)
            .saturating_add(self.lock_delay_max_ms)
            .saturating_add(self.former_master_max_ms)
            .saturating_add(1_000)
    }

    /// The larger of both, bound by bound.
    pub fn max(self, other: Self) -> Self {
        Self {
            ttl_max_ms: self.ttl_max_ms.max(other.ttl_max_ms),
            lock_delay_max_ms: self.lock_delay_max_ms.max(other.lock_delay_max_ms),
            former_master_max_ms: self.former_master_max_ms.max(other.former_master_max_ms),
        }
    }
}

impl ServerIdentity {
    /// Whether a server that showed `replid` before still serves the same line of data. A first
    /// replica or a backup changes the id too, but leaves the second one all zeros.
    pub fn continues(&self, replid: &str) -> bool {
        self.replid == replid || !self.has_replaced_a_master()
    }

    /// Whether it may have been a replica before. A master that restarts may show so, too.
    pub fn has_replaced_a_master(&self) -> bool {
        self.replid2.bytes().any(|b| b != b'0')
    }
}

impl Era {
    /// The first era of a process, with a fresh id.
    pub fn new(
        server: &ServerIdentity,
        bounds: EraBounds,
        key: &DeploymentKey,
        key_source: KeySource,
    ) -> Self {
        Self {
            id: BrokerId::random().to_string(),
            no_grants_before_ms: 0,
            run_id: server.run_id.clone(),
            replid: server.replid.clone(),
            bounds,
            key_fingerprint: key.fingerprint(),
            key_source,
            former: None,
            is_moving: false,
        }
    }

    /// Reads the stored text.
    ///
    /// # Errors
    /// When it is none, or of another schema.
    pub fn parse(text: &str) -> Result<Self, NotOurs> {
        match text.split('|').nth(2) {
            Some(SCHEMA) => Self::read(text).ok_or(NotOurs::Unreadable),
            Some(schema) => Err(NotOurs::OtherSchema(schema.to_owned())),
            None => Err(NotOurs::Unreadable),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('|').collect();
        // What a later version adds without another schema stands behind.
        let &[
            id,
            no_grants_before,
            _schema,
            run_id,
            replid,
            ttl,
            delay,
            lag,
            fingerprint,
            source,
            ref more @ ..,
        ] = fields.as_slice()
        else {
            return None;
        };
        Some(Self {
            id: id.to_owned(),
            no_grants_before_ms: no_grants_before.parse().ok()?,
            run_id: run_id.to_owned(),
            replid: replid.to_owned(),
            bounds: EraBounds {
                ttl_max_ms: ttl.parse().ok()?,
                lock_delay_max_ms: delay.parse().ok()?,
                former_master_max_ms: lag.parse().ok()?,
            },
            key_fingerprint: fingerprint.to_owned(),
            key_source: match source {
                "store" => KeySource::Store,
                "file" => KeySource::File,
                _ => return None,
            },
            former: more.iter().find_map(|field| FormerMaster::parse(field)),
            is_moving: more.contains(&MOVING),
        })
    }

    /// The stored text after `no_grants_before`, which the script computes, as it does the former master.
    pub fn fields_after_time(&self) -> String {
        let mut fields = format!(
            "{SCHEMA}|{}|{}|{}|{}|{}|{}|{}",
            self.run_id,
            self.replid,
            self.bounds.ttl_max_ms,
            self.bounds.lock_delay_max_ms,
            self.bounds.former_master_max_ms,
            self.key_fingerprint,
            match self.key_source {
                KeySource::Store => "store",
                KeySource::File => "file",
            }
        );
        if self.is_moving {
            fields.extend(["|", MOVING]);
        }
        fields
    }
}

impl FormerMaster {
    fn parse(field: &str) -> Option<Self> {
        let (until_ms, run_id) = field.strip_prefix(FORMER)?.split_once(':')?;
        Some(Self {
            process: match run_id {
                UNKNOWN => FormerProcess::Unknown,
                run_id => FormerProcess::Known(run_id.into()),
            },
            until_ms: until_ms.parse().ok()?,
        })
    }
}

impl FormerProcess {
    /// As it is written.
    pub fn field(&self) -> &str {
        match self {
            Self::Known(run_id) => run_id,
            Self::Unknown => UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_era_is_read_back() {
        let server = ServerIdentity {
            run_id: "run".into(),
            replid: "repl".into(),
            replid2: "000".into(),
        };
        let key = DeploymentKey::random();
        let mut era = Era::new(&server, EraBounds::default(), &key, KeySource::File);
        era.no_grants_before_ms = 1_795_000_000_000;
        let text = format!(
            "{}|{}|{}",
            era.id,
            era.no_grants_before_ms,
            era.fields_after_time()
        );
        assert_eq!(Era::parse(&format!("{text}|more")), Ok(era.clone()));
        let moving = Era {
            is_moving: true,
            ..era.clone()
        };
        let fields = moving.fields_after_time();
        assert_eq!(fields, format!("{}|moving", era.fields_after_time()));
        assert_eq!(Era::parse(&format!("{text}|moving")), Ok(moving));
        let until_ms = 1_795_000_012_000;
        for process in [
            FormerProcess::Known("before".into()),
            FormerProcess::Unknown,
        ] {
            let text = format!("{text}|former:{until_ms}:{}", process.field());
            let replaced = Era {
                former: Some(FormerMaster { process, until_ms }),
                ..era.clone()
            };
            assert_eq!(Era::parse(&text), Ok(replaced));
        }
        assert_eq!(Era::parse(&text), Ok(era));
        assert_eq!(Era::parse("x"), Err(NotOurs::Unreadable));
        let elsewhere = text.replace("file", "elsewhere");
        assert_eq!(Era::parse(&elsewhere), Err(NotOurs::Unreadable));
        let later = Era::parse("id|0|2|in whatever way");
        assert_eq!(later, Err(NotOurs::OtherSchema("2".to_owned())));
    }

    #[test]
    fn the_quarantine_follows_from_the_bounds() {
        assert_eq!(
            EraBounds::default().quarantine_ms(),
            72_250 + 10_000 + 12_000 + 1_000
        );
    }

    #[test]
    fn bounds_of_a_garbled_era_make_no_short_quarantine() {
        let text = format!("id|0|{SCHEMA}|run|repl|{0}|{0}|{0}|key|store", u64::MAX);
        let era = Era::parse(&text).expect("an era");
        assert_eq!(era.bounds.quarantine_ms(), u64::MAX);
    }
}
