//! The server binary: command line, sockets and signals. Everything else is in the library.

use std::{fmt::Display, io::Write as _, process::ExitCode};

use leasehold_server::{
    Listeners, commands,
    config::{Cli, Command, Config, Flags},
    reload::ConfigReloader,
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
    let done = match Cli::from_process_arguments().command {
        Command::Dev(flags) => serve(&flags, true).await,
        Command::Serve(flags) => serve(&flags, false).await,
        Command::CheckConfig(asked) => commands::check(&asked).await.and_then(say),
        Command::ConfigSchema => say(format!("{:#}", Config::schema())),
        Command::InitStore(flags) => commands::init_store(&flags).await.and_then(say),
    };
    let Err(problems) = done else {
        return ExitCode::SUCCESS;
    };
    let _ = writeln!(std::io::stderr(), "{}", problems.join("\n"));
    ExitCode::FAILURE
}

async fn serve(flags: &Flags, dev: bool) -> Result<(), Vec<String>> {
    let config = Config::load(flags, dev)?;
    let signals = Signals::install().map_err(sentence)?;
    telemetry::init(config.log_format, &config.live.borrow().log_filter);
    let reload = ConfigReloader::install(flags, &config).map_err(sentence)?;
    let listeners = Listeners::bind(&config).await.map_err(sentence)?;
    listeners.announce(&config).map_err(sentence)?;
    let stop = CancellationToken::new();
    tokio::select! {
        ended = run(config, listeners, stop.clone().cancelled_owned()) => ended.map_err(sentence),
        () = reload.run() => unreachable!("Reload::follow does not return"),
        ended = signals.wait_for_shutdown(dev, stop) => ended.map_err(sentence),
    }
}

fn say(line: String) -> Result<(), Vec<String>> {
    writeln!(std::io::stdout(), "{line}").map_err(sentence)
}

fn sentence(error: impl Display) -> Vec<String> {
    vec![error.to_string()]
}
