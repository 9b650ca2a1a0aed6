//! A script, run by its digest.

use std::sync::OnceLock;

use fred::{
    bytes_utils::Str, clients::Client, error::Error, interfaces::LuaInterface as _, types::Value,
};

use super::scripts::Command;

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
