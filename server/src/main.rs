//! The binary: command line, sockets, signals; everything else is in the library.

use std::{
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
};

use leasehold_server::{
    Listeners,
    config::{Cli, Command, Config, Flags, StoreSettings},
    run,
    shutdown::Signals,
    store::redis::init::{check_store, init_store},
    telemetry,
};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::of_process().command {
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
    let signals = Signals::catch().map_err(sentence)?;
    let listeners = Listeners::bind(&config).await.map_err(sentence)?;
    listeners.announce(dev).map_err(sentence)?;
    let stop = CancellationToken::new();
    tokio::select! {
        ended = run(config, listeners, stop.clone().cancelled_owned()) => ended.map_err(sentence),
        () = signals.second(stop) => Err(sentence("ended before the drain was complete")),
    }
}

async fn check(flags: &Flags, connect: bool) -> Result<(), Vec<String>> {
    let config = Config::load(flags, false)?;
    if connect && let StoreSettings::Redis(redis) = config.store {
        check_store(redis).await?;
    }
    say("the configuration is valid")
}

async fn init(flags: &Flags) -> Result<(), Vec<String>> {
    let config = Config::load(flags, false)?;
    let StoreSettings::Redis(redis) = config.store else {
        return say("the memory store needs no first era");
    };
    say(&init_store(redis).await.map_err(sentence)?)
}

fn say(line: &str) -> Result<(), Vec<String>> {
    writeln!(io::stdout(), "{line}").map_err(sentence)
}

fn sentence(error: impl Display) -> Vec<String> {
    vec![error.to_string()]
}
