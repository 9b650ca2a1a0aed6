//! Lists of locks: what one step of a list gives, and where the next one goes on.

use crate::lock::{ArgumentsHash, LockKey, LockName, LockState, Namespace};

/// Reply of [`Store::list`](super::Store::list).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// Some locks, perhaps none.
    Step {
        /// In no particular order, each once.
        locks: Vec<(LockKey, LockState)>,
        /// Where to go on; `None`: these were the last ones.
        next: Option<Cursor>,
    },
    /// The cursor leads nowhere: it is another store's, or that of a server that is gone.
    Stale,
    /// A part of the store does not answer. The same cursor may lead on later.
    Missing {
        /// What does not answer.
        server: String,
    },
}

/// Where a list goes on, at any broker on the same store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cursor {
    /// After this lock, in the order of keys.
    After(LockKey),
    /// Where a scan has come to.
    Scan(Scan),
}

/// A scan of the keys of one server after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// The place of the server that is scanned among those of its store.
    pub server: u16,
    /// The process that is scanned; empty: it is to begin with any.
    pub run_id: String,
    /// What the process has said where to go on; 0 at the beginning.
    pub at: u64,
    /// Those of the keys to come there whose locks were listed.
    pub listed: Vec<ArgumentsHash>,
    /// The servers that were scanned to the end, where several have the same locks.
    pub done: Vec<u16>,
}

impl Listed {
    /// Behind the end of a list.
    pub fn nothing() -> Self {
        Self::Step {
            locks: Vec::new(),
            next: None,
        }
    }
}

impl Scan {
    /// The scan as one of this process; `None` if it was begun at another one.
    pub fn on(self, server: u16, run_id: &str) -> Option<Self> {
        let run_id = match self.run_id.as_str() {
            "" => run_id.to_owned(),
            begun if begun == run_id => self.run_id,
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
    /// The text form.
    pub fn to_text(&self) -> String {
        match self {
            Self::After(lock) => format!("after:{}:{}", lock.namespace(), lock.name()),
            Self::Scan(scan) => {
                let listed: Vec<_> = scan.listed.iter().map(ArgumentsHash::as_str).collect();
                let done: Vec<_> = scan.done.iter().map(u16::to_string).collect();
                let (listed, done) = (listed.join(","), done.join(","));
                let Scan {
                    server, run_id, at, ..
                } = scan;
                format!("scan:{server}:{run_id}:{at}:{listed}:{done}")
            }
        }
    }

    /// Reads the text form; `None` if it is none.
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
                    at: at.parse().ok()?,
                    listed: each(listed, ArgumentsHash::parse)?,
                    done: each(done, |place| place.parse().ok())?,
                }))
            }
            _ => None,
        }
    }
}

fn each<T>(list: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let words = list.split(',').filter(|word| !word.is_empty());
    words.map(read).collect()
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
            at: u64::MAX,
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
