//! Table of the error replies of Redis and of connection failures, with the handling of each.

use fred::error::{Error, ErrorKind};

use super::connection::{NodeError, plain_message};
use crate::store::StoreError;

/// Execution of a command that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// Not executed, and it never will be.
    No,
    /// Possibly executed, or still to be executed.
    Unknown,
}

/// Handling of a node after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// Loads the scripts of the node again and repeats the command once.
    ReloadScripts,
    /// Keeps the node. The health check accepts the error as well, because a new connection would
    /// receive the same reply.
    Keep,
    /// Keeps the node, unless its health check receives the error as well.
    ProbeDecides,
    /// Closes the node, and the server is verified again.
    Close,
    /// Redirects the command to the server of the cluster that has the lock. Closes a node that is
    /// not part of a cluster store.
    Redirect,
}

/// Kind of error that callers receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerError {
    /// The store cannot be used now. Retrying the call can succeed.
    Unavailable,
    /// The store is out of memory.
    Full,
    /// A stored record or a reply of the store cannot be read.
    Corrupt,
}

/// Meaning and handling of one kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorClass {
    pub executed: Executed,
    pub action: NodeAction,
    pub caller_error: CallerError,
    /// True if the error may disappear without an operator. False if a setting or the server must
    /// be changed.
    pub is_transient: bool,
    /// Description of the problem, as the rest of a sentence about the server.
    pub problem: &'static str,
    /// Advice to the operator.
    pub advice: &'static str,
}

/// Rejected by the server before it runs the command.
const REJECTED: ErrorClass = ErrorClass {
    executed: Executed::No,
    action: NodeAction::Keep,
    caller_error: CallerError::Unavailable,
    is_transient: true,
    problem: "rejects commands",
    advice: "See its log",
};
const USER_REJECTED: ErrorClass = ErrorClass {
    action: NodeAction::Close,
    is_transient: false,
    problem: "rejects this broker's user",
    advice: "Correct the user name and the password, or the user's rights",
    ..REJECTED
};
const IS_REPLICA: ErrorClass = ErrorClass {
    action: NodeAction::Close,
    problem: "is a replica",
    advice: "Configure the address of the master",
    ..REJECTED
};
const IS_CLUSTER: ErrorClass = ErrorClass {
    action: NodeAction::Redirect,
    is_transient: false,
    problem: "runs in cluster mode, where it stores only some of the locks",
    advice: "Use redis-cluster://, or a server with cluster-enabled no",
    ..REJECTED
};
/// Rejected by a script that cannot read the record. Scripts write in their last step, so a script
/// that fails has written nothing.
const UNREADABLE: ErrorClass = ErrorClass {
    caller_error: CallerError::Corrupt,
    is_transient: false,
    problem: "holds a lock that this broker cannot read",
    advice: "Run brokers of one key schema; if another program wrote the key, configure another \
             key prefix, or delete the key while the lock has no holder",
    ..REJECTED
};
const CONNECTION_LOST: ErrorClass = ErrorClass {
    executed: Executed::Unknown,
    action: NodeAction::Close,
    problem: "cannot be reached",
    advice: "Start it, or use --wait-for-store",
    ..REJECTED
};
const NEVER_SENT: ErrorClass = ErrorClass {
    executed: Executed::No,
    ..CONNECTION_LOST
};
const UNKNOWN_ERROR: ErrorClass = ErrorClass {
    executed: Executed::Unknown,
    action: NodeAction::ProbeDecides,
    problem: "answers with an error",
    advice: "See its log, and check that it is Redis 7 or newer",
    ..REJECTED
};

/// Errors by the beginning of the server's reply. The first match counts.
const BY_PREFIX: [(&str, ErrorClass); 26] = [
    ("NOSCRIPT", ErrorClass::SCRIPTS_LOST),
    (
        "BUSY",
        ErrorClass {
            problem: "runs a script of another program for too long",
            advice: "Wait until the script ends, or stop it with SCRIPT KILL",
            ..REJECTED
        },
    ),
    (
        "UNKILLABLE",
        ErrorClass {
            problem: "runs a script that has written and cannot be stopped",
            advice: "Wait until the script ends",
            ..REJECTED
        },
    ),
    (
        "OOM",
        ErrorClass {
            caller_error: CallerError::Full,
            problem: "has no memory for more locks",
            advice: "Raise its maxmemory, or remove data of other programs",
            ..REJECTED
        },
    ),
    (
        "NOREPLICAS",
        ErrorClass {
            problem: "rejects writes, because it has fewer replicas than min-replicas-to-write",
            advice: "Restore its replicas",
            ..REJECTED
        },
    ),
    (
        "MISCONF",
        ErrorClass {
            problem: "rejects writes, because it cannot save its data",
            advice: "See its log, and free disk space",
            ..REJECTED
        },
    ),
    (
        "LOADING",
        ErrorClass {
            action: NodeAction::Close,
            problem: "is loading its data",
            advice: "Wait until it is ready, or use --wait-for-store",
            ..REJECTED
        },
    ),
    ("READONLY", IS_REPLICA),
    ("MASTERDOWN", IS_REPLICA),
    (
        // This reply closes fred's connection. Every command in flight then fails with the same
        // error.
        "CLUSTERDOWN",
        ErrorClass {
            executed: Executed::Unknown,
            action: NodeAction::Close,
            problem: "is isolated from the other servers of its cluster, or a slot has no master",
            advice: "Repair the cluster",
            ..REJECTED
        },
    ),
    (
        "TRYAGAIN",
        ErrorClass {
            problem: "is migrating the lock to another server of its cluster",
            advice: "Wait until its slots have migrated",
            ..REJECTED
        },
    ),
    ("MOVED", IS_CLUSTER),
    ("ASK", IS_CLUSTER),
    (
        "CROSSSLOT",
        ErrorClass {
            action: NodeAction::Close,
            ..IS_CLUSTER
        },
    ),
    ("NOAUTH", USER_REJECTED),
    ("WRONGPASS", USER_REJECTED),
    ("ERR AUTH", USER_REJECTED),
    (
        "NOPERM",
        ErrorClass {
            action: NodeAction::ProbeDecides,
            ..USER_REJECTED
        },
    ),
    (
        // A permission that is missing in the middle of a script: earlier writes of the script
        // stay.
        "ERR The user executing the script",
        ErrorClass {
            executed: Executed::Unknown,
            action: NodeAction::ProbeDecides,
            ..USER_REJECTED
        },
    ),
    (
        "DENIED",
        ErrorClass {
            action: NodeAction::Close,
            is_transient: false,
            problem: "rejects connections from other hosts",
            advice: "Set a password in Redis and in the configuration of the broker",
            ..REJECTED
        },
    ),
    (
        "ERR DB index is out of range",
        ErrorClass {
            action: NodeAction::Close,
            is_transient: false,
            problem: "has no database with that number",
            advice: "Correct the database number at the end of the store's URL",
            ..REJECTED
        },
    ),
    (
        "ERR max number of clients reached",
        ErrorClass {
            action: NodeAction::Close,
            problem: "accepts no more connections",
            advice: "Raise its maxclients",
            ..REJECTED
        },
    ),
    (
        "WRONGTYPE",
        ErrorClass {
            problem: "has data of another program under a key of the brokers",
            advice: "Find the program that uses the same keys, or configure another key prefix",
            ..UNREADABLE
        },
    ),
    ("SCHEMA", UNREADABLE),
    ("ERR user_script", UNREADABLE),
    ("ERR", UNKNOWN_ERROR),
];

/// Errors by the text with which fred reports a closed connection. In the last two cases nothing
/// was sent.
const BY_CONNECTION_TEXT: [(&str, ErrorClass); 3] = [
    ("channel closed", CONNECTION_LOST),
    ("Failed to send command to router", NEVER_SENT),
    ("Failed to route command", NEVER_SENT),
];

/// Errors by their kind, if the text matches no entry.
const BY_KIND: [(ErrorKind, ErrorClass); 5] = [
    (ErrorKind::IO, CONNECTION_LOST),
    (ErrorKind::Canceled, CONNECTION_LOST),
    (
        ErrorKind::Timeout,
        ErrorClass {
            action: NodeAction::ProbeDecides,
            problem: "does not answer in time",
            advice: "Check whether it is stopped or overloaded",
            ..CONNECTION_LOST
        },
    ),
    (
        ErrorKind::Protocol,
        ErrorClass {
            is_transient: false,
            problem: "returned a malformed reply",
            advice: "Check that the address is that of a Redis server",
            ..CONNECTION_LOST
        },
    ),
    (
        ErrorKind::Backpressure,
        ErrorClass {
            problem: "has too many unanswered commands",
            advice: "Distribute the locks over several deployments",
            ..REJECTED
        },
    ),
];

impl ErrorClass {
    /// The scripts are missing.
    pub(super) const SCRIPTS_LOST: Self = Self {
        action: NodeAction::ReloadScripts,
        problem: "has lost the scripts repeatedly",
        advice: "Find the program that runs SCRIPT FLUSH",
        ..REJECTED
    };
    /// A reply that no script of the broker returns.
    pub const UNEXPECTED_REPLY: Self = Self {
        executed: Executed::Unknown,
        ..UNREADABLE
    };

    /// Returns the table entry of an error.
    #[must_use]
    pub fn classify(error: &Error) -> Self {
        let mut by_text = BY_PREFIX.iter().chain(&BY_CONNECTION_TEXT);
        let by_text = by_text.find(|(prefix, _)| has_prefix(error.details(), prefix));
        let by_kind = || BY_KIND.iter().find(|(kind, _)| kind == error.kind());
        let class = by_text.map(|(_, class)| class);
        let class = class.or_else(|| by_kind().map(|(_, class)| class));
        *class.unwrap_or(&UNKNOWN_ERROR)
    }

    /// Yields the first words of all replies in the table.
    pub fn by_prefix() -> impl Iterator<Item = &'static str> {
        BY_PREFIX.iter().map(|(prefix, _)| *prefix)
    }

    /// Converts the entry to the error of a store call. `text` is the error's text without secrets.
    pub(super) fn store_error(self, text: String) -> StoreError {
        match (self.caller_error, self.executed) {
            (CallerError::Unavailable, Executed::Unknown) => StoreError::Unavailable(text),
            (CallerError::Unavailable, Executed::No) => StoreError::NotExecuted(text),
            (CallerError::Full, _) => StoreError::Full(text),
            (CallerError::Corrupt, Executed::No) => StoreError::Corrupt(text),
            (CallerError::Corrupt, Executed::Unknown) => StoreError::InvalidReply(text),
        }
    }

    /// Returns the reason with which a node is closed.
    pub(super) fn description(self, text: &str) -> String {
        format!("it {} ({text})", self.problem)
    }
}

/// Converts an error while a node was being opened.
pub(super) fn when_opening(address: &str, error: &Error) -> NodeError {
    let ErrorClass {
        problem,
        advice,
        is_transient: passes,
        ..
    } = ErrorClass::classify(error);
    let text = format!("{address} {problem}: {}. {advice}.", plain_message(error));
    if passes {
        NodeError::Unreachable(text)
    } else {
        NodeError::Unfit(vec![text])
    }
}

/// Returns true if the server's access control list does not permit the command to the broker's
/// user.
pub(super) fn is_denied(error: &Error) -> bool {
    has_prefix(error.details(), "NOPERM")
}

/// Returns true if the text begins with the given words.
fn has_prefix(text: &str, prefix: &str) -> bool {
    let rest = text.strip_prefix(prefix);
    rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests;
