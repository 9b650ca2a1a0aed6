//! Getting a lock that is then kept alive, for `run` and `hold`.

use std::time::Duration;

use leasehold::{Client, Guard, Lock, Target};
use leasehold_proto::text::plain;
use rustix::{process::getpid, system::uname};
use tokio::sync::watch;

use crate::{
    args::Take,
    broker,
    exit::{self, Failure, NOT_OBTAINED},
    run::Signals,
    settings::Settings,
    show,
    waiting::Waiting,
};

const REASON_MAX_BYTES: usize = 512;

/// A lock that is held, and the client that keeps it.
pub(crate) struct Obtained {
    pub(crate) client: Client,
    pub(crate) guard: Guard,
}

/// Takes what is asked for, waiting in line, unless a signal says to give up. `command` is the name
/// of what was called, for the hint.
pub(crate) async fn obtain(
    take: &Take,
    settings: &Settings,
    signals: &mut Signals,
    command: &str,
) -> Result<Obtained, Failure> {
    let mut waiting = Waiting::new(&take.name, &settings.endpoint, settings.quiet);
    let (place, places) = watch::channel(None);
    let owner = owner(take);
    let connect = broker::client(settings, &owner);
    let client = tokio::select! {
        client = waiting.during(connect, places.clone()) => client?,
        signal = signals.end() => return Err(gave_up(signal)),
    };
    let lock = lock(&client, take, settings);
    let lock = lock.on_queue(move |standing| {
        place.send_replace(Some(standing.clone()));
    });
    let next = hint(take, command);
    let wait = take.wait.unwrap_or(Duration::MAX);
    let wait = if take.no_wait { Duration::ZERO } else { wait };
    let acquire = lock.wait(wait).acquire();
    let acquired = tokio::select! {
        acquired = waiting.during(acquire, places) => Ok(acquired),
        signal = signals.end() => Err(gave_up(signal)),
    };
    let failure = match acquired {
        Ok(Ok(guard)) => return Ok(Obtained { client, guard }),
        Ok(Err(error)) => not_obtained(take, broker::not_granted(&take.name, &error, &next)),
        Err(failure) => failure,
    };
    drop(waiting);
    client.shutdown().await;
    Err(failure)
}

/// With the code that the caller wants for it.
pub(crate) fn not_obtained(take: &Take, failure: Failure) -> Failure {
    let code = match failure.code {
        NOT_OBTAINED if take.skip => 0,
        NOT_OBTAINED => take.busy_code,
        code => code,
    };
    Failure { code, ..failure }
}

/// What to try when a lock is held.
pub(crate) fn hint(take: &Take, command: &str) -> String {
    let (name, wait) = (plain(&take.name), take.wait.filter(|wait| !wait.is_zero()));
    let longer = match wait {
        Some(wait) => format!("--wait {}", show::exact(wait.saturating_mul(2))),
        None => "--wait 5m".to_owned(),
    };
    let rest = if command == "run" { " -- …" } else { "" };
    format!("Try: leasehold {command} {longer} {name}{rest}")
}

fn gave_up(signal: i32) -> Failure {
    Failure::new(exit::of_signal(signal), "gave up waiting")
}

fn lock(client: &Client, take: &Take, settings: &Settings) -> Lock {
    let targets = targets(take, settings);
    let mut lock = client.lock_all(targets).ttl(take.ttl);
    if let Some(reason) = &take.reason {
        lock = lock.reason(cut(reason));
    }
    if let Some(max_hold) = take.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(lock_delay) = take.lock_delay {
        lock = lock.lock_delay(lock_delay);
    }
    let labels = take.labels.iter().cloned();
    labels.fold(lock, |lock, (key, value)| lock.label(key, value))
}

fn targets(take: &Take, settings: &Settings) -> Vec<Target> {
    let names = std::iter::once(&take.name).chain(&take.locks);
    let targets = names.map(|name| {
        let target = Target::new(name).namespace(&settings.namespace);
        match (take.shared, take.permits) {
            (true, _) => target.shared(),
            (false, Some((permits, limit))) => target.permits(permits, limit),
            (false, None) => target,
        }
    });
    targets.collect()
}

/// Who takes the lock.
pub(crate) fn owner(take: &Take) -> String {
    take.owner.clone().unwrap_or_else(|| {
        let user = std::env::var_os("USER").or_else(|| std::env::var_os("LOGNAME"));
        let user = user.filter(|user| !user.is_empty());
        let user = user.map(|user| format!("{}@", user.to_string_lossy()));
        let host = uname();
        let host = host.nodename().to_string_lossy().into_owned();
        format!("{}{host}:{}", user.unwrap_or_default(), getpid())
    })
}

/// At most as much as the broker takes.
pub(crate) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(REASON_MAX_BYTES)].to_owned()
}
