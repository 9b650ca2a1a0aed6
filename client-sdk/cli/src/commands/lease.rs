//! `acquire`, `renew` and `release`: the lease goes in and out as JSON, and nothing runs in between.

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
    args::{Acquire, Format, Reach, Release, Renew, Take},
    broker::{self, Broker, CALL_LIMIT},
    exit::{Failure, NOT_OBTAINED},
    json::{self, Lease},
    obtain,
    settings::Settings,
    show,
};

/// The longest wait that a broker allows; a longer one is several of these.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

pub(crate) async fn acquire(args: Acquire, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let broker = Broker::connect(&settings).await?;
    let take = &args.take;
    let until = match (take.no_wait, take.wait) {
        (true, _) => Some(Instant::now()),
        (false, wait) => wait.and_then(|wait| Instant::now().checked_add(wait)),
    };
    let lease = loop {
        let left = until.map_or(WAIT_MAX, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let sent = Instant::now();
        match ask(&broker, take, &settings, left.min(WAIT_MAX)).await {
            Ok(lease) => break fresh(&broker, lease, sent).await?,
            Err(status) => {
                if !timed_out(&status) || until.is_some_and(|until| Instant::now() >= until) {
                    return Err(obtain::not_obtained(take, refused(&broker, take, &status)));
                }
            }
        }
    };
    write(
        &json::pretty(&Lease::from(&lease)),
        args.lease_file.as_deref(),
    )?;
    Ok(0)
}

async fn ask(
    broker: &Broker,
    take: &Take,
    settings: &Settings,
    wait: Duration,
) -> Result<pb::Lease, Status> {
    let targets: Vec<_> = std::iter::once(&take.name).chain(&take.locks).collect();
    let targets = targets.into_iter().map(|name| target(name, take, settings));
    let mut targets: Vec<_> = targets.collect();
    let time = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
    let owner = Some(Owner {
        id: obtain::owner(take),
        reason: take.reason.as_deref().map(obtain::cut).unwrap_or_default(),
        labels: take.labels.iter().cloned().collect(),
    });
    let request_id = Uuid::new_v4().to_string();
    let mut locks = broker.locks();
    let (ttl, wait_timeout) = (time(Some(take.ttl)), time(Some(wait)));
    let (max_hold, lock_delay) = (time(take.max_hold), time(take.lock_delay));
    if targets.len() > 1 {
        let mut request = broker.lasting(AcquireAllRequest {
            targets,
            owner,
            ttl,
            wait_timeout,
            request_id,
            max_hold,
            lock_delay,
            disconnect_grace: None,
        });
        request.set_timeout(wait + CALL_LIMIT);
        let response = locks.acquire_all(request).await?.into_inner();
        return Ok(response.lease.unwrap_or_default());
    }
    let mut request = broker.lasting(AcquireRequest {
        target: targets.pop(),
        owner,
        ttl,
        wait_timeout,
        request_id,
        under: None,
        max_hold,
        lock_delay,
        disconnect_grace: None,
    });
    request.set_timeout(wait + CALL_LIMIT);
    let response = locks.acquire(request).await?.into_inner();
    Ok(response.lease.unwrap_or_default())
}

fn target(name: &str, take: &Take, settings: &Settings) -> LockTarget {
    let (mode, (permits, limit)) = match (take.shared, take.permits) {
        (true, _) => (LockMode::Shared, (0, 0)),
        (false, Some(permits)) => (LockMode::Semaphore, permits),
        (false, None) => (LockMode::Exclusive, (0, 0)),
    };
    LockTarget {
        namespace: settings.namespace.clone(),
        name: name.to_owned(),
        mode: mode.into(),
        // What does not fit is refused by the broker, as too much.
        permits: i32::try_from(permits).unwrap_or(i32::MAX),
        limit: i32::try_from(limit).unwrap_or(i32::MAX),
    }
}

/// Validity counts from the sending: after a long wait too little of it is left.
async fn fresh(broker: &Broker, lease: pb::Lease, sent: Instant) -> Result<pb::Lease, Failure> {
    if sent.elapsed() < show::duration(lease.ttl) / 2 {
        return Ok(lease);
    }
    extend(broker, lease, None).await
}

async fn extend(
    broker: &Broker,
    lease: pb::Lease,
    ttl: Option<Duration>,
) -> Result<pb::Lease, Failure> {
    let what = format!("cannot renew the lease {}", lease.lease_id);
    let request = broker.request(RenewRequest {
        lease: Some(lease),
        ttl: ttl.and_then(|ttl| ttl.try_into().ok()),
    });
    let renewed = broker.locks().renew(request).await;
    let renewed = renewed.map_err(|status| broker.refused(&what, &status))?;
    Ok(renewed.into_inner().lease.unwrap_or_default())
}

fn refused(broker: &Broker, take: &Take, status: &Status) -> Failure {
    let what = format!("cannot take {:?}", take.name);
    let failure = broker.refused(&what, status);
    let contention = match broker::contention(status) {
        Some(contention) if failure.code == NOT_OBTAINED => contention,
        Some(_) | None => return failure,
    };
    let holders: Vec<_> = contention.holders.iter().map(held_by).collect();
    let waiting = u32::try_from(contention.queue_length).unwrap_or_default();
    let next = obtain::hint(take, "acquire");
    let text = broker::in_the_way(&take.name, &holders, waiting, &next);
    let over = timed_out(status) && !take.no_wait;
    let before = if over { "the wait is over: " } else { "" };
    Failure::new(NOT_OBTAINED, format!("{before}{text}"))
}

/// Returns whether the wait of the call is over.
fn timed_out(status: &Status) -> bool {
    matches!(
        broker::reason(status),
        Some(ErrorReason::WaitTimeout | ErrorReason::StillQueued)
    )
}

/// Describes a holder or waiter, as [`broker::held_by`] does.
pub(super) fn held_by(holder: &pb::Holder) -> String {
    let owner = holder.owner.clone().unwrap_or_default();
    let since = show::system_time(holder.since_time);
    broker::held_by(&owner.id, &owner.reason, since)
}

pub(crate) async fn renew(args: Renew, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let lease = read(args.lease_file.as_deref())?;
    let broker = Broker::connect(&settings).await?;
    let lease = extend(&broker, lease.into(), args.ttl).await?;
    write(
        &json::pretty(&Lease::from(&lease)),
        args.lease_file.as_deref(),
    )?;
    Ok(0)
}

pub(crate) async fn release(args: Release, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let lease = read(args.lease_file.as_deref())?;
    let lease_id = lease.lease_id.clone();
    let broker = Broker::connect(&settings).await?;
    let request = broker.request(ReleaseRequest {
        lease: Some(lease.into()),
        ..ReleaseRequest::default()
    });
    let released = broker.locks().release(request).await;
    let what = format!("cannot release the lease {lease_id}");
    let released = released.map_err(|status| broker.refused(&what, &status))?;
    let already_released = released.into_inner().already_released;
    match args.output.output {
        Format::Json => show::print(&json::pretty(&json::Released {
            lease_id,
            already_released,
        }))?,
        Format::Text if already_released => show::print("it was released before")?,
        Format::Text => show::print("released")?,
    }
    Ok(0)
}

/// The lease that a script has kept.
fn read(file: Option<&Path>) -> Result<Lease, Failure> {
    let (text, from) = match file {
        Some(file) => (fs::read_to_string(file), format!("{}", file.display())),
        None => {
            let mut text = String::new();
            (
                stdin().read_to_string(&mut text).map(|_| text),
                "stdin".to_owned(),
            )
        }
    };
    let text =
        text.map_err(|error| Failure::own(format!("cannot read a lease from {from}: {error}")))?;
    // The text has a secret in it, and serde's messages quote values.
    serde_json::from_str(&text).map_err(|error| {
        Failure::own(format!(
            "{from} has no lease as `leasehold acquire` writes it (line {}, column {})",
            error.line(),
            error.column()
        ))
    })
}

/// Prints a lease, or puts it into a file that only its owner can read.
fn write(lease: &str, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else {
        return show::print(lease);
    };
    let mut beside = file.to_owned().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = create(&beside)
        .and_then(|mut out| writeln!(out, "{lease}"))
        .and_then(|()| fs::rename(&beside, file));
    written.map_err(|error| {
        // What is left of it holds nothing, or the lease that could not be put in place.
        let _ = fs::remove_file(&beside);
        Failure::own(format!(
            "cannot write the lease to {}: {error}",
            file.display()
        ))
    })
}

fn create(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
