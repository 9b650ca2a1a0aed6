//! A configuration in files, and the output of `leasehold-server` for it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::process::{binaries::leasehold_server, temp_dir::TempDir};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration file, and the files that it names.
#[derive(Debug)]
pub struct Configuration {
    dir: TempDir,
}

/// Result of a command. The output has `{dir}` for the configuration's directory.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerOutput {
    pub code: Option<i32>,
    /// Text on stdout.
    pub stdout: String,
    /// Lines on stderr.
    pub stderr_lines: Vec<String>,
}

impl Configuration {
    /// Creates a configuration file with this text, in which `{dir}` stands for the directory.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let dir = TempDir::new("configuration");
        let configuration = Self { dir };
        configuration.write("leasehold.toml", text.as_bytes());
        configuration
    }

    /// Writes a file that only its owner may read.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.dir.path().join(name);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => self.expand_dir(text).into_bytes(),
            Err(_) => bytes.to_owned(),
        };
        fs::write(&path, text).expect("write a file");
        self.set_mode(name, 0o600);
    }

    /// Sets the permissions of a file.
    pub fn set_mode(&self, name: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.dir.path().join(name), mode).expect("a file of its own");
    }

    /// Returns the directory of all files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("leasehold.toml")
    }

    /// Runs a command with the configuration file, and returns its result.
    pub async fn run(&self, verb: &str, env: &[(&str, &str)], args: &[&str]) -> ServerOutput {
        let mut command = Command::new(leasehold_server());
        command.arg(verb);
        if !args.contains(&"--config") {
            command.arg("--config").arg(self.file());
        }
        command.args(args.iter().map(|arg| self.expand_dir(arg)));
        command.envs(
            env.iter()
                .map(|(name, value)| (name, self.expand_dir(value))),
        );
        let output = timeout(TIMEOUT, command.kill_on_drop(true).output()).await;
        let output = output.expect("it ends by itself").expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        ServerOutput {
            code: output.status.code(),
            stdout: self.abbreviate_dir(&text(output.stdout)),
            stderr_lines: self
                .abbreviate_dir(&text(output.stderr))
                .lines()
                .map(str::to_owned)
                .collect(),
        }
    }

    fn expand_dir(&self, text: &str) -> String {
        text.replace("{dir}", &self.dir.path().display().to_string())
    }

    fn abbreviate_dir(&self, text: &str) -> String {
        text.replace(&self.dir.path().display().to_string(), "{dir}")
    }
}
