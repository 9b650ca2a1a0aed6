//! Runs a script by its digest, and says what its failures mean.

use std::sync::OnceLock;

use fred::{
    bytes_utils::Str,
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::LuaInterface as _,
    types::Value,
};

use super::{connection::plain, scripts::Command};
use crate::store::StoreError;

/// A script. Servers name its SHA-1 when it is loaded.
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    text: String,
    sha: OnceLock<Str>,
}

impl Script {
    /// `name` is for messages.
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            text: text.into(),
            sha: OnceLock::new(),
        }
    }

    /// For messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) async fn load(&self, client: &Client) -> Result<(), Error> {
        let sha: Str = client.script_load(self.text.as_str()).await?;
        self.sha.get_or_init(|| sha);
        Ok(())
    }

    /// EVALSHA; the error is the server's.
    pub(super) async fn run(&self, client: &Client, command: Command) -> Result<Value, Error> {
        if self.sha.get().is_none() {
            self.load(client).await?;
        }
        let sha = self.sha.get().cloned().unwrap_or_default();
        client.evalsha(sha, command.keys, command.args).await
    }
}

/// Whether the server has forgotten its scripts; the command was not executed.
pub(super) fn is_noscript(error: &Error) -> bool {
    error.details().starts_with("NOSCRIPT")
}

/// Whether the server can't be the one that was verified, or is out of reach.
pub(super) fn condemns(error: &Error) -> bool {
    let role = ["READONLY", "MASTERDOWN"];
    matches!(error.kind(), ErrorKind::IO) || role.iter().any(|r| error.details().starts_with(r))
}

/// Whether the server lives and only has no time: a long script runs.
pub(super) fn is_busy(error: &Error) -> bool {
    error.details().starts_with("BUSY ")
}

/// What a caller of the store is told.
pub(super) fn store_error(name: &str, error: &Error) -> StoreError {
    let text = format!("{name}: {}", plain(error));
    if error.details().starts_with("WRONGTYPE") {
        StoreError::Corrupt(text)
    } else {
        StoreError::Unavailable(text)
    }
}
