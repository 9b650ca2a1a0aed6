//! A resource in the test's own process, to which a process under test writes. It is kept twice,
//! with and without a fence, and stores all reports of the writer about its lock.

use std::{
    fmt,
    net::SocketAddr,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{clock::boottime, load::mutual_exclusion_oracle::Oracle};

/// A report line of a writer. Times are on the writer's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A write to the resource.
    Write {
        /// Fencing token of the write.
        token: i64,
        /// Time at which the writer began to check its guard, or would have checked it.
        checked_at: Duration,
        /// Time at which the guard becomes invalid without another heartbeat.
        valid_until: Duration,
    },
    /// The first check of the guard that failed.
    Rejected {
        /// Time at which the writer began to check its guard.
        checked_at: Duration,
        /// Reason that the guard returned.
        reason: String,
    },
    /// A notification of the guard that the lease is lost.
    Lost {
        /// Time of the notification.
        at: Duration,
        /// Result of a check of the guard immediately after the notification.
        is_valid: bool,
    },
    /// Result of the release, in the last line.
    Released(String),
}

/// A report line and its effect.
#[derive(Debug, Clone)]
pub struct ReportLine {
    /// Time at which the line was read.
    pub received_at: Duration,
    pub report: Report,
    /// True for a write after a write with a larger token.
    pub is_stale: bool,
    /// True for a write that the fenced resource accepted.
    pub is_accepted: bool,
}

impl ReportLine {
    /// Returns the time of the check before a write.
    #[must_use]
    pub fn checked_at(&self) -> Option<Duration> {
        match self.report {
            Report::Write { checked_at, .. } => Some(checked_at),
            Report::Rejected { .. } | Report::Lost { .. } | Report::Released(_) => None,
        }
    }
}

/// A resource that accepts one writer and listens until it is dropped.
#[derive(Debug)]
pub struct Resource {
    addr: SocketAddr,
    shared: Arc<ResourceState>,
    _reader: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct ResourceState {
    oracle: Arc<Oracle>,
    index: usize,
    /// Largest token that the unfenced resource has received.
    highest_token: Mutex<i64>,
    lines: watch::Sender<Vec<ReportLine>>,
}

/// Writer ids for the oracle.
const PROCESS_WRITER: u64 = 1;
const TEST_WRITER: u64 = 2;

impl Resource {
    /// Starts the resource that is protected by this lock of the oracle.
    pub async fn start(oracle: &Arc<Oracle>, index: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("bind a loopback port");
        let addr = listener.local_addr().expect("a bound socket has one");
        let shared = Arc::new(ResourceState {
            oracle: Arc::clone(oracle),
            index,
            highest_token: Mutex::default(),
            lines: watch::Sender::default(),
        });
        let reader = tokio::spawn(read(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Writes from the test. Returns true if the fenced resource accepted the write.
    #[must_use]
    pub fn write(&self, token: i64) -> bool {
        self.shared.write(token, TEST_WRITER).1
    }

    /// Returns all lines received so far.
    #[must_use]
    pub fn lines(&self) -> Vec<ReportLine> {
        self.shared.lines.borrow().clone()
    }

    /// Waits for the first line that `is_it` accepts.
    pub async fn wait_for_line(&self, mut is_it: impl FnMut(&ReportLine) -> bool) -> ReportLine {
        let mut lines = self.shared.lines.subscribe();
        let matching_lines = lines.wait_for(|lines| lines.iter().any(&mut is_it)).await;
        let matching_lines = matching_lines.expect("the reader lives as long as this");
        let line = matching_lines.iter().find(|line| is_it(line));
        line.expect("it is there").clone()
    }
}

impl ResourceState {
    /// Returns two flags: the write is stale, the fenced resource accepted the write.
    fn write(&self, token: i64, writer: u64) -> (bool, bool) {
        let mut newest = self
            .highest_token
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_stale = token < *newest;
        *newest = token.max(*newest);
        (is_stale, self.oracle.write(self.index, token, writer))
    }
}

async fn read(listener: TcpListener, shared: Arc<ResourceState>) {
    let (socket, _) = listener.accept().await.expect("a writer comes");
    let mut lines = BufReader::new(socket).lines();
    // A killed writer may close the connection with a reset.
    while let Ok(Some(line)) = lines.next_line().await {
        let report: Report = line.parse().expect("a writer's line");
        let (is_stale, is_accepted) = match report {
            Report::Write { token, .. } => shared.write(token, PROCESS_WRITER),
            Report::Rejected { .. } | Report::Lost { .. } | Report::Released(_) => (false, false),
        };
        let line = ReportLine {
            received_at: boottime(),
            report,
            is_stale,
            is_accepted,
        };
        shared.lines.send_modify(|lines| lines.push(line));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write {
                token,
                checked_at,
                valid_until: until,
            } => {
                let (checked_at, until) = (checked_at.as_nanos(), until.as_nanos());
                write!(f, "write {token} {checked_at} {until}")
            }
            Self::Rejected { checked_at, reason } => {
                write!(f, "refused {} {reason}", checked_at.as_nanos())
            }
            Self::Lost { at, is_valid } => write!(f, "lost {} {is_valid}", at.as_nanos()),
            Self::Released(how) => write!(f, "released {how}"),
        }
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let time = |ns: &str| ns.parse().map(Duration::from_nanos).ok();
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let report = match words.as_slice() {
            ["write", token, checked_at, until] => token.parse().ok().and_then(|token| {
                Some(Self::Write {
                    token,
                    checked_at: time(checked_at)?,
                    valid_until: time(until)?,
                })
            }),
            ["refused", checked_at, reason @ ..] => {
                time(checked_at).map(|checked_at| Self::Rejected {
                    checked_at,
                    reason: reason.join(" "),
                })
            }
            ["lost", at, is_valid] => time(at).and_then(|at| {
                let is_valid = is_valid.parse().ok()?;
                Some(Self::Lost { at, is_valid })
            }),
            ["released", how @ ..] => Some(Self::Released(how.join(" "))),
            _ => None,
        };
        report.ok_or_else(|| format!("not a report: {line:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_parsed_as_it_was_formatted() {
        let reports = [
            Report::Write {
                token: 7,
                checked_at: Duration::from_nanos(1_000_000_007),
                valid_until: Duration::from_secs(3),
            },
            Report::Rejected {
                checked_at: Duration::from_millis(5),
                reason: "no renewal was confirmed in time".to_owned(),
            },
            Report::Lost {
                at: Duration::from_millis(6),
                is_valid: false,
            },
            Report::Released("it was lost before".to_owned()),
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        "write 7".parse::<Report>().expect_err("too short");
    }

    #[tokio::test]
    async fn an_unfenced_resource_accepts_writes_that_a_fenced_one_rejects() {
        let resource = Resource::start(&Arc::new(Oracle::new(1)), 0).await;
        let write = |token, writer| resource.shared.write(token, writer);
        assert_eq!(write(1, PROCESS_WRITER), (false, true));
        assert_eq!(write(2, TEST_WRITER), (false, true));
        assert_eq!(write(1, PROCESS_WRITER), (true, false));
        assert_eq!(write(2, TEST_WRITER), (false, true));
    }
}
