//! The one table of what Redis may answer instead of a reply, and of how the way to it may fail.

use fred::error::{Error, ErrorKind};

use super::connection::{NodeError, plain};
use crate::store::StoreError;

/// Whether the command was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// Certainly not, and it never will be.
    No,
    /// Perhaps, or it will be.
    Unknown,
}

/// What becomes of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Its scripts are loaded again, and the command is repeated once.
    Load,
    /// It lives on, and the probe is content: a new connection would be told the same.
    Keep,
    /// It lives on, unless the probe is answered so, too.
    Doubt,
    /// It ends, and the server is verified anew.
    End,
    /// Another server of a cluster has the lock. A node that no router of slots has asked ends.
    Elsewhere,
}

/// What callers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The store cannot be used now: the call is worth repeating.
    Unavailable,
    /// There is no memory for it.
    Full,
    /// What the store holds or answers cannot be read.
    Corrupt,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the command was executed.
    pub executed: Executed,
    /// What becomes of the node.
    pub then: Then,
    /// What callers are told.
    pub told: Told,
    /// Whether it may pass by itself; else somebody has to change something.
    pub passes: bool,
    /// What is wrong, as the rest of a sentence about the server.
    pub means: &'static str,
    /// What its operator should do.
    pub next: &'static str,
}

/// The server says so before it runs the command.
const REFUSED: Refusal = Refusal {
    executed: Executed::No,
    then: Then::Keep,
    told: Told::Unavailable,
    passes: true,
    means: "refuses commands",
    next: "See its log",
};
const OF_USER: Refusal = Refusal {
    then: Then::End,
    passes: false,
    means: "refuses this broker's user",
    next: "Correct the user name and the password, or the user's rights",
    ..REFUSED
};
const OF_REPLICA: Refusal = Refusal {
    then: Then::End,
    means: "is a replica",
    next: "Give the address of the master",
    ..REFUSED
};
const OF_CLUSTER: Refusal = Refusal {
    then: Then::Elsewhere,
    passes: false,
    means: "runs in cluster mode, where it keeps only some of the locks",
    next: "Use redis-cluster://, or a server with cluster-enabled no",
    ..REFUSED
};
/// Scripts write in their last step, so one that fails has written nothing.
const UNREADABLE: Refusal = Refusal {
    told: Told::Corrupt,
    passes: false,
    means: "holds a lock that this broker cannot read",
    next: "Run brokers of one key schema; if something else wrote there, give the broker another \
        key prefix, or delete the key while nobody holds the lock",
    ..REFUSED
};
const CUT: Refusal = Refusal {
    executed: Executed::Unknown,
    then: Then::End,
    means: "cannot be reached",
    next: "Start it, or use --wait-for-store",
    ..REFUSED
};
const UNSENT: Refusal = Refusal {
    executed: Executed::No,
    ..CUT
};
const FAILED: Refusal = Refusal {
    executed: Executed::Unknown,
    then: Then::Doubt,
    means: "answers with an error",
    next: "See its log, and whether it is a Redis of version 7 or newer",
    ..REFUSED
};

/// By the beginning of what the server says; the first that fits counts.
const SAID: [(&str, Refusal); 26] = [
    (
        "NOSCRIPT",
        Refusal {
            then: Then::Load,
            means: "has forgotten the scripts again and again",
            next: "See which program runs SCRIPT FLUSH",
            ..REFUSED
        },
    ),
    (
        "BUSY",
        Refusal {
            means: "runs a script of somebody else for too long",
            next: "Wait for its end, or end it with SCRIPT KILL",
            ..REFUSED
        },
    ),
    (
        "UNKILLABLE",
        Refusal {
            means: "runs a script that has written and cannot be stopped",
            next: "Wait for its end",
            ..REFUSED
        },
    ),
    (
        "OOM",
        Refusal {
            told: Told::Full,
            means: "has no memory for more locks",
            next: "Raise its maxmemory, or remove what others keep there",
            ..REFUSED
        },
    ),
    (
        "NOREPLICAS",
        Refusal {
            means: "takes no writes, since fewer replicas follow it than min-replicas-to-write says",
            next: "Bring its replicas back",
            ..REFUSED
        },
    ),
    (
        "MISCONF",
        Refusal {
            means: "takes no writes, since it cannot save its data",
            next: "See its log, and make room on its disk",
            ..REFUSED
        },
    ),
    (
        "LOADING",
        Refusal {
            then: Then::End,
            means: "is loading its data",
            next: "Wait until it is ready, or use --wait-for-store",
            ..REFUSED
        },
    ),
    ("READONLY", OF_REPLICA),
    ("MASTERDOWN", OF_REPLICA),
    (
        // It ends fred's connection, and every command that was under way is answered with it.
        "CLUSTERDOWN",
        Refusal {
            executed: Executed::Unknown,
            then: Then::End,
            means: "is cut off from the others of its cluster, or a slot has no master",
            next: "Mend the cluster",
            ..REFUSED
        },
    ),
    (
        "TRYAGAIN",
        Refusal {
            means: "is handing the lock to another server of its cluster",
            next: "Wait until its slots have moved",
            ..REFUSED
        },
    ),
    ("MOVED", OF_CLUSTER),
    ("ASK", OF_CLUSTER),
    (
        "CROSSSLOT",
        Refusal {
            then: Then::End,
            ..OF_CLUSTER
        },
    ),
    ("NOAUTH", OF_USER),
    ("WRONGPASS", OF_USER),
    ("ERR AUTH", OF_USER),
    (
        "NOPERM",
        Refusal {
            then: Then::Doubt,
            ..OF_USER
        },
    ),
    (
        // A right that is missing in the midst of a script: what it wrote before stays.
        "ERR The user executing the script",
        Refusal {
            executed: Executed::Unknown,
            then: Then::Doubt,
            ..OF_USER
        },
    ),
    (
        "DENIED",
        Refusal {
            then: Then::End,
            passes: false,
            means: "takes no connections from other hosts",
            next: "Give it a password, and the broker too",
            ..REFUSED
        },
    ),
    (
        "ERR DB index is out of range",
        Refusal {
            then: Then::End,
            passes: false,
            means: "has no database of that number",
            next: "Correct the end of the store's URL",
            ..REFUSED
        },
    ),
    (
        "ERR max number of clients reached",
        Refusal {
            then: Then::End,
            means: "takes no more connections",
            next: "Raise its maxclients",
            ..REFUSED
        },
    ),
    (
        "WRONGTYPE",
        Refusal {
            means: "holds something of others under a key of the brokers",
            next: "Find out who uses the same keys, or give the broker another key prefix",
            ..UNREADABLE
        },
    ),
    ("SCHEMA", UNREADABLE),
    ("ERR user_script", UNREADABLE),
    ("ERR", FAILED),
];

/// By what fred says of a connection that is over. The last two: it was too late to send anything.
const OVER: [(&str, Refusal); 3] = [
    ("channel closed", CUT),
    ("Failed to send command to router", UNSENT),
    ("Failed to route command", UNSENT),
];

/// By the kind of failure, where nobody says anything.
const UNSAID: [(ErrorKind, Refusal); 5] = [
    (ErrorKind::IO, CUT),
    (ErrorKind::Canceled, CUT),
    (
        ErrorKind::Timeout,
        Refusal {
            then: Then::Doubt,
            means: "does not answer in time",
            next: "See whether it is stopped or overloaded",
            ..CUT
        },
    ),
    (
        ErrorKind::Protocol,
        Refusal {
            passes: false,
            means: "answers with what is no reply",
            next: "See whether the address is that of a Redis",
            ..CUT
        },
    ),
    (
        ErrorKind::Backpressure,
        Refusal {
            means: "is sent more commands than it answers",
            next: "Spread the locks over several deployments",
            ..REFUSED
        },
    ),
];

impl Refusal {
    /// A reply that none of our scripts gives.
    pub const ODD_REPLY: Self = Self {
        executed: Executed::Unknown,
        ..UNREADABLE
    };

    /// What an error means.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let mut all = SAID.iter().chain(&OVER);
        let said = all.find(|(words, _)| says(error.details(), words));
        let unsaid = || UNSAID.iter().find(|(kind, _)| kind == error.kind());
        match said {
            Some((_, refusal)) => *refusal,
            None => unsaid().map_or(FAILED, |(_, refusal)| *refusal),
        }
    }

    /// The first words of all answers that the table knows.
    pub fn known() -> impl Iterator<Item = &'static str> {
        SAID.iter().map(|(words, _)| *words)
    }

    /// For the caller of a command; `text` is the error, without anything secret.
    pub(super) fn store_error(self, text: String) -> StoreError {
        match (self.told, self.executed) {
            (Told::Unavailable, Executed::Unknown) => StoreError::Unavailable(text),
            (Told::Unavailable, Executed::No) => StoreError::NotNow(text),
            (Told::Full, _) => StoreError::Full(text),
            (Told::Corrupt, Executed::No) => StoreError::Corrupt(text),
            (Told::Corrupt, Executed::Unknown) => StoreError::Garbled(text),
        }
    }

    /// Why a node ends.
    pub(super) fn why(self, text: &str) -> String {
        format!("it {} ({text})", self.means)
    }
}

/// Why there is no node: an error while one was opened.
pub(super) fn at_opening(address: &str, error: &Error) -> NodeError {
    let Refusal {
        means,
        next,
        passes,
        ..
    } = Refusal::of(error);
    let text = format!("{address} {means}: {}. {next}.", plain(error));
    if passes {
        NodeError::Unreachable(text)
    } else {
        NodeError::Unfit(vec![text])
    }
}

/// Whether the server's access control list does not let the broker's user run the command.
pub(super) fn is_denied(error: &Error) -> bool {
    says(error.details(), "NOPERM")
}

/// Whether a text begins with these words.
fn says(text: &str, words: &str) -> bool {
    let rest = text.strip_prefix(words);
    rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests;
