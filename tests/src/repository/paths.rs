//! Paths of the repository and of the tools that its setup scripts install.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the root folder of the repository.
#[must_use]
pub fn repository_root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("it lies in the workspace")
}

/// Returns the folder of a tool according to `scripts/setup.sh`. A missing tool fails the test.
#[must_use]
pub fn tool_folder(tool: &str) -> PathBuf {
    self::tool_path("scripts/setup.sh", tool)
}

/// Returns the path of a tool according to a setup script. A missing tool fails the test.
#[must_use]
pub fn tool_path(script: &str, tool: &str) -> PathBuf {
    let mut script = Command::new(repository_root().join(script));
    let output = script.arg(tool).output().expect("a script that runs");
    let missing = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{missing}");
    let path = String::from_utf8(output.stdout).expect("a path");
    path.trim().into()
}
