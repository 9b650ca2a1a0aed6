//! `force-release`: taking a lease away, after a look at what that means.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use leasehold_proto::{
    text::plain,
    v1::{ForceReleaseLeaseRequest, GetLockRequest, LockRef},
};
use uuid::Uuid;

use super::lease::held_by;
use crate::{
    args::{ForceRelease, Format, Reach},
    broker::Broker,
    exit::Failure,
    json,
    settings::Settings,
    show,
};

pub(crate) async fn force_release(args: ForceRelease, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    if !args.yes && !args.dry_run {
        confirm(&args, &settings).await?;
    }
    let admin = Broker::admin(&settings).await?;
    let request = admin.request(ForceReleaseLeaseRequest {
        lease_id: args.lease_id.clone(),
        reason: args.reason,
        grace: args.grace.and_then(|grace| grace.try_into().ok()),
        lock_delay: None,
        validate_only: args.dry_run,
        request_id: Uuid::new_v4().to_string(),
        lock: Some(LockRef {
            namespace: settings.namespace.clone(),
            name: args.name.clone(),
        }),
        unsafe_now: args.unsafe_now,
    });
    let released = admin.operators().force_release_lease(request).await;
    let what = format!("cannot take the lease {} away", args.lease_id);
    let released = released
        .map_err(|status| admin.refused(&what, &status))?
        .into_inner();
    let by = released.holder.as_ref().map(held_by).unwrap_or_default();
    let done = if args.dry_run {
        "would be taken away"
    } else {
        "is taken away"
    };
    show::print(&match args.output.output {
        Format::Json => json::pretty(&json::ForceReleased {
            is_done: !args.dry_run,
            holder: released.holder.as_ref().map(json::Holder::from),
            queue_length: released.queue_length,
        }),
        Format::Text => {
            let waiting = released.queue_length;
            format!(
                "the lease {} of {by} {done}; {waiting} waiting",
                args.lease_id
            )
        }
    })?;
    Ok(0)
}

/// Shows who is hit, and has the lease id typed.
async fn confirm(args: &ForceRelease, settings: &Settings) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::own(
            "force-release takes a lock from somebody who may be at work; without a terminal to ask on it needs --yes",
        ));
    }
    let broker = Broker::connect(settings).await?;
    let request = broker.request(GetLockRequest {
        namespace: settings.namespace.clone(),
        name: args.name.clone(),
    });
    let lock = broker.inspection().get_lock(request).await;
    let what = format!("cannot show {:?}", args.name);
    let lock = lock
        .map_err(|status| broker.refused(&what, &status))?
        .into_inner()
        .lock;
    let lock = lock.unwrap_or_default();
    let holder = lock
        .holders
        .iter()
        .find(|holder| holder.lease_id == args.lease_id);
    let Some(holder) = holder else {
        let hint = format!("`leasehold get {}` shows who does", plain(&args.name));
        return Err(Failure::own(format!(
            "the lease {} does not hold {:?}; {hint}",
            args.lease_id, args.name
        )));
    };
    let then = if args.unsafe_now {
        format!(
            "The lock is free at once: its work may overlap with the next holder's unless the resource \
             checks token {}.",
            holder.fencing_token
        )
    } else {
        "The lock is free when it is given back, or when the holder can trust it no more."
            .to_owned()
    };
    show::say(&format!(
        "{:?} is held by {}; {} waiting. The holder will be told. {then}",
        args.name,
        held_by(holder),
        lock.queue_length,
    ));
    let mut stderr = io::stderr();
    let asked = write!(stderr, "Type the lease id to go on: ").and_then(|()| stderr.flush());
    let mut typed = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut typed));
    read.map_err(|error| Failure::own(format!("cannot ask: {error}")))?;
    if typed.trim() != args.lease_id {
        return Err(Failure::own("that is not the lease id; nothing was done"));
    }
    Ok(())
}
