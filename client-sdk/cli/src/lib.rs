//! The command line program `leasehold`: parses the arguments, runs the command, and returns its
//! exit code. It is a library so that tests can parse the commands of the documentation.

mod acquire;
mod args;
mod broker;
mod clock;
mod commands;
mod exit;
mod json;
mod output;
mod progress;
mod run;
mod settings;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use tokio::runtime::Builder;

use self::{
    args::{Cli, Command},
    exit::{Failure, GENERAL_FAILURE},
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
            return ExitCode::from(if error.use_stderr() {
                GENERAL_FAILURE
            } else {
                0
            });
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli)),
        Err(error) => Err(Failure::general(format!("cannot start: {error}"))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::print_message(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

async fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let connection = &cli.connection;
    match cli.command {
        Command::Run(args) => run::run(*args, connection).await,
        Command::Hold(args) => commands::hold(args, connection).await,
        Command::Acquire(args) => commands::acquire(args, connection).await,
        Command::Renew(args) => commands::renew(args, connection).await,
        Command::Release(args) => commands::release(args, connection).await,
        Command::Ls(args) => commands::list(args, connection).await,
        Command::Get(args) => commands::get(args, connection).await,
        Command::Watch(args) => commands::watch(args, connection).await,
        Command::ForceRelease(args) => commands::force_release(args, connection).await,
        Command::Close(args) => commands::close(args, connection).await,
        Command::Reserve(args) => commands::reserve(args, connection).await,
        Command::Open(args) => commands::open(args, connection).await,
        Command::SetLimit(args) => commands::set_limit(args, connection).await,
        Command::CheckToken(args) => commands::check_token(args, connection).await,
        Command::Ping(args) => commands::ping(args, connection).await,
        Command::Version(args) => commands::version(args),
        Command::Completion { shell } => commands::completion(shell),
        Command::Guard(args) => run::supervise(args).await,
        Command::ExecChild(args) => run::exec_child(args),
    }
}
