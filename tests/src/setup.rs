//! Where the project lies, and where its set-up has put the tools that tests need.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The folder of the whole project.
#[must_use]
pub fn workspace() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("it lies in the workspace")
}

/// The folder of a tool, as `scripts/setup.sh` names it. One that is missing fails the test.
#[must_use]
pub fn folder_of(tool: &str) -> PathBuf {
    self::tool("scripts/setup.sh", tool)
}

/// What a script of the set-up names so. What is missing fails the test.
#[must_use]
pub fn tool(script: &str, tool: &str) -> PathBuf {
    let mut script = Command::new(workspace().join(script));
    let output = script.arg(tool).output().expect("a script that runs");
    let missing = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{missing}");
    let path = String::from_utf8(output.stdout).expect("a path");
    path.trim().into()
}
