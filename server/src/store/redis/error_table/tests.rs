//! Tests of the table with the exact replies of Redis 7.0.15.

use super::*;

const SCRIPT: &str = "script: 1f2d3c, on @user_script:2.";

fn class(text: &str) -> ErrorClass {
    ErrorClass::classify(&Error::new(ErrorKind::Unknown, text.to_owned()))
}

fn caller_error(text: &str) -> StoreError {
    class(text).store_error(text.to_owned())
}

#[test]
fn commands_rejected_before_they_run_are_not_executed() {
    for text in [
        "NOSCRIPT No matching script. Please use EVAL.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MOVED 6257 127.0.0.1:30002",
        "ASK 6257 127.0.0.1:30002",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "ERR max number of clients reached",
    ] {
        assert_eq!(caller_error(text), StoreError::NotExecuted(text.to_owned()));
    }
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    assert_eq!(caller_error(full), StoreError::Full(full.to_owned()));
}

#[test]
fn a_script_changes_nothing_that_it_cannot_read() {
    for text in [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "SCHEMA the lock record has version 2",
        "ERR user_script:3: attempt to compare nil with number",
    ] {
        let text = format!("{text} {SCRIPT}");
        assert_eq!(caller_error(&text), StoreError::Corrupt(text.clone()));
        assert_eq!(class(&text).action, NodeAction::Keep);
    }
    let unexpected = ErrorClass::UNEXPECTED_REPLY.store_error(String::new());
    assert_eq!(unexpected, StoreError::InvalidReply(String::new()));
}

#[test]
fn commands_that_may_have_run_have_an_unknown_result() {
    let denied = "ERR The user executing the script can't run this command or subcommand";
    for text in [
        format!("{denied} {SCRIPT}"),
        "CLUSTERDOWN Hash slot not served".to_owned(),
        "ERR value is not an integer or out of range".to_owned(),
        "ERRATIC words of a later version".to_owned(),
    ] {
        assert_eq!(caller_error(&text), StoreError::Unavailable(text.clone()));
    }
    for kind in [
        ErrorKind::IO,
        ErrorKind::Canceled,
        ErrorKind::Timeout,
        ErrorKind::Protocol,
    ] {
        let class = ErrorClass::classify(&Error::new(kind, "Request failed."));
        assert_eq!(class.executed, Executed::Unknown);
    }
    assert_eq!(class("channel closed"), CONNECTION_LOST);
    assert_eq!(
        class("Failed to send command to router.").executed,
        Executed::No
    );
    let full = Error::new(ErrorKind::Backpressure, "Max in-flight commands reached.");
    assert_eq!(ErrorClass::classify(&full).executed, Executed::No);
}

#[test]
fn a_word_is_not_the_beginning_of_another() {
    assert_eq!(
        class("BUSYKEY Target key name already exists."),
        UNKNOWN_ERROR
    );
    assert_eq!(class("MASTERDOWN"), IS_REPLICA);
    for (index, (prefix, _)) in BY_PREFIX.iter().enumerate() {
        let hidden = BY_PREFIX[..index]
            .iter()
            .find(|(earlier, _)| has_prefix(prefix, earlier));
        assert_eq!(hidden, None, "hides {prefix}");
    }
}

#[test]
fn operators_read_whole_sentences_without_what_was_sent() {
    let sent = "ERR unknown command 'EVALSHA', with args beginning with: 'a' 'secret'";
    let opening = |text: &str| {
        let error = Error::new(ErrorKind::Unknown, text.to_owned());
        when_opening("Redis at a:1", &error)
    };
    assert_eq!(
        opening(sent),
        NodeError::Unreachable(
            "Redis at a:1 answers with an error: ERR unknown command 'EVALSHA'. See its log, and \
             check that it is Redis 7 or newer."
                .to_owned()
        )
    );
    assert_eq!(
        opening("DENIED Redis is running in protected mode"),
        NodeError::Unfit(vec![
            "Redis at a:1 rejects connections from other hosts: DENIED Redis is running in \
             protected mode. Set a password in Redis and in the configuration of the broker."
                .to_owned()
        ])
    );
}

#[test]
fn only_a_missing_permission_is_a_denial() {
    let is_denied = |kind, text: &str| is_denied(&Error::new(kind, text.to_owned()));
    for denial in [
        "NOPERM this user has no permissions to run the 'sentinel|master' command",
        "NOPERM User broker has no permissions to run the 'sentinel|master' command",
    ] {
        assert!(is_denied(ErrorKind::Unknown, denial), "{denial}");
    }
    for other in [
        "ERR No such master with that name",
        "ERR NOPERM is only named here",
        "LOADING Redis is loading the dataset in memory",
    ] {
        assert!(!is_denied(ErrorKind::Unknown, other), "{other}");
    }
    assert!(!is_denied(ErrorKind::Timeout, "Request timed out."));
}
