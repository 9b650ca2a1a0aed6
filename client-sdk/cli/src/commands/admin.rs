//! The command `force-release`: revokes a lease after a confirmation by the operator.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use leasehold_proto::{
    text::plain,
    v1::{ForceReleaseLeaseRequest, GetLockRequest, LockRef},
};
use uuid::Uuid;

use super::lease::describe_holder;
use crate::{
    args::{ConnectionArgs, ForceRelease, Format},
    broker::Broker,
    exit::Failure,
    json, output,
    settings::Settings,
};

pub(crate) async fn force_release(
    args: ForceRelease,
    connection: &ConnectionArgs,
) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
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
    let released = admin.admin_service().force_release_lease(request).await;
    let operation = format!("cannot revoke the lease {}", args.lease_id);
    let released = released
        .map_err(|status| admin.failure_from_status(&operation, &status))?
        .into_inner();
    let by = released
        .holder
        .as_ref()
        .map(describe_holder)
        .unwrap_or_default();
    let outcome = if args.dry_run {
        "would be revoked"
    } else {
        "is revoked"
    };
    output::print(&match args.output.output {
        Format::Json => json::pretty(&json::ForceReleaseOutput {
            is_done: !args.dry_run,
            holder: released.holder.as_ref().map(json::Holder::from),
            queue_length: released.queue_length,
        }),
        Format::Text => {
            let waiting = released.queue_length;
            format!(
                "the lease {} of {by} {outcome}; {waiting} waiting",
                args.lease_id
            )
        }
    })?;
    Ok(0)
}

/// Prints the holder and the consequences, and requires the operator to type the lease id.
async fn confirm(args: &ForceRelease, settings: &Settings) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::general(
            "force-release revokes a lease that may be in use; without a terminal, confirm it with \
             --yes",
        ));
    }
    let broker = Broker::connect(settings).await?;
    let request = broker.request(GetLockRequest {
        namespace: settings.namespace.clone(),
        name: args.name.clone(),
    });
    let lock = broker.inspection().get_lock(request).await;
    let operation = format!("cannot show {:?}", args.name);
    let lock = lock
        .map_err(|status| broker.failure_from_status(&operation, &status))?
        .into_inner()
        .lock;
    let lock = lock.unwrap_or_default();
    let holder = lock
        .holders
        .iter()
        .find(|holder| holder.lease_id == args.lease_id);
    let Some(holder) = holder else {
        let hint = format!("`leasehold get {}` shows the holders", plain(&args.name));
        return Err(Failure::general(format!(
            "the lease {} does not hold {:?}; {hint}",
            args.lease_id, args.name
        )));
    };
    let consequence = if args.unsafe_now {
        format!(
            "The lock is free at once: the work of its holder may overlap with that of the next \
             one, unless the resource checks token {}.",
            holder.fencing_token
        )
    } else {
        "The lock is free when its holder releases it, or when the holder can no longer rely on it."
            .to_owned()
    };
    output::print_message(&format!(
        "{:?} is held by {}; {} waiting. The holder will be notified. {consequence}",
        args.name,
        describe_holder(holder),
        lock.queue_length,
    ));
    let mut stderr = io::stderr();
    let prompted = write!(stderr, "Type the lease id to continue: ").and_then(|()| stderr.flush());
    let mut typed = String::new();
    let read = prompted.and_then(|()| io::stdin().lock().read_line(&mut typed));
    read.map_err(|error| Failure::general(format!("cannot read the confirmation: {error}")))?;
    if typed.trim() != args.lease_id {
        return Err(Failure::general(
            "the lease id does not match; nothing was done",
        ));
    }
    Ok(())
}
