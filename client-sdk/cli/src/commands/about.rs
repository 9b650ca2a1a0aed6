//! `ping`, `version` and `completion`: about brokers and this program itself.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use tokio::time::{Instant, timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    args::{Cli, Format, Output, Ping, Reach},
    broker::{self, Broker, CALL_LIMIT},
    exit::{Failure, OWN_FAILURE},
    json,
    settings::Settings,
    show,
};

pub(crate) async fn ping(args: Ping, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let mut pings = Vec::new();
    for url in broker::each(&settings.endpoint, &settings)? {
        pings.push(one(url, &args.service, &settings).await);
    }
    let is_well = !pings.is_empty() && pings.iter().all(|ping| ping.is_serving);
    match args.output.output {
        Format::Json => show::print(&json::pretty(&pings))?,
        Format::Text => {
            for ping in &pings {
                let said = match (&ping.error, &ping.round_trip) {
                    (Some(error), _) => error.clone(),
                    (None, Some(time)) => format!("serves, answered in {time}"),
                    (None, None) => "does not serve".to_owned(),
                };
                show::print(&format!("{}: {said}", ping.endpoint))?;
            }
        }
    }
    Ok(if is_well { 0 } else { OWN_FAILURE })
}

async fn one(url: &str, service: &str, settings: &Settings) -> json::Ping {
    let asked = timeout(CALL_LIMIT, ask(url, service, settings)).await;
    let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {CALL_LIMIT:?}")));
    let (time, error) = match asked {
        Ok(time) => (Some(time), None),
        Err(error) => (None, Some(error)),
    };
    json::Ping {
        endpoint: url.to_owned(),
        is_serving: error.is_none(),
        round_trip: time.map(show::exact),
        round_trip_ms: time.map(json::millis),
        error,
    }
}

async fn ask(url: &str, service: &str, settings: &Settings) -> Result<std::time::Duration, String> {
    let broker = Broker::open(url, settings).await?;
    let sent = Instant::now();
    let request = broker.request(HealthCheckRequest {
        service: service.to_owned(),
    });
    let health = HealthClient::new(broker.channel()).check(request).await;
    let health = health.map_err(|status| broker.refused("no health", &status).text)?;
    match health.into_inner().status() {
        ServingStatus::Serving => Ok(sent.elapsed()),
        ServingStatus::NotServing | ServingStatus::Unknown | ServingStatus::ServiceUnknown => {
            Err("does not serve: it is starting, ending, or without its store".to_owned())
        }
    }
}

pub(crate) fn version(output: Output) -> Result<u8, Failure> {
    let version = json::Version {
        version: env!("CARGO_PKG_VERSION"),
        api: "leasehold.v1",
    };
    show::print(&match output.output {
        Format::Json => json::pretty(&version),
        Format::Text => format!("leasehold {}, API {}", version.version, version.api),
    })?;
    Ok(0)
}

#[expect(clippy::unnecessary_wraps, reason = "every command has this shape")]
pub(crate) fn completion(shell: Shell) -> Result<u8, Failure> {
    let all = Cli::command();
    // The steps inside of `run` are nothing to type.
    let shown = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let mut typed = Command::new("leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments())
        .subcommands(shown);
    clap_complete::generate(shell, &mut typed, "leasehold", &mut io::stdout());
    Ok(0)
}
