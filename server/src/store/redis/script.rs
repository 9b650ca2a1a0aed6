//! A script, run by its digest.

use std::sync::OnceLock;

use fred::{
    bytes_utils::Str,
    clients::{Client, Pipeline},
    error::{Error, ErrorKind},
    interfaces::{ClientLike as _, LuaInterface as _},
    types::{CustomCommand, Value},
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
        let sha = self.digest(client).await?;
        client.evalsha(sha, command.keys, command.args).await
    }

    /// `run` on a server to which the lock's slot is on its way.
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

    /// `run` of several at once: a result each, or fewer if the connection breaks.
    pub(super) async fn run_all(
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

    async fn digest(&self, client: &Client) -> Result<Str, Error> {
        if self.sha.get().is_none() {
            self.load(client).await?;
        }
        Ok(self.sha.get().cloned().unwrap_or_default())
    }
}

/// fred has no EVALSHA in pipelines.
async fn queue(pipeline: &Pipeline<Client>, sha: Str, command: Command) -> Result<(), Error> {
    let evalsha = CustomCommand::new_static("EVALSHA", None::<u16>, false);
    let mut args = vec![Value::String(sha), command.keys.len().to_string().into()];
    args.extend(command.keys.into_iter().map(Value::from));
    args.extend(command.args);
    pipeline.custom(evalsha, args).await
}
