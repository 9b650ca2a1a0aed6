//! The command `set-limit`, which sets or removes the limit of a semaphore.

use leasehold_proto::{
    text::plain,
    v1::{LockRef, SetLockLimitRequest},
};

use crate::{
    args::{ConnectionArgs, Format, Limit, SetLimit},
    broker::Broker,
    exit::Failure,
    json, output,
    settings::Settings,
};

pub(crate) async fn set_limit(args: SetLimit, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let broker = Broker::connect(&settings).await?;
    let limit = match args.limit {
        Limit::Permits(limit) => Some(limit),
        Limit::None => None,
    };
    let request = broker.request(SetLockLimitRequest {
        lock: Some(LockRef {
            namespace: settings.namespace.clone(),
            name: args.name.clone(),
        }),
        limit: limit.unwrap_or(0),
    });
    let set = broker.locks().set_lock_limit(request).await;
    let operation = format!("cannot set the limit of {:?}", args.name);
    let set = set.map_err(|status| broker.failure_from_status(&operation, &status))?;
    let previous = set.into_inner().previous_limit;
    let previous_limit = (previous > 0).then_some(previous);
    output::print(&match args.output.output {
        Format::Json => json::pretty(&json::LimitOutput {
            namespace: settings.namespace,
            name: args.name,
            limit,
            previous_limit,
        }),
        Format::Text => {
            let name = plain(&args.name);
            let before = match previous_limit {
                Some(previous) => format!("; it was {previous}"),
                None => String::new(),
            };
            match (limit, previous_limit) {
                (Some(limit), _) => format!("the limit of {name} is {limit}{before}"),
                (None, Some(_)) => format!("the limit of {name} is removed{before}"),
                (None, None) => format!("{name} had no set limit"),
            }
        }
    })?;
    Ok(0)
}
