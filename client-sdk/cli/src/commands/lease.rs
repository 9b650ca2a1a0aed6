//! The commands `acquire`, `renew` and `release`. They print and read a lease as JSON, and no
//! process renews it in between.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _, stdin},
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_proto::v1::{
    self as pb, AcquireAllRequest, AcquireRequest, ErrorReason, LockMode, LockTarget, Owner,
    ReleaseRequest, RenewRequest,
};
use tokio::time::Instant;
use tonic::Status;
use uuid::Uuid;

use crate::{
    acquire,
    args::{Acquire, ConnectionArgs, Format, LockArgs, Release, Renew},
    broker::{self, Broker, CALL_TIMEOUT},
    exit::{Failure, NOT_OBTAINED},
    json::{self, Lease},
    output,
    settings::Settings,
};

/// Longest wait that a broker allows. A longer wait is split.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

pub(crate) async fn acquire(args: Acquire, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let broker = Broker::connect(&settings).await?;
    let lock = &args.lock;
    let deadline = match (lock.no_wait, lock.wait) {
        (true, _) => Some(Instant::now()),
        (false, wait) => wait.and_then(|wait| Instant::now().checked_add(wait)),
    };
    let lease = loop {
        let remaining = deadline.map_or(WAIT_MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        let sent = Instant::now();
        match send_acquire(&broker, lock, &settings, remaining.min(WAIT_MAX)).await {
            Ok(lease) => break renew_if_old(&broker, lease, sent).await?,
            Err(status) => {
                if !has_timed_out(&status)
                    || deadline.is_some_and(|deadline| Instant::now() >= deadline)
                {
                    return Err(acquire::with_contention_code(
                        lock,
                        acquire_failure(&broker, lock, &status),
                    ));
                }
            }
        }
    };
    write_lease(
        &json::pretty(&Lease::from(&lease)),
        args.lease_file.as_deref(),
    )?;
    Ok(0)
}

async fn send_acquire(
    broker: &Broker,
    lock: &LockArgs,
    settings: &Settings,
    wait: Duration,
) -> Result<pb::Lease, Status> {
    let targets: Vec<_> = std::iter::once(&lock.name).chain(&lock.locks).collect();
    let targets = targets
        .into_iter()
        .map(|name| lock_target(name, lock, settings));
    let mut targets: Vec<_> = targets.collect();
    let time = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
    let owner = Some(Owner {
        id: acquire::owner_name(lock),
        reason: lock
            .reason
            .as_deref()
            .map(acquire::truncate_reason)
            .unwrap_or_default(),
        labels: lock.labels.iter().cloned().collect(),
    });
    let request_id = Uuid::new_v4().to_string();
    let mut locks = broker.locks();
    let (ttl, wait_timeout) = (time(Some(lock.ttl)), time(Some(wait)));
    let (max_hold, lock_delay) = (time(lock.max_hold), time(lock.lock_delay));
    if targets.len() > 1 {
        let mut request = broker.request_without_timeout(AcquireAllRequest {
            targets,
            owner,
            ttl,
            wait_timeout,
            request_id,
            max_hold,
            lock_delay,
            disconnect_grace: None,
            at_least: time(lock.at_least),
        });
        request.set_timeout(wait + CALL_TIMEOUT);
        let response = locks.acquire_all(request).await?.into_inner();
        return Ok(response.lease.unwrap_or_default());
    }
    let mut request = broker.request_without_timeout(AcquireRequest {
        target: targets.pop(),
        owner,
        ttl,
        wait_timeout,
        request_id,
        under: None,
        max_hold,
        lock_delay,
        disconnect_grace: None,
        at_least: time(lock.at_least),
    });
    request.set_timeout(wait + CALL_TIMEOUT);
    let response = locks.acquire(request).await?.into_inner();
    Ok(response.lease.unwrap_or_default())
}

fn lock_target(name: &str, lock: &LockArgs, settings: &Settings) -> LockTarget {
    let (mode, (permits, limit)) = match (lock.shared, lock.permits) {
        (true, _) => (LockMode::Shared, (0, 0)),
        (false, Some(permits)) => (LockMode::Semaphore, permits),
        (false, None) => (LockMode::Exclusive, (0, 0)),
    };
    LockTarget {
        namespace: settings.namespace.clone(),
        name: name.to_owned(),
        mode: mode.into(),
        // Larger values are rejected by the broker as too large.
        permits: i32::try_from(permits).unwrap_or(i32::MAX),
        limit: i32::try_from(limit).unwrap_or(i32::MAX),
    }
}

/// Renews a lease that was granted after a long wait, because its validity counts from the sending
/// of the request.
async fn renew_if_old(
    broker: &Broker,
    lease: pb::Lease,
    sent: Instant,
) -> Result<pb::Lease, Failure> {
    if sent.elapsed() < output::duration(lease.ttl) / 2 {
        return Ok(lease);
    }
    renew_lease(broker, lease, None).await
}

async fn renew_lease(
    broker: &Broker,
    lease: pb::Lease,
    ttl: Option<Duration>,
) -> Result<pb::Lease, Failure> {
    let operation = format!("cannot renew the lease {}", lease.lease_id);
    let request = broker.request(RenewRequest {
        lease: Some(lease),
        ttl: ttl.and_then(|ttl| ttl.try_into().ok()),
    });
    let renewed = broker.locks().renew(request).await;
    let renewed = renewed.map_err(|status| broker.failure_from_status(&operation, &status))?;
    Ok(renewed.into_inner().lease.unwrap_or_default())
}

fn acquire_failure(broker: &Broker, lock: &LockArgs, status: &Status) -> Failure {
    let operation = format!("cannot acquire {:?}", lock.name);
    let failure = broker.failure_from_status(&operation, status);
    let contention = match broker::contention(status) {
        Some(contention) if failure.code == NOT_OBTAINED => contention,
        Some(_) | None => return failure,
    };
    let holders: Vec<_> = contention.holders.iter().map(describe_holder).collect();
    let waiting = u32::try_from(contention.queue_length).unwrap_or_default();
    let next = acquire::retry_hint(lock, "acquire");
    let closed = contention.closure.as_ref().map(output::describe_closure);
    let text = broker::describe_contention(&lock.name, &holders, closed, waiting, &next);
    let has_waited = has_timed_out(status) && !lock.no_wait;
    let prefix = if has_waited {
        "the wait timed out: "
    } else {
        ""
    };
    Failure::new(NOT_OBTAINED, format!("{prefix}{text}"))
}

/// Returns true if the wait of the call has timed out.
fn has_timed_out(status: &Status) -> bool {
    matches!(
        broker::reason(status),
        Some(ErrorReason::WaitTimeout | ErrorReason::StillQueued)
    )
}

/// Describes a holder or waiter, as [`broker::held_by`] does.
pub(super) fn describe_holder(holder: &pb::Holder) -> String {
    let owner = holder.owner.clone().unwrap_or_default();
    let since = output::system_time(holder.since_time);
    broker::describe_holder(&owner.id, &owner.reason, since)
}

pub(crate) async fn renew(args: Renew, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let lease = read_lease(args.lease_file.as_deref())?;
    let broker = Broker::connect(&settings).await?;
    let lease = renew_lease(&broker, lease.into(), args.ttl).await?;
    write_lease(
        &json::pretty(&Lease::from(&lease)),
        args.lease_file.as_deref(),
    )?;
    Ok(0)
}

pub(crate) async fn release(args: Release, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let lease = read_lease(args.lease_file.as_deref())?;
    let lease_id = lease.lease_id.clone();
    let broker = Broker::connect(&settings).await?;
    let request = broker.request(ReleaseRequest {
        lease: Some(lease.into()),
        ..ReleaseRequest::default()
    });
    let released = broker.locks().release(request).await;
    let operation = format!("cannot release the lease {lease_id}");
    let released = released.map_err(|status| broker.failure_from_status(&operation, &status))?;
    let already_released = released.into_inner().already_released;
    match args.output.output {
        Format::Json => output::print(&json::pretty(&json::ReleaseOutput {
            lease_id,
            already_released,
        }))?,
        Format::Text if already_released => output::print("already released")?,
        Format::Text => output::print("released")?,
    }
    Ok(0)
}

/// Reads a lease that `acquire` has printed, from a file or stdin.
fn read_lease(file: Option<&Path>) -> Result<Lease, Failure> {
    let (text, source) = match file {
        Some(file) => (fs::read_to_string(file), format!("{}", file.display())),
        None => {
            let mut text = String::new();
            (
                stdin().read_to_string(&mut text).map(|_| text),
                "stdin".to_owned(),
            )
        }
    };
    let text = text
        .map_err(|error| Failure::general(format!("cannot read a lease from {source}: {error}")))?;
    // The text contains a secret, and messages of serde quote values.
    serde_json::from_str(&text).map_err(|error| {
        Failure::general(format!(
            "{source} does not contain a lease as written by `leasehold acquire` (line {}, column \
             {})",
            error.line(),
            error.column()
        ))
    })
}

/// Prints a lease, or writes it to a file that only its owner can read.
fn write_lease(lease: &str, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else {
        return output::print(lease);
    };
    let mut temporary = file.to_owned().into_os_string();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = create_private_file(&temporary)
        .and_then(|mut out| writeln!(out, "{lease}"))
        .and_then(|()| fs::rename(&temporary, file));
    written.map_err(|error| {
        // The remaining file is empty, or contains the lease that could not be moved into place.
        let _ = fs::remove_file(&temporary);
        Failure::general(format!(
            "cannot write the lease to {}: {error}",
            file.display()
        ))
    })
}

fn create_private_file(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
