//! A configuration in files, and what `leasehold-server` says of it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::{binary::leasehold_server, temp_dir::TempDir};

const LIMIT: Duration = Duration::from_secs(30);

/// The configuration file, and the files that it names.
#[derive(Debug)]
pub struct Configuration {
    dir: TempDir,
}

/// How a command ended and what it printed, with `{dir}` for the configuration's directory.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    /// Its exit code.
    pub code: Option<i32>,
    /// On stdout.
    pub told: String,
    /// On stderr, by lines.
    pub problems: Vec<String>,
}

impl Configuration {
    /// With this text, in which `{dir}` stands for the directory.
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
            Ok(text) => self.there(text).into_bytes(),
            Err(_) => bytes.to_owned(),
        };
        fs::write(&path, text).expect("write a file");
        self.set_mode(name, 0o600);
    }

    /// Who may read a file.
    pub fn set_mode(&self, name: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.dir.path().join(name), mode).expect("a file of its own");
    }

    /// Where all files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("leasehold.toml")
    }

    /// What a command says that is given the file.
    pub async fn said(&self, verb: &str, env: &[(&str, &str)], args: &[&str]) -> Said {
        let mut command = Command::new(leasehold_server());
        command.arg(verb);
        if !args.contains(&"--config") {
            command.arg("--config").arg(self.file());
        }
        command.args(args.iter().map(|arg| self.there(arg)));
        command.envs(env.iter().map(|(name, value)| (name, self.there(value))));
        let output = timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let output = output.expect("it ends by itself").expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Said {
            code: output.status.code(),
            told: self.here(&text(output.stdout)),
            problems: self
                .here(&text(output.stderr))
                .lines()
                .map(str::to_owned)
                .collect(),
        }
    }

    fn there(&self, text: &str) -> String {
        text.replace("{dir}", &self.dir.path().display().to_string())
    }

    fn here(&self, text: &str) -> String {
        text.replace(&self.dir.path().display().to_string(), "{dir}")
    }
}
