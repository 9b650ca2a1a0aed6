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
    /// How far a promoted replica may have been behind.
    pub replica_lag_max_ms: u64,
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
}

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
            replica_lag_max_ms: 12_000,
        }
    }
}

impl EraBounds {
    /// `Q`: after so long, nothing that a lost grant allowed can still be in force.
    pub const fn quarantine_ms(&self) -> u64 {
        expiry_ms(self.ttl_max_ms) + self.lock_delay_max_ms + self.replica_lag_max_ms + 1_000
    }

    /// The larger of both, bound by bound.
    pub fn max(self, other: Self) -> Self {
        Self {
            ttl_max_ms: self.ttl_max_ms.max(other.ttl_max_ms),
            lock_delay_max_ms: self.lock_delay_max_ms.max(other.lock_delay_max_ms),
            replica_lag_max_ms: self.replica_lag_max_ms.max(other.replica_lag_max_ms),
        }
    }
}

impl ServerIdentity {
    /// Whether a server that showed `replid` before still serves the same line of data. A first
    /// replica or a backup changes the id too, but leaves the second one all zeros.
    pub fn continues(&self, replid: &str) -> bool {
        self.replid == replid || self.replid2.bytes().all(|b| b == b'0')
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
            ..,
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
                replica_lag_max_ms: lag.parse().ok()?,
            },
            key_fingerprint: fingerprint.to_owned(),
            key_source: match source {
                "store" => KeySource::Store,
                "file" => KeySource::File,
                _ => return None,
            },
        })
    }

    /// The stored text after `no_grants_before`, which the script computes.
    pub fn fields_after_time(&self) -> String {
        format!(
            "{SCHEMA}|{}|{}|{}|{}|{}|{}|{}",
            self.run_id,
            self.replid,
            self.bounds.ttl_max_ms,
            self.bounds.lock_delay_max_ms,
            self.bounds.replica_lag_max_ms,
            self.key_fingerprint,
            match self.key_source {
                KeySource::Store => "store",
                KeySource::File => "file",
            }
        )
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
}
