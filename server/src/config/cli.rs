//! Command-line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The Leasehold lock broker.
#[derive(Debug, Parser)]
#[command(name = "leasehold-server", version, about)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// A command of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a broker on an embedded store, which needs no Redis and keeps nothing on exit
    Dev(Flags),
    /// Run a broker
    Serve(Flags),
    /// Print every problem of the configuration; exit 0 if there is none, else 1
    CheckConfig(Check),
    /// Print the JSON Schema of the configuration file
    ConfigSchema,
    /// Write the first era into a new, empty store, so that grants begin at once
    InitStore(Flags),
}

/// Arguments of `check-config`.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration to check.
    #[command(flatten)]
    pub flags: Flags,
    /// Also connect to the store and check it
    #[arg(long)]
    pub connect: bool,
    /// Print the configuration in effect, as TOML, with the source of each setting
    #[arg(long)]
    pub show: bool,
}

/// Flags shared by all commands. They override the environment (`LEASEHOLD__SECTION__KEY`), which
/// overrides the file.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// The configuration file, in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the API, such as 127.0.0.1:7070; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address of health and the admin service, such as 127.0.0.1:7071
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// URL of the store: memory, or redis://user:password@host:port/db
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Prefix of all keys in the store
    #[arg(long, value_name = "PREFIX")]
    pub key_prefix: Option<String>,
    /// Longest validity of a lease, such as 60s
    #[arg(long, value_name = "TIME")]
    pub ttl_max: Option<String>,
    /// Grant at once in a store without an era, although it may have lost leases that are valid
    #[arg(long)]
    pub trust_empty_store: bool,
    /// Wait for a store that cannot be reached yet, instead of exiting
    #[arg(long)]
    pub wait_for_store: bool,
    /// Run on a Redis that may lose locks because it evicts keys, is too old, or is a replica
    #[arg(long)]
    pub allow_unsafe_redis: bool,
    /// Serve without TLS on addresses that other machines can reach
    #[arg(long)]
    pub insecure: bool,
    /// Filter of the log on stderr, such as info or leasehold_server=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

impl Cli {
    /// Parses the arguments of this process. If they are invalid, prints a usage text and exits.
    pub fn from_process_arguments() -> Self {
        Self::parse()
    }
}

impl Flags {
    /// Returns key, value and flag name of each flag that was given.
    pub(super) fn set_flags(&self) -> Vec<(&'static str, String, &'static str)> {
        let text = [
            ("server.listen", &self.listen, "--listen"),
            ("server.admin_listen", &self.admin_listen, "--admin-listen"),
            ("store.url", &self.store, "--store"),
            ("store.key_prefix", &self.key_prefix, "--key-prefix"),
            ("limits.ttl_max", &self.ttl_max, "--ttl-max"),
            ("log.filter", &self.log, "--log"),
        ];
        let switches = [
            ("server.insecure", self.insecure, "--insecure"),
            (
                "store.trust_empty_store",
                self.trust_empty_store,
                "--trust-empty-store",
            ),
            (
                "store.wait_for_store",
                self.wait_for_store,
                "--wait-for-store",
            ),
            (
                "store.allow_unsafe_redis",
                self.allow_unsafe_redis,
                "--allow-unsafe-redis",
            ),
        ];
        let text = text
            .into_iter()
            .filter_map(|(key, value, flag)| Some((key, value.clone()?, flag)));
        let switches = switches
            .into_iter()
            .filter(|(_, is_given, _)| *is_given)
            .map(|(key, _, flag)| (key, "true".to_owned(), flag));
        text.chain(switches).collect()
    }
}
