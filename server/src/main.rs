//! The binary: command line, sockets, signals; everything else is in the library.

use std::{fmt::Display, io::Write as _, process::ExitCode};

use leasehold_server::{
    Listeners,
    config::{Cli, Command, Config, Flags},
    prepare,
    reload::Reload,
    run, runtime,
    shutdown::Signals,
    telemetry,
};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    runtime::run(run_command())
}

async fn run_command() -> ExitCode {
    let done = match Cli::of_process().command {
        Command::Dev(flags) => serve(&flags, true).await,
        Command::Serve(flags) => serve(&flags, false).await,
        Command::CheckConfig(asked) => prepare::check(&asked).await.and_then(say),
        Command::ConfigSchema => say(format!("{:#}", Config::schema())),
        Command::InitStore(flags) => prepare::init_store(&flags).await.and_then(say),
    };
    let Err(problems) = done else {
        return ExitCode::SUCCESS;
    };
    let _ = writeln!(std::io::stderr(), "{}", problems.join("\n"));
    ExitCode::FAILURE
}

async fn serve(flags: &Flags, dev: bool) -> Result<(), Vec<String>> {
    let config = Config::load(flags, dev)?;
    let signals = Signals::catch().map_err(sentence)?;
    let log_filter = telemetry::init(config.log_format, &config.live.borrow().log_filter);
    let reload = Reload::catch(flags, &config, log_filter).map_err(sentence)?;
    let listeners = Listeners::bind(&config).await.map_err(sentence)?;
    listeners.announce(&config).map_err(sentence)?;
    let stop = CancellationToken::new();
    tokio::select! {
        ended = run(config, listeners, stop.clone().cancelled_owned()) => ended.map_err(sentence),
        () = reload.follow() => unreachable!("it never ends"),
        ended = signals.end(dev, stop) => ended.map_err(sentence),
    }
}

fn say(line: String) -> Result<(), Vec<String>> {
    writeln!(std::io::stdout(), "{line}").map_err(sentence)
}

fn sentence(error: impl Display) -> Vec<String> {
    vec![error.to_string()]
}
