//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The Leasehold lock broker.
#[derive(Debug, Parser)]
#[command(name = "leasehold-server", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a broker on an embedded store: nothing else is needed, and nothing outlives it
    Dev(Flags),
    /// Run a broker
    Serve(Flags),
    /// Print every problem of the configuration; exit 0 if there is none, else 1
    CheckConfig(Check),
    /// Print the JSON Schema of the file
    ConfigSchema,
    /// Write the first era into a new, empty store, so that grants begin at once
    InitStore(Flags),
}

/// What `check-config` takes.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration to check.
    #[command(flatten)]
    pub flags: Flags,
    /// Check the store itself, too
    #[arg(long)]
    pub connect: bool,
    /// Print the configuration in effect, as TOML, each key with where it is from
    #[arg(long)]
    pub show: bool,
}

/// Flags shared by all commands. They win over the environment (`LEASEHOLD__SECTION__KEY`), which
/// wins over the file.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// A TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the API, such as 127.0.0.1:7070; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address of health and the admin service, such as 127.0.0.1:7071
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// Where locks are kept: memory, or redis://user:password@host:port/db
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// What the keys in the store begin with
    #[arg(long, value_name = "PREFIX")]
    pub key_prefix: Option<String>,
    /// The longest validity of a lease, such as 60s
    #[arg(long, value_name = "TIME")]
    pub ttl_max: Option<String>,
    /// Grant at once in a store without an era: it may have lost leases that are still trusted
    #[arg(long)]
    pub trust_empty_store: bool,
    /// Wait for a store that cannot be reached yet, instead of exiting
    #[arg(long)]
    pub wait_for_store: bool,
    /// Run on a Redis that may lose locks: evicting, too old, or a replica
    #[arg(long)]
    pub allow_unsafe_redis: bool,
    /// Serve without TLS where others than this machine can connect
    #[arg(long)]
    pub insecure: bool,
    /// What to log to stderr, such as info or leasehold_server=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

impl Cli {
    /// The arguments of this process. Wrong ones end it with a usage text.
    pub fn of_process() -> Self {
        Self::parse()
    }
}

impl Flags {
    /// Key, value and name of each flag that was given.
    pub(super) fn given(&self) -> Vec<(&'static str, String, &'static str)> {
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
            .filter(|(_, given, _)| *given)
            .map(|(key, _, flag)| (key, "true".to_owned(), flag));
        text.chain(switches).collect()
    }
}
