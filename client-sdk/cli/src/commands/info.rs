//! The commands `ping`, `version` and `completion`.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use tokio::time::{Instant, timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    args::{Cli, ConnectionArgs, Format, Output, Ping},
    broker::{self, Broker, CALL_TIMEOUT},
    exit::{Failure, GENERAL_FAILURE},
    json, output,
    settings::Settings,
};

pub(crate) async fn ping(args: Ping, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let mut pings = Vec::new();
    for url in broker::allowed_urls(&settings.endpoint, &settings)? {
        pings.push(ping_broker(url, &args.service, &settings).await);
    }
    let is_well = !pings.is_empty() && pings.iter().all(|ping| ping.is_serving);
    match args.output.output {
        Format::Json => output::print(&json::pretty(&pings))?,
        Format::Text => {
            for ping in &pings {
                let text = match (&ping.error, &ping.round_trip) {
                    (Some(error), _) => error.clone(),
                    (None, Some(time)) => format!("serving, responded in {time}"),
                    (None, None) => "not serving".to_owned(),
                };
                output::print(&format!("{}: {text}", ping.endpoint))?;
            }
        }
    }
    Ok(if is_well { 0 } else { GENERAL_FAILURE })
}

async fn ping_broker(url: &str, service: &str, settings: &Settings) -> json::PingOutput {
    let result = timeout(CALL_TIMEOUT, check_health(url, service, settings)).await;
    let result = result.unwrap_or_else(|_| Err(format!("no answer within {CALL_TIMEOUT:?}")));
    let (time, error) = match result {
        Ok(time) => (Some(time), None),
        Err(error) => (None, Some(error)),
    };
    json::PingOutput {
        endpoint: url.to_owned(),
        is_serving: error.is_none(),
        round_trip: time.map(output::format_exact),
        round_trip_ms: time.map(json::millis),
        error,
    }
}

async fn check_health(
    url: &str,
    service: &str,
    settings: &Settings,
) -> Result<std::time::Duration, String> {
    let broker = Broker::open(url, settings).await?;
    let sent = Instant::now();
    let request = broker.request(HealthCheckRequest {
        service: service.to_owned(),
    });
    let health = HealthClient::new(broker.channel()).check(request).await;
    let health = health.map_err(|status| {
        broker
            .failure_from_status("health check failed", &status)
            .text
    })?;
    match health.into_inner().status() {
        ServingStatus::Serving => Ok(sent.elapsed()),
        ServingStatus::NotServing | ServingStatus::Unknown | ServingStatus::ServiceUnknown => Err(
            "not serving: the broker is starting, shutting down, or has no connection to its store"
                .to_owned(),
        ),
    }
}

pub(crate) fn version(output: Output) -> Result<u8, Failure> {
    let version = json::VersionOutput {
        version: env!("CARGO_PKG_VERSION"),
        api: "leasehold.v1",
    };
    output::print(&match output.output {
        Format::Json => json::pretty(&version),
        Format::Text => format!("leasehold {}, API {}", version.version, version.api),
    })?;
    Ok(0)
}

#[expect(clippy::unnecessary_wraps, reason = "every command has this shape")]
pub(crate) fn completion(shell: Shell) -> Result<u8, Failure> {
    let full_command = Cli::command();
    // The internal commands that `run` starts are hidden.
    let visible = full_command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let mut visible_command = Command::new("leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .args(full_command.get_arguments())
        .subcommands(visible);
    clap_complete::generate(shell, &mut visible_command, "leasehold", &mut io::stdout());
    Ok(0)
}
