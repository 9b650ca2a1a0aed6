//! Era of a store: the record of the server process that keeps the store, and the time from which
//! it may grant.

use super::{scripts::SCHEMA, span_limit::StoredSpanLimit};
use crate::lock::{
    BrokerId, DeploymentKey, FencingToken, Recovery, RecoveryCause, SPAN_MIN_MS, span_ms,
};

/// Longest times that the brokers of a deployment allow, from which the quarantine follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EraBounds {
    /// Longest validity of a lease.
    pub ttl_max_ms: u64,
    /// Longest lock_delay of a lock.
    pub lock_delay_max_ms: u64,
    /// Longest time for which a replaced master may still accept writes.
    pub former_master_max_ms: u64,
}

/// Source of a deployment key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// Generated once, and kept in the store.
    Store,
    /// Given to every broker in a file, and not stored.
    File,
}

/// Identity of a server process and of its data, from INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Run id of the process, which changes with every start.
    pub run_id: String,
    /// Replication id of the data.
    pub replid: String,
    /// Replication id before the last promotion, or all zeros if there was none.
    pub replid2: String,
}

/// The record under `<prefix>era`. Scripts compare its first field and read the second; the third
/// is the [`SCHEMA`]. Every version writes these three fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Era {
    /// Random id, which no other era has.
    pub id: String,
    /// Time of the Redis clock before which nothing new is granted.
    pub no_grants_before_ms: u64,
    /// Run id of the process for which the era was written.
    pub run_id: String,
    /// Replication id of that process at that time.
    pub replid: String,
    /// Largest bounds of the brokers that serve in this era.
    pub bounds: EraBounds,
    /// Fingerprint of the deployment key, which does not reveal the key.
    pub key_fingerprint: String,
    pub key_source: KeySource,
    /// The master that the process has replaced and that may still accept writes.
    pub former: Option<FormerMaster>,
    /// In a cluster: true if the slot was moving to another server, which may have some of its
    /// locks.
    pub is_moving: bool,
    /// The limit of spans. `None` if the store has no such limit.
    pub span_limit: Option<StoredSpanLimit>,
    /// Token of an earlier era that each grant exceeds. `None` if the time of the Redis clock is
    /// larger than all earlier tokens.
    pub token_floor: Option<FencingToken>,
    /// The period without grants with which the era began. `None` if there was none, or if an
    /// earlier version wrote the era.
    pub quarantine: Option<Quarantine>,
}

/// Reason and beginning of the period in which an era allows no grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantine {
    /// `None` if only a later version has the cause.
    pub cause: Option<RecoveryCause>,
    /// Time of the Redis clock.
    pub since_ms: u64,
}

/// A replaced master that may still accept writes. It expires leases on schedule and grants their
/// locks, because it does not receive the renewals made at its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerMaster {
    pub process: FormerProcess,
    /// Time of the successor's clock from which the former master accepts no writes.
    pub until_ms: u64,
}

/// The process of a former master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormerProcess {
    /// The process with this run id.
    Known(Box<str>),
    /// An unknown process, or several processes.
    Unknown,
}

/// Time that is added to each period without grants.
pub const QUARANTINE_MARGIN_MS: u64 = 1_000;
/// Marker after the fields of an era whose slot is moving (moving.lua).
const MOVING: &str = "moving";
/// Prefix of the field that names the former master (era.lua).
const FORMER: &str = "former:";
/// Prefixes of the fields of the quarantine (era.lua).
const CAUSE: &str = "cause:";
const SINCE: &str = "since:";
/// Prefix of the field with the floor of tokens (era.lua, era_check.lua).
const TOKEN: &str = "token:";
/// Run id of an unknown former master.
const UNKNOWN: &str = "*";

/// Reason why this version cannot serve with a stored era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EraParseError {
    /// The text is not an era.
    Unreadable,
    /// The brokers of the era use another schema for their keys.
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
    /// Returns the longest span of a lease.
    pub const fn span_ms(&self) -> u64 {
        span_ms(self.ttl_max_ms, self.lock_delay_max_ms)
    }

    /// Returns the largest `Q`, the time after which nothing that a lost grant allowed can still be
    /// in force.
    pub const fn quarantine_ms(&self) -> u64 {
        self.span_ms()
            .saturating_add(self.former_master_max_ms)
            .saturating_add(QUARANTINE_MARGIN_MS)
    }

    /// Returns the shortest `Q` after a promotion that the limit of spans allows.
    pub const fn shortest_quarantine_ms(&self) -> u64 {
        let span_ms = self.span_ms();
        let least_ms = if span_ms < SPAN_MIN_MS {
            span_ms
        } else {
            SPAN_MIN_MS
        };
        least_ms
            .saturating_add(self.former_master_max_ms)
            .saturating_add(QUARANTINE_MARGIN_MS)
    }

    /// Returns the larger of the two values for each bound.
    pub fn max(self, other: Self) -> Self {
        Self {
            ttl_max_ms: self.ttl_max_ms.max(other.ttl_max_ms),
            lock_delay_max_ms: self.lock_delay_max_ms.max(other.lock_delay_max_ms),
            former_master_max_ms: self.former_master_max_ms.max(other.former_master_max_ms),
        }
    }
}

impl ServerIdentity {
    /// Returns true if a server with the earlier replication id `replid` still serves the same
    /// data. A first replica or a backup also changes the id, but leaves the second id all zeros.
    pub fn continues(&self, replid: &str) -> bool {
        self.replid == replid || !self.has_replaced_a_master()
    }

    /// Returns true if the server may have been a replica before. This can also be true for a
    /// master that restarted.
    pub fn has_replaced_a_master(&self) -> bool {
        self.replid2.bytes().any(|b| b != b'0')
    }
}

impl Era {
    /// Creates an era for a process, with a random id.
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
            span_limit: None,
            token_floor: None,
            quarantine: None,
        }
    }

    /// Parses the stored text.
    ///
    /// # Errors If the text is not an era, or is an era of another schema.
    pub fn parse(text: &str) -> Result<Self, EraParseError> {
        match text.split('|').nth(2) {
            Some(SCHEMA) => Self::read(text).ok_or(EraParseError::Unreadable),
            Some(schema) => Err(EraParseError::OtherSchema(schema.to_owned())),
            None => Err(EraParseError::Unreadable),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let mut fields = text.split('|');
        let mut next = || fields.next();
        let (id, no_grants_before, _schema) = (next()?, next()?, next()?);
        let era = Self {
            id: id.to_owned(),
            no_grants_before_ms: no_grants_before.parse().ok()?,
            run_id: next()?.to_owned(),
            replid: next()?.to_owned(),
            bounds: EraBounds {
                ttl_max_ms: next()?.parse().ok()?,
                lock_delay_max_ms: next()?.parse().ok()?,
                former_master_max_ms: next()?.parse().ok()?,
            },
            key_fingerprint: next()?.to_owned(),
            key_source: match next()? {
                "store" => KeySource::Store,
                "file" => KeySource::File,
                _ => return None,
            },
            former: None,
            is_moving: false,
            span_limit: None,
            token_floor: None,
            quarantine: None,
        };
        // Later versions append fields without a new schema.
        let more: Vec<&str> = fields.collect();
        Some(Self {
            former: more.iter().find_map(|field| FormerMaster::parse(field)),
            is_moving: more.contains(&MOVING),
            span_limit: more.iter().find_map(|field| StoredSpanLimit::parse(field)),
            token_floor: more.iter().find_map(|field| {
                let token = field.strip_prefix(TOKEN)?.parse().ok()?;
                FencingToken::new(token)
            }),
            quarantine: Quarantine::parse(&more),
            ..era
        })
    }

    /// Returns the period in which the era allows no grants.
    pub fn recovery(&self) -> Recovery {
        Recovery {
            cause: self.quarantine.and_then(|quarantine| quarantine.cause),
            since_ms: self.quarantine.map(|quarantine| quarantine.since_ms),
            until_ms: self.no_grants_before_ms,
        }
    }

    /// Returns the stored text after `no_grants_before`. The script computes that time, and appends
    /// the former master and the floor of tokens. For a new quarantine it also appends the fields of
    /// that, and the limit of spans.
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
        if let Some(limit) = &self.span_limit {
            fields.extend(["|", &limit.field()]);
        }
        if let Some(Quarantine { cause, since_ms }) = self.quarantine {
            if let Some(cause) = cause {
                fields.extend(["|", CAUSE, cause.name()]);
            }
            fields.extend(["|", SINCE, &since_ms.to_string()]);
        }
        fields
    }
}

impl Quarantine {
    fn parse(fields: &[&str]) -> Option<Self> {
        let value_after = |prefix| fields.iter().find_map(|field| field.strip_prefix(prefix));
        Some(Self {
            cause: value_after(CAUSE).and_then(RecoveryCause::from_name),
            since_ms: value_after(SINCE)?.parse().ok()?,
        })
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
    /// Returns the run id as it is stored.
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
        let limited = Era {
            span_limit: Some(StoredSpanLimit::constant(12_250)),
            ..era.clone()
        };
        let fields = limited.fields_after_time();
        assert_eq!(
            fields,
            format!("{}|span:12250:12250:0", era.fields_after_time())
        );
        assert_eq!(
            Era::parse(&format!("{text}|span:12250:12250:0")),
            Ok(limited)
        );
        let with_floor = Era {
            token_floor: FencingToken::new(1_795_000_000_000_001),
            ..era.clone()
        };
        assert_eq!(
            Era::parse(&format!("{text}|token:1795000000000001")),
            Ok(with_floor)
        );
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
        assert_eq!(Era::parse(&text), Ok(era.clone()));
        assert_eq!(Era::parse("x"), Err(EraParseError::Unreadable));
        let elsewhere = text.replace("file", "elsewhere");
        assert_eq!(Era::parse(&elsewhere), Err(EraParseError::Unreadable));
        let later = Era::parse("id|0|9|in whatever way");
        assert_eq!(later, Err(EraParseError::OtherSchema("9".to_owned())));
    }

    #[test]
    fn the_cause_and_the_beginning_of_a_quarantine_are_read_back() {
        let key = DeploymentKey::random();
        let server = ServerIdentity {
            run_id: "run".into(),
            replid: "repl".into(),
            replid2: "000".into(),
        };
        let era = Era::new(&server, EraBounds::default(), &key, KeySource::Store);
        for cause in RecoveryCause::ALL {
            let quarantine = Some(Quarantine {
                cause: Some(cause),
                since_ms: 1_795_000_000_000,
            });
            let era = Era {
                quarantine,
                ..era.clone()
            };
            let fields = era.fields_after_time();
            let expected = format!("|cause:{}|since:1795000000000", cause.name());
            assert!(fields.ends_with(&expected), "{fields}");
            assert_eq!(Era::parse(&format!("{}|0|{fields}", era.id)), Ok(era));
        }
        let parsed = |end: &str| {
            let text = format!("{}|0|{}{end}", era.id, era.fields_after_time());
            Era::parse(&text).expect("an era").quarantine
        };
        assert_eq!(parsed(""), None, "an earlier version");
        assert_eq!(parsed("|cause:restarted"), None);
        let later = Quarantine {
            cause: None,
            since_ms: 7,
        };
        assert_eq!(parsed("|cause:eaten|since:7"), Some(later));
        assert_eq!(parsed("|since:7|former:9:*"), Some(later));
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
