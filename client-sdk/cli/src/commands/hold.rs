//! The command `hold`: holds a lock until a signal such as Ctrl-C.

use std::time::Duration;

use leasehold::Guard;
use leasehold_proto::text::plain;
use tokio::time::timeout;

use crate::{
    acquire::{AcquiredLock, acquire_lock},
    args::{ConnectionArgs, Format, Hold},
    exit::{Failure, LOST},
    json, output,
    run::Signals,
    settings::Settings,
};

/// Time limit for the response to a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn hold(args: Hold, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let mut signals = Signals::catch()?;
    let acquired = acquire_lock(&args.lock, &settings, &mut signals, "hold").await?;
    let AcquiredLock { client, guard } = acquired;
    let name = &args.lock.name;
    let printed = match args.output.output {
        Format::Json => output::print(&json::pretty(&json::HoldOutput {
            lease_id: guard.lease_id().to_owned(),
            namespace: settings.namespace.clone(),
            name: name.clone(),
            fencing_token: guard.fencing_token(),
            ttl: output::format_exact(guard.ttl()),
            ttl_ms: json::millis(guard.ttl()),
        })),
        Format::Text => output::print(&format!(
            "holding {} with fencing token {}; Ctrl-C releases it",
            plain(name),
            guard.fencing_token()
        )),
    };
    let result = match printed {
        Err(failure) => Err(failure),
        Ok(()) => tokio::select! {
            reason = guard.lost() => {
                let reason = plain(&reason.to_string());
                Err(Failure::new(LOST, format!("the lock {name:?} was lost: {reason}")))
            }
            _ = signals.next_termination() => Ok(0),
        },
    };
    let released = release_guard(guard, name).await;
    client.shutdown().await;
    result.and_then(|code| released.map(|()| code))
}

/// Releases a lock, and waits at most [`RELEASE_TIMEOUT`] for the confirmation.
pub(crate) async fn release_guard(guard: Guard, name: &str) -> Result<(), Failure> {
    match timeout(RELEASE_TIMEOUT, guard.release()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let message = plain(&error.to_string());
            Err(Failure::new(
                LOST,
                format!("cannot release {name:?}: {message}"),
            ))
        }
        Err(_) => {
            output::print_message(&format!(
                "no broker has confirmed the release of {name:?}; its lease expires"
            ));
            Ok(())
        }
    }
}
