//! Which languages have a probe, and how it is started.

use std::{
    path::{Path, PathBuf},
    process,
    sync::LazyLock,
};

use tokio::process::Command;

/// A language with an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `client-sdk/rust/examples/probe.rs`.
    Rust,
    /// `client-sdk/python/examples/probe.py`.
    Python,
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
    /// What starts its probe.
    #[must_use]
    pub fn command(self) -> Command {
        match self {
            Self::Rust => Command::new(rust_probe()),
            Self::Python => python_program("examples/probe.py"),
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

/// The environment that the Python client's own tests have.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut script = process::Command::new(workspace().join("scripts/setup.sh"));
    let output = script.arg("python").output().expect("a script that runs");
    let missing = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{missing}");
    let path = String::from_utf8(output.stdout).expect("a path");
    path.trim().into()
});

fn workspace() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("it lies in the workspace")
}

fn rust_probe() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let mut folders = test.ancestors();
    let probe = folders.find_map(|folder| {
        let probe = folder.join("examples/probe");
        probe.is_file().then_some(probe)
    });
    probe.expect("build the probe first: cargo build -p leasehold --examples")
}
