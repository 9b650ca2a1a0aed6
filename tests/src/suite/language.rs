//! Languages with a probe, and the commands that start the probes.

use std::{path::PathBuf, sync::LazyLock};

use tokio::process::Command;

use crate::repository::paths::{repository_root, tool_folder};

/// A language with an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Its probe is `client-sdk/rust/examples/probe.rs`.
    Rust,
    /// Its probe is `client-sdk/python/examples/probe.py`.
    Python,
    /// Its probe is `client-sdk/go/probe`.
    Go,
    /// Its probe is `client-sdk/java/probe`.
    Java,
    /// Its probe is `client-sdk/typescript/probe`.
    TypeScript,
}

/// The languages of the probes of a scenario.
#[derive(Debug, Clone, Copy)]
pub struct Cast {
    /// Language of the probe under test.
    pub one: Language,
    /// Language of the other probes, which hold locks or wait for them.
    pub other: Language,
}

impl Language {
    pub const ALL: [Self; 5] = [
        Self::Rust,
        Self::Python,
        Self::Go,
        Self::Java,
        Self::TypeScript,
    ];

    /// Returns the command that starts the probe of the language.
    #[must_use]
    pub fn command(self) -> Command {
        match self {
            Self::Rust => Command::new(rust_probe()),
            Self::Python => python_program("examples/probe.py"),
            Self::Go => built_probe("go"),
            Self::Java => built_probe("java"),
            Self::TypeScript => built_probe("typescript"),
        }
    }
}

/// Returns the command that starts a program of the Python client from its sources.
#[must_use]
pub fn python_program(program: &str) -> Command {
    let sdk = repository_root().join("client-sdk/python");
    let mut command = Command::new(PYTHON_ENVIRONMENT.join("bin/python"));
    command.arg(sdk.join(program));
    command.env("PYTHONPATH", sdk.join("src"));
    command
}

/// Returns the command of the script beside a client's `build.sh`, which starts the built probe.
fn built_probe(sdk: &str) -> Command {
    Command::new(repository_root().join("client-sdk").join(sdk).join("probe"))
}

/// Folder of the virtual environment of the Python client's own tests.
static PYTHON_ENVIRONMENT: LazyLock<PathBuf> = LazyLock::new(|| tool_folder("python"));

fn rust_probe() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let mut folders = test.ancestors();
    let probe = folders.find_map(|folder| {
        let probe = folder.join("examples/probe");
        probe.is_file().then_some(probe)
    });
    probe.expect("build the probe first: cargo build -p leasehold --examples")
}
