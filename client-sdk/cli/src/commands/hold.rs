//! `hold`: a lock until Ctrl-C.

use std::time::Duration;

use leasehold::Guard;
use leasehold_proto::text::plain;
use tokio::time::timeout;

use crate::{
    args::{Format, Hold, Reach},
    exit::{Failure, LOST},
    json,
    obtain::{Obtained, obtain},
    run::Signals,
    settings::Settings,
    show,
};

/// How long the answer to a release is waited for.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

pub(crate) async fn hold(args: Hold, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let mut signals = Signals::catch()?;
    let obtained = obtain(&args.take, &settings, &mut signals, "hold").await?;
    let Obtained { client, guard } = obtained;
    let name = &args.take.name;
    let printed = match args.output.output {
        Format::Json => show::print(&json::pretty(&json::Held {
            lease_id: guard.lease_id().to_owned(),
            namespace: settings.namespace.clone(),
            name: name.clone(),
            fencing_token: guard.fencing_token(),
            ttl: show::exact(guard.ttl()),
            ttl_ms: json::millis(guard.ttl()),
        })),
        Format::Text => show::print(&format!(
            "holding {} with fencing token {}; Ctrl-C gives it back",
            plain(name),
            guard.fencing_token()
        )),
    };
    let ended = match printed {
        Err(failure) => Err(failure),
        Ok(()) => tokio::select! {
            why = guard.lost() => {
                let why = plain(&why.to_string());
                Err(Failure::new(LOST, format!("the lock {name:?} was lost: {why}")))
            }
            _ = signals.end() => Ok(0),
        },
    };
    let released = give_back(guard, name).await;
    client.shutdown().await;
    ended.and_then(|code| released.map(|()| code))
}

/// Gives a lock back, without waiting long for the answer.
pub(crate) async fn give_back(guard: Guard, name: &str) -> Result<(), Failure> {
    match timeout(RELEASE_LIMIT, guard.release()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let why = plain(&error.to_string());
            Err(Failure::new(LOST, format!("giving back {name:?}: {why}")))
        }
        Err(_) => {
            show::say(&format!(
                "no broker has confirmed that {name:?} is given back; it runs out by itself"
            ));
            Ok(())
        }
    }
}
