//! Which languages have a probe, and how it is started.

use std::{path::PathBuf, sync::LazyLock};

use tokio::process::Command;

use crate::setup::{folder_of, workspace};

/// A language with an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `client-sdk/rust/examples/probe.rs`.
    Rust,
    /// `client-sdk/python/examples/probe.py`.
    Python,
    /// `client-sdk/go/probe`.
    Go,
    /// `client-sdk/java/probe`.
    Java,
    /// `client-sdk/typescript/probe`.
    TypeScript,
}

/// Who plays a scenario.
#[derive(Debug, Clone, Copy)]
pub struct Cast {
    /// The one that it is about.
    pub one: Language,
    /// Whoever else holds locks or waits for them.
    pub other: Language,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Rust,
        Self::Python,
        Self::Go,
        Self::Java,
        Self::TypeScript,
    ];

    /// What starts its probe.
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

/// A program of the Python client's, with its sources.
#[must_use]
pub fn python_program(program: &str) -> Command {
    let sdk = workspace().join("client-sdk/python");
    let mut command = Command::new(PYTHON.join("bin/python"));
    command.arg(sdk.join(program));
    command.env("PYTHONPATH", sdk.join("src"));
    command
}

/// What a client's `build.sh` makes, started by the script beside it.
fn built_probe(sdk: &str) -> Command {
    Command::new(workspace().join("client-sdk").join(sdk).join("probe"))
}

/// The environment that the Python client's own tests have.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| folder_of("python"));

fn rust_probe() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let mut folders = test.ancestors();
    let probe = folders.find_map(|folder| {
        let probe = folder.join("examples/probe");
        probe.is_file().then_some(probe)
    });
    probe.expect("build the probe first: cargo build -p leasehold --examples")
}
