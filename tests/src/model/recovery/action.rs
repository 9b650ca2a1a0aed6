//! Actions of the model, and their text form.

use std::{fmt, num::ParseIntError, str::FromStr};

/// The beginning of a new process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The data of a process, as they were some time ago.
    Copy { process: usize, age: u64 },
    /// No data.
    Empty,
}

/// A step of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// The time passes.
    Tick,
    /// The last process ends.
    Crash,
    /// Another process becomes the master. Its clock has this offset.
    Start { from: Source, offset: i64 },
    /// A broker connects to the last process, and writes an era if the process has none.
    Connect { broker: usize },
    /// A broker restarts, and loses its record.
    Restart { broker: usize },
    /// A broker sends a query of the limit.
    Query { broker: usize },
    /// The broker's process executes the query, and raises the limit if a broker wants that.
    Execute { broker: usize, wanted: u64 },
    /// The broker receives the reply.
    Receive { broker: usize },
    /// A broker lowers the limit.
    Lower { broker: usize, to: u64 },
    /// A broker acquires the lock for a new lease.
    Acquire { broker: usize, span: u64 },
    /// A broker renews a lease that its client relies on.
    Renew {
        broker: usize,
        lease: u32,
        span: u64,
    },
    /// A broker releases a lease.
    Release { broker: usize, lease: u32 },
    /// A broker registers itself, for an early end of the time without grants.
    Register { broker: usize },
    /// A broker acknowledges the brokers that have registered.
    Acknowledge { broker: usize },
    /// A broker ends the time without grants if nothing was lost.
    End { broker: usize },
}

impl fmt::Display for RecoveryAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(f, "tick"),
            Self::Crash => write!(f, "crash"),
            Self::Start { from, offset } => match from {
                Source::Copy { process, age } => write!(f, "start {process} {age} {offset}"),
                Source::Empty => write!(f, "empty {offset}"),
            },
            Self::Connect { broker } => write!(f, "connect {broker}"),
            Self::Restart { broker } => write!(f, "restart {broker}"),
            Self::Query { broker } => write!(f, "query {broker}"),
            Self::Execute { broker, wanted } => write!(f, "execute {broker} {wanted}"),
            Self::Receive { broker } => write!(f, "receive {broker}"),
            Self::Lower { broker, to } => write!(f, "lower {broker} {to}"),
            Self::Acquire { broker, span } => write!(f, "acquire {broker} {span}"),
            Self::Renew {
                broker,
                lease,
                span,
            } => write!(f, "renew {broker} {lease} {span}"),
            Self::Release { broker, lease } => write!(f, "release {broker} {lease}"),
            Self::Register { broker } => write!(f, "register {broker}"),
            Self::Acknowledge { broker } => write!(f, "acknowledge {broker}"),
            Self::End { broker } => write!(f, "end {broker}"),
        }
    }
}

/// Reason why a text is not an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAction(String);

impl FromStr for RecoveryAction {
    type Err = NoAction;

    fn from_str(text: &str) -> Result<Self, NoAction> {
        let no_action = || NoAction(text.to_owned());
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        let numbers: Result<Vec<i64>, ParseIntError> = words.map(str::parse).collect();
        let numbers = numbers.map_err(|_| no_action())?;
        let index = |at: usize| usize::try_from(numbers[at]).map_err(|_| no_action());
        let time = |at: usize| u64::try_from(numbers[at]).map_err(|_| no_action());
        let lease = |at: usize| u32::try_from(numbers[at]).map_err(|_| no_action());
        Ok(match (name, numbers.len()) {
            ("tick", 0) => Self::Tick,
            ("crash", 0) => Self::Crash,
            ("start", 3) => Self::Start {
                from: Source::Copy {
                    process: index(0)?,
                    age: time(1)?,
                },
                offset: numbers[2],
            },
            ("empty", 1) => Self::Start {
                from: Source::Empty,
                offset: numbers[0],
            },
            ("connect", 1) => Self::Connect { broker: index(0)? },
            ("restart", 1) => Self::Restart { broker: index(0)? },
            ("query", 1) => Self::Query { broker: index(0)? },
            ("execute", 2) => Self::Execute {
                broker: index(0)?,
                wanted: time(1)?,
            },
            ("receive", 1) => Self::Receive { broker: index(0)? },
            ("lower", 2) => Self::Lower {
                broker: index(0)?,
                to: time(1)?,
            },
            ("acquire", 2) => Self::Acquire {
                broker: index(0)?,
                span: time(1)?,
            },
            ("renew", 3) => Self::Renew {
                broker: index(0)?,
                lease: lease(1)?,
                span: time(2)?,
            },
            ("release", 2) => Self::Release {
                broker: index(0)?,
                lease: lease(1)?,
            },
            ("register", 1) => Self::Register { broker: index(0)? },
            ("acknowledge", 1) => Self::Acknowledge { broker: index(0)? },
            ("end", 1) => Self::End { broker: index(0)? },
            _ => return Err(no_action()),
        })
    }
}
