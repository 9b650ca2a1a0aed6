//! The commands `close`, `reserve` and `open`, by which an operator closes locks.

use std::time::Duration;

use leasehold_proto::{
    text::plain,
    v1::{
        self as pb, CloseLockRequest, GetLockRequest, LockRef, OpenLockRequest,
        close_lock_request::End,
    },
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::lease::describe_holder;
use crate::{
    acquire::user_name,
    args::{Close, ConnectionArgs, Format, Open, Reserve},
    broker::Broker,
    exit::Failure,
    json,
    output::{self, describe_closure},
    settings::Settings,
};

/// Interval at which `reserve` checks whether the lock still has holders.
const HOLDER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn close(args: Close, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let admin = Broker::admin(&settings).await?;
    let end = match (args.closed_for, args.until) {
        (Some(closed_for), _) => duration_end(closed_for)?,
        (None, until) => until.map(|until| End::UntilTime(until.into())),
    };
    let request = close_request(&settings, &args.name, args.reason, end);
    let closure = send(&admin, &args.name, request).await?;
    print_closed(&settings, &args.name, &closure, args.output.output)
}

/// Closes the lock, waits until its holders have left, and closes it for the requested time from
/// then on.
pub(crate) async fn reserve(args: Reserve, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let admin = Broker::admin(&settings).await?;
    let broker = Broker::connect(&settings).await?;
    let end = duration_end(args.closed_for)?;
    let request = close_request(&settings, &args.name, args.reason, end);
    send(&admin, &args.name, request.clone()).await?;
    let (mut closed_at, mut reported) = (Instant::now(), Vec::new());
    loop {
        let holders = holders(&broker, &settings, &args.name).await?;
        if holders.is_empty() {
            break;
        }
        if holders != reported {
            let by = holders.join(", ");
            output::print_message(&format!(
                "{:?} is closed, and still held by {by}; waiting until it is released. \
                 `leasehold open {}` ends the reservation",
                args.name,
                plain(&args.name)
            ));
            reported = holders;
        }
        sleep(HOLDER_CHECK_INTERVAL).await;
        // The closure must not end while a holder is waited for.
        if closed_at.elapsed() > args.closed_for / 2 {
            send(&admin, &args.name, request.clone()).await?;
            closed_at = Instant::now();
        }
    }
    let closure = send(&admin, &args.name, request).await?;
    print_closed(&settings, &args.name, &closure, args.output.output)
}

pub(crate) async fn open(args: Open, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let admin = Broker::admin(&settings).await?;
    let request = admin.request(OpenLockRequest {
        lock: Some(lock_ref(&settings, &args.name)),
    });
    let opened = admin.admin_service().open_lock(request).await;
    let operation = format!("cannot open {:?}", args.name);
    let opened = opened.map_err(|status| admin.failure_from_status(&operation, &status))?;
    let closure = opened.into_inner().closure;
    output::print(&match args.output.output {
        Format::Json => json::pretty(&json::ClosureOutput::new(
            &settings.namespace,
            &args.name,
            closure.as_ref(),
        )),
        Format::Text => match &closure {
            Some(closure) => format!(
                "{} is open; it was {}",
                plain(&args.name),
                describe_closure(closure)
            ),
            None => format!("{} was not closed", plain(&args.name)),
        },
    })?;
    Ok(0)
}

fn duration_end(closed_for: Duration) -> Result<Option<End>, Failure> {
    let duration = closed_for.try_into();
    let duration = duration.map_err(|_| Failure::general("the time is too long"))?;
    Ok(Some(End::Duration(duration)))
}

fn lock_ref(settings: &Settings, name: &str) -> LockRef {
    LockRef {
        namespace: settings.namespace.clone(),
        name: name.to_owned(),
    }
}

fn close_request(
    settings: &Settings,
    name: &str,
    reason: String,
    end: Option<End>,
) -> CloseLockRequest {
    CloseLockRequest {
        lock: Some(lock_ref(settings, name)),
        reason,
        end,
        operator: user_name(),
    }
}

/// Closes the lock, and returns the closure that is in effect then.
async fn send(
    admin: &Broker,
    name: &str,
    request: CloseLockRequest,
) -> Result<pb::Closure, Failure> {
    let request = admin.request(request);
    let closed = admin.admin_service().close_lock(request).await;
    let operation = format!("cannot close {name:?}");
    let closed = closed.map_err(|status| admin.failure_from_status(&operation, &status))?;
    Ok(closed.into_inner().closure.unwrap_or_default())
}

/// Returns the descriptions of the holders of a lock.
async fn holders(broker: &Broker, settings: &Settings, name: &str) -> Result<Vec<String>, Failure> {
    let request = broker.request(GetLockRequest {
        namespace: settings.namespace.clone(),
        name: name.to_owned(),
    });
    match broker.inspection().get_lock(request).await {
        Ok(response) => {
            let lock = response.into_inner().lock.unwrap_or_default();
            Ok(lock.holders.iter().map(describe_holder).collect())
        }
        Err(status) if status.code() == Code::NotFound => Ok(Vec::new()),
        Err(status) => Err(broker.failure_from_status(&format!("cannot show {name:?}"), &status)),
    }
}

fn print_closed(
    settings: &Settings,
    name: &str,
    closure: &pb::Closure,
    format: Format,
) -> Result<u8, Failure> {
    output::print(&match format {
        Format::Json => json::pretty(&json::ClosureOutput::new(
            &settings.namespace,
            name,
            Some(closure),
        )),
        Format::Text => format!("{} is {}", plain(name), describe_closure(closure)),
    })?;
    Ok(0)
}
