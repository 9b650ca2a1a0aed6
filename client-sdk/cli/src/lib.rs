//! The command line `leasehold`: reads the arguments, does what they say, and returns an exit code.
//! A library, so that tests can parse the commands of the documentation.

mod args;
mod broker;
mod clock;
mod commands;
mod exit;
mod json;
mod obtain;
mod run;
mod settings;
mod show;
mod waiting;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use tokio::runtime::Builder;

use self::{
    args::{Cli, Command},
    exit::{Failure, OWN_FAILURE},
};

/// Returns the parser of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments of this process name, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing fails only if the terminal is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { OWN_FAILURE } else { 0 });
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli)),
        Err(error) => Err(Failure::own(format!("cannot start: {error}"))),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            show::say(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

async fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let reach = &cli.reach;
    match cli.command {
        Command::Run(args) => run::run(*args, reach).await,
        Command::Hold(args) => commands::hold(args, reach).await,
        Command::Acquire(args) => commands::acquire(args, reach).await,
        Command::Renew(args) => commands::renew(args, reach).await,
        Command::Release(args) => commands::release(args, reach).await,
        Command::Ls(args) => commands::list(args, reach).await,
        Command::Get(args) => commands::get(args, reach).await,
        Command::Watch(args) => commands::watch(args, reach).await,
        Command::ForceRelease(args) => commands::force_release(args, reach).await,
        Command::CheckToken(args) => commands::check_token(args, reach).await,
        Command::Ping(args) => commands::ping(args, reach).await,
        Command::Version(args) => commands::version(args),
        Command::Completion { shell } => commands::completion(shell),
        Command::Guard(args) => run::guard(args).await,
        Command::ExecChild(args) => run::exec_child(args),
    }
}
