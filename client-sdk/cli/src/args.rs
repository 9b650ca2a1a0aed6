//! Arguments of the command line, with their help texts.

use std::{
    ffi::OsString,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::exit;

/// Run commands under a lock, acquire and release locks, and inspect holders and queues
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, after_help = exit::TABLE)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while a lock is held; the command ends before another holder can have the lock
    #[command(after_help = exit::TABLE)]
    Run(Box<Run>),
    /// Hold a lock until Ctrl-C
    #[command(after_help = exit::TABLE)]
    Hold(Hold),
    /// Acquire a lock and print its lease, which expires unless `renew` is called in time
    #[command(after_help = exit::TABLE)]
    Acquire(Acquire),
    /// Extend a lease once
    #[command(after_help = exit::TABLE)]
    Renew(Renew),
    /// Release a lease; safe to repeat
    #[command(after_help = exit::TABLE)]
    Release(Release),
    /// List locks that are held, waited for or closed, or have a set limit
    Ls(Ls),
    /// Show the holders and the queue of one lock
    Get(Get),
    /// Print changes of locks as they happen, one line each
    Watch(Watch),
    /// Revoke a lease of another holder
    ForceRelease(ForceRelease),
    /// Close a lock: nothing new is granted until a time
    Close(Close),
    /// Close a lock, and wait until its holders have left
    Reserve(Reserve),
    /// Open a lock that is closed
    Open(Open),
    /// Set the limit of a semaphore, which callers then follow, or remove it
    SetLimit(SetLimit),
    /// Check whether a fencing token belongs to a live lease: exit code 0 or 123
    CheckToken(CheckToken),
    /// Check the health of every broker
    Ping(Ping),
    /// Print the versions of this program and of its API
    Version(Output),
    /// Print a completion script
    Completion {
        /// The shell that runs the script
        #[arg(value_enum)]
        shell: Shell,
    },
    /// End a command when its lock is no longer confirmed
    #[command(hide = true)]
    Guard(Guard),
    /// Become a command that ends with its supervisor
    #[command(hide = true)]
    ExecChild(ExecChild),
}

/// Connection to the broker. A flag overrides the environment, which overrides the context.
#[derive(Debug, Default, Args)]
pub(crate) struct ConnectionArgs {
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
    /// Namespace of the locks [default: default]
    #[arg(long, global = true, env = "LEASEHOLD_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// File with the bearer token; `run` and `hold` read it again when it changes
    #[arg(long, global = true, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send the bearer token unencrypted to other machines, on a network that is trusted itself
    #[arg(long, global = true, env = "LEASEHOLD_ALLOW_INSECURE_TOKEN")]
    pub(crate) allow_insecure_token: bool,
    /// Trusted certificate authorities, in PEM [default: the system trust store]
    #[arg(long, global = true, env = "LEASEHOLD_CA_FILE", value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// A client certificate, in PEM
    #[arg(long, global = true, env = "LEASEHOLD_CERT_FILE", value_name = "FILE")]
    pub(crate) cert_file: Option<PathBuf>,
    /// The key of the client certificate, in PEM
    #[arg(long, global = true, env = "LEASEHOLD_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print only errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The locks to acquire, with the options of the lease.
#[derive(Debug, Clone, Args)]
pub(crate) struct LockArgs {
    /// The lock
    pub(crate) name: String,
    /// Another lock, acquired together with the first: all or none (repeatable)
    #[arg(long = "lock", value_name = "NAME")]
    pub(crate) locks: Vec<String>,
    /// Share the lock with other shared holders
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Acquire N of the M permits of the lock
    #[arg(long, value_name = "N[/M]", value_parser = permits)]
    pub(crate) permits: Option<(u32, u32)>,
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Longest time to wait in the queue [default: no limit]
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// Validity of the lock after each heartbeat or renewal
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(crate) ttl: Duration,
    /// Longest hold, however often the lease is renewed
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_hold: Option<Duration>,
    /// Time for which the lock grants nothing after its lease has expired
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) lock_delay: Option<Duration>,
    /// Time after the grant until which the lock stays closed, however its lease ends, so that a job
    /// runs once a period. A job that died is not run again before, unless an operator opens the lock
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at_least: Option<Duration>,
    /// Owner of the lease, shown to other callers [default: user@host:pid]
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Reason, shown to other callers [default: of `run`, the name of the program without arguments]
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// A label for lists and logs (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Exit code if the lock is not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::NOT_OBTAINED)]
    pub(crate) busy_code: u8,
    /// Exit with code 0 and do nothing if the lock is not acquired
    #[arg(long, conflicts_with = "busy_code")]
    pub(crate) skip: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Time between SIGTERM and SIGKILL for the command if the lock is about to be lost; SIGKILL
    /// comes before the lock ends. At most a third of the TTL
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(crate) kill_after: Duration,
    /// The command, and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// File to write the lease to, which is a secret [default: stdout]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// File with the lease, replaced by the renewed lease [default: stdin and stdout]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
    /// New validity, from this renewal on
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// File with the lease [default: stdin]
    #[arg(long, env = "LEASEHOLD_LEASE_FILE", value_name = "FILE")]
    pub(crate) lease_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Prefix of the names
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Include all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Only locks that this owner holds or waits for
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// Output format
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
    /// Prefix of the names
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Include all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ForceRelease {
    /// A lock of the lease
    pub(crate) name: String,
    /// Id of the lease; another lease that holds the lock by now is not revoked
    pub(crate) lease_id: String,
    /// Reason, sent to the holder
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Ask the holder to release first, and stop renewing after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) grace: Option<Duration>,
    /// Free the lock at once, although the holder may still rely on it
    #[arg(long)]
    pub(crate) unsafe_now: bool,
    /// Only print what would happen
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("end").required(true).args(["closed_for", "until"]))]
pub(crate) struct Close {
    /// The lock, which need not have been used before
    pub(crate) name: String,
    /// Reason, shown to callers
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Time for which the lock is closed, at most 31 days
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(crate) closed_for: Option<Duration>,
    /// Moment until which the lock is closed, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub(crate) until: Option<SystemTime>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Reserve {
    /// The lock
    pub(crate) name: String,
    /// Reason, shown to callers
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Time for which the lock is closed after its last holder has left, at most 31 days
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(crate) closed_for: Duration,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Open {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct SetLimit {
    /// The semaphore, which need not have been used before
    pub(crate) name: String,
    /// Number of permits, 1 to 1000, or `none` to remove the limit: once the lock is idle, callers
    /// determine it again
    #[arg(value_parser = limit)]
    pub(crate) limit: Limit,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Limit of a semaphore, as set by `set-limit`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    Permits(i32),
    None,
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

/// Output format.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Output {
    /// Output format
    #[arg(short, long = "output", value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people
    Text,
    /// JSON as described in docs/cli.md
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// Text for people
    Text,
    /// Text with more columns
    Wide,
    /// JSON as described in docs/cli.md
    Json,
    /// Names only, one per line
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// Service name of the health check; probes use readiness and liveness
    #[arg(long, value_name = "NAME", default_value = "leasehold.v1.LockService")]
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// Time between SIGTERM and SIGKILL for the command, in milliseconds
    #[arg(long)]
    pub(crate) kill_after_ms: u64,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecChild {
    /// Process id of the supervisor
    #[arg(long)]
    pub(crate) guard: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text);
    time.map_err(|error| format!("{error}; expected a time such as 500ms, 10s or 5m"))
}

fn moment(text: &str) -> Result<SystemTime, String> {
    let moment = humantime::parse_rfc3339(text);
    moment.map_err(|error| format!("{error}; expected a moment such as 2026-12-24T18:00:00Z"))
}

fn limit(text: &str) -> Result<Limit, String> {
    match text.parse() {
        Ok(permits @ 1..=1_000) => Ok(Limit::Permits(permits)),
        _ if text == "none" => Ok(Limit::None),
        _ => Err("expected 1 to 1000, or `none`".to_owned()),
    }
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let (permits, limit) = text.split_once('/').unwrap_or((text, "0"));
    let parsed = permits.parse().ok().zip(limit.parse().ok());
    parsed.ok_or_else(|| "expected N or N/M, such as 2/10".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (key, value) = parts.ok_or("expected KEY=VALUE, such as team=billing")?;
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
