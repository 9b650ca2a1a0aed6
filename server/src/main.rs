//! The binary: command line, sockets, signals; everything else is in the library.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use leasehold_server::{
    Listeners,
    config::{Cli, Command, Config, Flags},
    run,
    shutdown::Signals,
    telemetry,
};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Dev(flags) => serve(&flags, true).await,
        Command::Serve(flags) => serve(&flags, false).await,
        Command::CheckConfig { flags, connect } => check(&flags, connect).await,
        Command::InitStore(flags) => init(&flags).await,
    };
    let Err(problems) = done else {
        return ExitCode::SUCCESS;
    };
    for problem in problems {
        let _ = writeln!(io::stderr(), "{problem}");
    }
    ExitCode::FAILURE
}

async fn serve(flags: &Flags, dev: bool) -> Result<(), Vec<String>> {
    let config = Config::load(flags, dev)?;
    telemetry::init(&config.log);
    let signals = Signals::catch().map_err(|error| vec![error.to_string()])?;
    let listeners = Listeners::bind(&config)
        .await
        .map_err(|error| vec![error.to_string()])?;
    listeners
        .announce(dev)
        .map_err(|error| vec![error.to_string()])?;
    let stop = CancellationToken::new();
    tokio::select! {
        ended = run(config, listeners, stop.clone().cancelled_owned()) => {
            ended.map_err(|error| vec![error.to_string()])
        }
        () = signals.second(stop) => Err(vec!["ended before the drain was complete".to_owned()]),
    }
}

async fn check(flags: &Flags, _connect: bool) -> Result<(), Vec<String>> {
    Config::load(flags, false)?;
    writeln!(io::stdout(), "the configuration is valid").map_err(|error| vec![error.to_string()])
}

async fn init(flags: &Flags) -> Result<(), Vec<String>> {
    Config::load(flags, false).map(drop)
}
