//! Acquires a lock that the program keeps, for `run` and `hold`.

use std::time::Duration;

use leasehold::{Client, Guard, Lock, Target};
use leasehold_proto::text::plain;
use rustix::{process::getpid, system::uname};
use tokio::sync::watch;

use crate::{
    args::LockArgs,
    broker,
    exit::{self, Failure, NOT_OBTAINED},
    output,
    progress::AcquireProgress,
    run::Signals,
    settings::Settings,
};

const REASON_MAX_BYTES: usize = 512;

/// A lock that is held, and the client that renews it.
pub(crate) struct AcquiredLock {
    pub(crate) client: Client,
    pub(crate) guard: Guard,
}

/// Acquires the requested locks, waiting in the queue unless a signal ends the wait. `command` is
/// the name of the running command, for the hint.
pub(crate) async fn acquire_lock(
    lock_args: &LockArgs,
    settings: &Settings,
    signals: &mut Signals,
    command: &str,
) -> Result<AcquiredLock, Failure> {
    let mut waiting = AcquireProgress::new(&lock_args.name, &settings.endpoint, settings.quiet);
    let (position_sender, positions) = watch::channel(None);
    let owner = owner_name(lock_args);
    let connect = broker::client(settings, &owner);
    let client = tokio::select! {
        client = waiting.show_during(connect, positions.clone()) => client?,
        signal = signals.next_termination() => return Err(interrupted_failure(signal)),
    };
    let lock = lock_request(&client, lock_args, settings);
    let lock = lock.on_queue(move |queue_position| {
        position_sender.send_replace(Some(queue_position.clone()));
    });
    let next = retry_hint(lock_args, command);
    let wait = lock_args.wait.unwrap_or(Duration::MAX);
    let wait = if lock_args.no_wait {
        Duration::ZERO
    } else {
        wait
    };
    let acquire = lock.wait(wait).acquire();
    let acquired = tokio::select! {
        acquired = waiting.show_during(acquire, positions) => Ok(acquired),
        signal = signals.next_termination() => Err(interrupted_failure(signal)),
    };
    let failure = match acquired {
        Ok(Ok(guard)) => return Ok(AcquiredLock { client, guard }),
        Ok(Err(error)) => with_contention_code(
            lock_args,
            broker::acquire_failure(&lock_args.name, &error, &next),
        ),
        Err(failure) => failure,
    };
    drop(waiting);
    client.shutdown().await;
    Err(failure)
}

/// Applies the exit code that the caller has chosen for contention.
pub(crate) fn with_contention_code(lock_args: &LockArgs, failure: Failure) -> Failure {
    let code = match failure.code {
        NOT_OBTAINED if lock_args.skip => 0,
        NOT_OBTAINED => lock_args.busy_code,
        code => code,
    };
    Failure { code, ..failure }
}

/// Returns a hint for the user when a lock is held.
pub(crate) fn retry_hint(lock_args: &LockArgs, command: &str) -> String {
    let (name, wait) = (
        plain(&lock_args.name),
        lock_args.wait.filter(|wait| !wait.is_zero()),
    );
    let longer = match wait {
        Some(wait) => format!("--wait {}", output::format_exact(wait.saturating_mul(2))),
        None => "--wait 5m".to_owned(),
    };
    let suffix = if command == "run" { " -- …" } else { "" };
    format!("Try: leasehold {command} {longer} {name}{suffix}")
}

fn interrupted_failure(signal: i32) -> Failure {
    Failure::new(exit::code_of_signal(signal), "the wait was cancelled")
}

fn lock_request(client: &Client, lock_args: &LockArgs, settings: &Settings) -> Lock {
    let targets = targets(lock_args, settings);
    let mut lock = client.lock_all(targets).ttl(lock_args.ttl);
    if let Some(reason) = &lock_args.reason {
        lock = lock.reason(truncate_reason(reason));
    }
    if let Some(max_hold) = lock_args.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(lock_delay) = lock_args.lock_delay {
        lock = lock.lock_delay(lock_delay);
    }
    if let Some(at_least) = lock_args.at_least {
        lock = lock.at_least(at_least);
    }
    let labels = lock_args.labels.iter().cloned();
    labels.fold(lock, |lock, (key, value)| lock.label(key, value))
}

fn targets(lock_args: &LockArgs, settings: &Settings) -> Vec<Target> {
    let names = std::iter::once(&lock_args.name).chain(&lock_args.locks);
    let targets = names.map(|name| {
        let target = Target::new(name).namespace(&settings.namespace);
        match (lock_args.shared, lock_args.permits) {
            (true, _) => target.shared(),
            (false, Some((permits, limit))) => target.permits(permits, limit),
            (false, None) => target,
        }
    });
    targets.collect()
}

/// Returns the owner of the lock: as configured, or user, host and process id.
pub(crate) fn owner_name(lock_args: &LockArgs) -> String {
    let owner = lock_args.owner.clone();
    owner.unwrap_or_else(|| format!("{}:{}", user_name(), getpid()))
}

/// Returns the user and host of this process.
pub(crate) fn user_name() -> String {
    let user = std::env::var_os("USER").or_else(|| std::env::var_os("LOGNAME"));
    let user = user.filter(|user| !user.is_empty());
    let user = user.map(|user| format!("{}@", user.to_string_lossy()));
    let host = uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{}{host}", user.unwrap_or_default())
}

/// Truncates a text to the [`REASON_MAX_BYTES`] that brokers accept.
pub(crate) fn truncate_reason(text: &str) -> String {
    text[..text.floor_char_boundary(REASON_MAX_BYTES)].to_owned()
}
