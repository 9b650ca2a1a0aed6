//! Listing of locks in steps, and the cursors between the steps.

use crate::lock::{ArgumentsHash, LockKey, LockName, LockState, Namespace};

/// Reply of [`Store::list`](super::Store::list).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// Result of one step, possibly empty.
    Step {
        /// Locks in no particular order, each once.
        locks: Vec<(LockKey, LockState)>,
        /// Cursor of the next step; `None` after the last step.
        next: Option<Cursor>,
    },
    /// The cursor is invalid: it belongs to another store or to a server process that no longer
    /// exists.
    Stale,
    /// A part of the store does not answer. A retry with the same cursor may succeed.
    Missing {
        /// Description of the part that does not answer.
        server: String,
        /// Description of the failure.
        reason: String,
    },
}

/// Position in a listing, valid at every broker of the same store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cursor {
    /// Position after this lock, in the order of keys.
    After(LockKey),
    /// Position in a scan.
    Scan(Scan),
}

/// A scan of the keys of several servers, one server after another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// Index of the scanned server in the store.
    pub server: u16,
    /// Id of the scanned server process; empty if the scan may start at any process.
    pub run_id: String,
    /// Cursor returned by the server process; 0 at the beginning.
    pub server_cursor: u64,
    /// Hashes of the keys at the cursor whose locks have been listed already.
    pub listed: Vec<ArgumentsHash>,
    /// Indexes of completely scanned servers, for stores in which several servers have the same
    /// locks.
    pub done: Vec<u16>,
}

impl Listed {
    /// Returns an empty last step.
    pub fn empty() -> Self {
        Self::Step {
            locks: Vec::new(),
            next: None,
        }
    }
}

impl Scan {
    /// Returns the scan that a listing continues, or a new one without a cursor. Returns `None` if
    /// the cursor was created by a store that does not scan.
    pub fn from_cursor(cursor: Option<&Cursor>) -> Option<Self> {
        match cursor {
            None => Some(Self::default()),
            Some(Cursor::Scan(scan)) => Some(scan.clone()),
            Some(Cursor::After(_)) => None,
        }
    }

    /// Binds the scan to a server process. Returns `None` if the scan was started at another
    /// process.
    pub fn bind_to(self, server: u16, run_id: &str) -> Option<Self> {
        let run_id = match self.run_id.as_str() {
            "" => run_id.to_owned(),
            bound_run_id if bound_run_id == run_id => self.run_id,
            _ => return None,
        };
        Some(Self {
            server,
            run_id,
            ..self
        })
    }
}

impl Cursor {
    pub fn to_text(&self) -> String {
        match self {
            Self::After(lock) => format!("after:{}:{}", lock.namespace(), lock.name()),
            Self::Scan(scan) => {
                let listed: Vec<_> = scan.listed.iter().map(ArgumentsHash::as_str).collect();
                let done: Vec<_> = scan.done.iter().map(u16::to_string).collect();
                let (listed, done) = (listed.join(","), done.join(","));
                let Scan {
                    server,
                    run_id,
                    server_cursor: at,
                    ..
                } = scan;
                format!("scan:{server}:{run_id}:{at}:{listed}:{done}")
            }
        }
    }

    /// Parses the text form. Returns `None` if `text` is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "after" => {
                let (namespace, name) = rest.split_once(':')?;
                let namespace = Namespace::parse(namespace).ok()?;
                let name = LockName::parse(name).ok()?;
                Some(Self::After(LockKey::new(namespace, name)))
            }
            "scan" => {
                let fields: Vec<_> = rest.split(':').collect();
                let [server, run_id, at, listed, done] = fields.as_slice() else {
                    return None;
                };
                Some(Self::Scan(Scan {
                    server: server.parse().ok()?,
                    run_id: (*run_id).to_owned(),
                    server_cursor: at.parse().ok()?,
                    listed: parse_list(listed, ArgumentsHash::parse)?,
                    done: parse_list(done, |server| server.parse().ok())?,
                }))
            }
            _ => None,
        }
    }
}

fn parse_list<T>(list: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let items = list.split(',').filter(|item| !item.is_empty());
    items.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text() {
        let lock = |name| {
            let namespace = Namespace::parse("t-1").expect("a legal namespace");
            LockKey::new(namespace, LockName::parse(name).expect("a legal name"))
        };
        let scan = |listed, done| Scan {
            server: 7,
            run_id: "2f".to_owned(),
            server_cursor: u64::MAX,
            listed,
            done,
        };
        let hash = ArgumentsHash::of(&[b"x"]);
        for cursor in [
            Cursor::After(lock("a:b|c")),
            Cursor::After(lock("订单,%7B")),
            Cursor::Scan(Scan::default()),
            Cursor::Scan(scan(vec![hash], vec![])),
            Cursor::Scan(scan(vec![hash, hash], vec![0, 3])),
        ] {
            assert_eq!(Cursor::parse(&cursor.to_text()), Some(cursor));
        }
        for text in [
            "",
            "after",
            "after:x",
            "scan:1:x:2:",
            "scan:a::0::",
            "scan:0::0:?:",
            "x:",
        ] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
    }
}
