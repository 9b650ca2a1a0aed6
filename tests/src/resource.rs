//! A resource that a process under test writes to, in the test's own process: kept twice, once with
//! a fence and once without, with all that the writer says of its lock.

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

use crate::{clock::boottime, witness::Witness};

/// One line of a writer. Times are on its own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A write.
    Write {
        /// The fencing token that comes with it.
        token: i64,
        /// When the writer began to ask its guard, or would have asked it.
        asked: Duration,
        /// Until when the guard would be trusted without another heartbeat.
        until: Duration,
    },
    /// The guard was asked at that moment, and was not valid for the first time.
    Refused {
        /// As above.
        asked: Duration,
        /// The reason that it gave.
        why: String,
    },
    /// The loss was reported, without being asked.
    Lost {
        /// When.
        at: Duration,
        /// What the guard said when it was asked at once.
        is_valid: bool,
    },
    /// How the release went; the last line.
    Released(String),
}

/// A line, and what became of it.
#[derive(Debug, Clone)]
pub struct Line {
    /// When it was read.
    pub received: Duration,
    /// What it says.
    pub report: Report,
    /// Of a write: whether somebody with a larger token had written before.
    pub is_stale: bool,
    /// Of a write: whether the fenced resource took it.
    pub is_accepted: bool,
}

impl Line {
    /// Of a write: when the guard was asked before.
    #[must_use]
    pub fn asked(&self) -> Option<Duration> {
        match self.report {
            Report::Write { asked, .. } => Some(asked),
            Report::Refused { .. } | Report::Lost { .. } | Report::Released(_) => None,
        }
    }
}

/// Listens for one writer until dropped.
#[derive(Debug)]
pub struct Resource {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _reader: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared {
    witness: Arc<Witness>,
    index: usize,
    /// The largest token that the unfenced resource has seen.
    newest: Mutex<i64>,
    lines: watch::Sender<Vec<Line>>,
}

/// Who writes, for the referee.
const PROCESS: u64 = 1;
const TEST: u64 = 2;

impl Resource {
    /// The resource behind this lock of the witness.
    pub async fn start(witness: &Arc<Witness>, index: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("bind a loopback port");
        let addr = listener.local_addr().expect("a bound socket has one");
        let shared = Arc::new(Shared {
            witness: Arc::clone(witness),
            index,
            newest: Mutex::default(),
            lines: watch::Sender::default(),
        });
        let reader = tokio::spawn(read(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The test's own write; whether it was accepted.
    #[must_use]
    pub fn write(&self, token: i64) -> bool {
        self.shared.write(token, TEST).1
    }

    /// What has come so far.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.shared.lines.borrow().clone()
    }

    /// Waits for the first line like that.
    pub async fn heard(&self, mut is_it: impl FnMut(&Line) -> bool) -> Line {
        let mut lines = self.shared.lines.subscribe();
        let heard = lines.wait_for(|lines| lines.iter().any(&mut is_it)).await;
        let heard = heard.expect("the reader lives as long as this");
        let line = heard.iter().find(|line| is_it(line));
        line.expect("it is there").clone()
    }
}

impl Shared {
    /// Whether the write is stale, and whether the fence lets it pass.
    fn write(&self, token: i64, writer: u64) -> (bool, bool) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stale = token < *newest;
        *newest = token.max(*newest);
        (is_stale, self.witness.write(self.index, token, writer))
    }
}

async fn read(listener: TcpListener, shared: Arc<Shared>) {
    let (socket, _) = listener.accept().await.expect("a writer comes");
    let mut lines = BufReader::new(socket).lines();
    // The end of a writer that was killed may be a reset.
    while let Ok(Some(line)) = lines.next_line().await {
        let report: Report = line.parse().expect("a writer's line");
        let (is_stale, is_accepted) = match report {
            Report::Write { token, .. } => shared.write(token, PROCESS),
            Report::Refused { .. } | Report::Lost { .. } | Report::Released(_) => (false, false),
        };
        let line = Line {
            received: boottime(),
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
                asked,
                until,
            } => {
                let (asked, until) = (asked.as_nanos(), until.as_nanos());
                write!(f, "write {token} {asked} {until}")
            }
            Self::Refused { asked, why } => write!(f, "refused {} {why}", asked.as_nanos()),
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
            ["write", token, asked, until] => token.parse().ok().and_then(|token| {
                Some(Self::Write {
                    token,
                    asked: time(asked)?,
                    until: time(until)?,
                })
            }),
            ["refused", asked, why @ ..] => time(asked).map(|asked| Self::Refused {
                asked,
                why: why.join(" "),
            }),
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
    fn what_is_written_is_read() {
        let reports = [
            Report::Write {
                token: 7,
                asked: Duration::from_nanos(1_000_000_007),
                until: Duration::from_secs(3),
            },
            Report::Refused {
                asked: Duration::from_millis(5),
                why: "no renewal was confirmed in time".to_owned(),
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
    async fn an_unfenced_resource_takes_what_a_fenced_one_refuses() {
        let resource = Resource::start(&Arc::new(Witness::new(1)), 0).await;
        let write = |token, writer| resource.shared.write(token, writer);
        assert_eq!(write(1, PROCESS), (false, true));
        assert_eq!(write(2, TEST), (false, true));
        assert_eq!(write(1, PROCESS), (true, false));
        assert_eq!(write(2, TEST), (false, true));
    }
}
