//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::exit;

/// Run commands under a lock, take and give back locks, and look at who has them
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, after_help = exit::TABLE)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) reach: Reach,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while a lock is held; it is ended before the lock can go to another
    #[command(after_help = exit::TABLE)]
    Run(Box<Run>),
    /// Hold a lock until Ctrl-C
    #[command(after_help = exit::TABLE)]
    Hold(Hold),
    /// Take a lock and print its lease; it ends by itself unless `renew` is called in time
    #[command(after_help = exit::TABLE)]
    Acquire(Acquire),
    /// Extend a lease once
    #[command(after_help = exit::TABLE)]
    Renew(Renew),
    /// Give a lease back; safe to repeat
    #[command(after_help = exit::TABLE)]
    Release(Release),
    /// List locks that are held or waited for
    Ls(Ls),
    /// Show one lock: who holds it, and who waits, in order
    Get(Get),
    /// Print changes as they happen, one line each
    Watch(Watch),
    /// Take a lease away from its holder
    ForceRelease(ForceRelease),
    /// Tell whether a fencing token belongs to a live lease: exit 0 or 123
    CheckToken(CheckToken),
    /// Ask every broker whether it serves
    Ping(Ping),
    /// Print the versions of this program and of the API that it speaks
    Version(Output),
    /// Print a completion script
    Completion {
        /// For which shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Ends a command when nobody vouches for its lock any more
    #[command(hide = true)]
    Guard(Guard),
    /// Becomes a command that dies with its guard
    #[command(hide = true)]
    ExecChild(ExecChild),
}

/// How to reach the broker. A flag wins over the environment, that over the context.
#[derive(Debug, Default, Args)]
pub(crate) struct Reach {
    /// Brokers, separated by commas [default: http://127.0.0.1:7070]
    #[arg(long, global = true, env = "LEASEHOLD_ENDPOINT", value_name = "URLS")]
    pub(crate) endpoint: Option<String>,
    /// The admin port of a broker [default: http://127.0.0.1:7071]
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_ADMIN_ENDPOINT",
        value_name = "URL"
    )]
    pub(crate) admin_endpoint: Option<String>,
    /// A context of the configuration file
    #[arg(long, global = true, env = "LEASEHOLD_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The configuration file [default: ~/.config/leasehold/config.toml]
    #[arg(long, global = true, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Whose locks [default: default]
    #[arg(long, global = true, env = "LEASEHOLD_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// A file with the bearer token; `run` and `hold` go on with the next one that it gets
    #[arg(long, global = true, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send the bearer token unencrypted to other machines, where the network itself is trusted
    #[arg(long, global = true, env = "LEASEHOLD_ALLOW_INSECURE_TOKEN")]
    pub(crate) allow_insecure_token: bool,
    /// Certificates of whom to trust, in PEM [default: whom the machine trusts]
    #[arg(long, global = true, env = "LEASEHOLD_CA_FILE", value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// A client certificate, in PEM
    #[arg(long, global = true, env = "LEASEHOLD_CERT_FILE", value_name = "FILE")]
    pub(crate) cert_file: Option<PathBuf>,
    /// The key of the client certificate, in PEM
    #[arg(long, global = true, env = "LEASEHOLD_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// What to take, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct Take {
    /// The lock
    pub(crate) name: String,
    /// One more lock, taken together with the first: all or none (repeatable)
    #[arg(long = "lock", value_name = "NAME")]
    pub(crate) locks: Vec<String>,
    /// Share the lock with others that share it
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Take N of the M permits that the lock has
    #[arg(long, value_name = "N[/M]", value_parser = permits)]
    pub(crate) permits: Option<(u32, u32)>,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// How long to wait in line [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// How long the lock can be trusted after each sign of life
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(crate) ttl: Duration,
    /// The longest hold in all
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock closed for so long if its holder vanishes
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) lock_delay: Option<Duration>,
    /// Who takes it, for whoever finds it held [default: user@host:pid]
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Why; others see it [default: of `run`: the name of the program, without its arguments]
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// A label for lists and logs (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// The exit code when the lock is not obtained
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::NOT_OBTAINED)]
    pub(crate) busy_code: u8,
    /// Succeed without doing anything when the lock is not obtained
    #[arg(long, conflicts_with = "busy_code")]
    pub(crate) skip: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) take: Take,
    /// When the lock is about to be lost, how long before its end the command is asked to end; at its
    /// end it is killed. At most a third of the ttl
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(crate) kill_after: Duration,
    /// The command, and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) take: Take,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) take: Take,
    /// Where to write the lease, which is a secret [default: stdout]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// Where the lease is, and where the renewed one is written [default: stdin and stdout]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
    /// Another validity from now on
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// Where the lease is [default: stdin]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that start so
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Only what this owner holds or waits for
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = ListFormat::Text)]
    pub(crate) output: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only names that start so
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ForceRelease {
    /// A lock of the lease
    pub(crate) name: String,
    /// Which lease: never whoever holds the lock now
    pub(crate) lease_id: String,
    /// Why; told to the holder
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Ask the holder first, and stop renewing after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) grace: Option<Duration>,
    /// Free the lock at once, although the holder may still trust it
    #[arg(long)]
    pub(crate) unsafe_now: bool,
    /// Only tell what would happen
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct CheckToken {
    /// The lock
    pub(crate) name: String,
    /// The fencing token
    pub(crate) token: i64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Output {
    /// How to print
    #[arg(short, long = "output", value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// As docs/cli.md says
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people
    Text,
    /// The same with more columns
    Wide,
    /// As docs/cli.md says
    Json,
    /// Names alone, one a line
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// What to ask for, as probes do: readiness, or liveness
    #[arg(long, value_name = "NAME", default_value = "leasehold.v1.LockService")]
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// How long a command has between being asked to end and being killed, in milliseconds.
    #[arg(long)]
    pub(crate) kill_after_ms: u64,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecChild {
    /// The process id of the guard.
    #[arg(long)]
    pub(crate) guard: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text);
    time.map_err(|error| format!("{error}; write a time as in 500ms, 10s or 5m"))
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let (permits, limit) = text.split_once('/').unwrap_or((text, "0"));
    let parsed = permits.parse().ok().zip(limit.parse().ok());
    parsed.ok_or_else(|| "write how many of how many, as in 2/10".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (key, value) = parts.ok_or("write a label as in team=billing")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
