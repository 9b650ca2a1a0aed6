//! A Lua script, which is run by its digest.

use std::sync::OnceLock;

use fred::{
    bytes_utils::Str,
    clients::{Client, Pipeline},
    error::{Error, ErrorKind},
    interfaces::{ClientLike as _, LuaInterface as _},
    types::{CustomCommand, Value},
};

use super::scripts::Command;

/// A Lua script. Servers return its SHA-1 when they load it.
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    text: String,
    /// True if the script can run for several locks at once (run.lua).
    pub(super) accepts_batches: bool,
    pub(super) priority: RunPriority,
    sha: OnceLock<Str>,
}

/// Order in which the waiting calls of an overloaded server run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPriority {
    /// Before all other calls: renewals, whose number is limited by that of the leases.
    First,
    Normal,
}

impl Script {
    /// Creates a script. Its `name` appears in messages.
    pub fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            text: text.into(),
            accepts_batches: false,
            priority: RunPriority::Normal,
            sha: OnceLock::new(),
        }
    }

    /// Marks the script as one that can run for several locks at once (run.lua).
    #[must_use]
    pub(super) fn for_several_locks(self) -> Self {
        Self {
            accepts_batches: true,
            ..self
        }
    }

    /// Makes the waiting calls of this script run before those of other scripts.
    #[must_use]
    pub(super) fn before_others(self) -> Self {
        Self {
            priority: RunPriority::First,
            ..self
        }
    }

    /// Returns the text that servers load.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the name of the script, for messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) async fn load(&self, client: &Client) -> Result<(), Error> {
        let sha: Str = client.script_load(self.text.as_str()).await?;
        self.sha.get_or_init(|| sha);
        Ok(())
    }

    /// Runs EVALSHA. The error is the server's.
    pub(super) async fn run(&self, client: &Client, command: Command) -> Result<Value, Error> {
        let sha = self.digest(client).await?;
        evalsha(client, sha, command).await
    }

    /// Runs the script like `run`, on a server to which the lock's slot is moving.
    pub(super) async fn run_asking(
        &self,
        client: &Client,
        command: Command,
    ) -> Result<Value, Error> {
        let sha = self.digest(client).await?;
        let pipeline = client.pipeline();
        let asking = CustomCommand::new_static("ASKING", None::<u16>, false);
        let _: () = pipeline.custom(asking, Vec::<Value>::new()).await?;
        queue(&pipeline, sha, command).await?;
        let replies = pipeline.try_all::<Value>().await;
        let mut last = Err(Error::new(ErrorKind::Canceled, "no reply"));
        for reply in replies {
            last = Ok(reply?);
        }
        last
    }

    /// Runs several commands in one pipeline. Returns a result for each, or fewer if the connection
    /// breaks.
    pub(super) async fn run_pipelined(
        &self,
        client: &Client,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        let sha = self.digest(client).await?;
        let pipeline = client.pipeline();
        for command in commands {
            queue(&pipeline, sha.clone(), command).await?;
        }
        Ok(pipeline.try_all().await)
    }

    /// Returns the digest. Loads the script if it was never loaded.
    pub(super) async fn digest(&self, client: &Client) -> Result<Str, Error> {
        if self.sha.get().is_none() {
            Box::pin(self.load(client)).await?;
        }
        Ok(self.sha.get().cloned().unwrap_or_default())
    }
}

/// Runs EVALSHA. The future is boxed because fred's future has 7 KB, which every future around it
/// would contain and copy.
pub(super) fn evalsha(
    client: &Client,
    sha: Str,
    Command { keys, args }: Command,
) -> impl Future<Output = Result<Value, Error>> {
    Box::pin(client.evalsha(sha, keys, args))
}

/// Adds an EVALSHA to a pipeline. It is a custom command because fred has none in pipelines.
async fn queue(pipeline: &Pipeline<Client>, sha: Str, command: Command) -> Result<(), Error> {
    let evalsha = CustomCommand::new_static("EVALSHA", None::<u16>, false);
    let mut args = vec![Value::String(sha), command.keys.len().to_string().into()];
    args.extend(command.keys.into_iter().map(Value::from));
    args.extend(command.args);
    pipeline.custom(evalsha, args).await
}
