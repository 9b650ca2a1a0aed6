//! What a node is asked on the connection of its own looks, so that commands never stand behind it.

use fred::{
    error::Error,
    interfaces::KeysInterface as _,
    types::{Value, scan::ScanType},
};
use tokio::time::{Instant, sleep};

use super::{Node, Refusal, Then};
use crate::store::{
    StoreError,
    redis::{connection::plain, script::Script, scripts::Command},
};

impl Node {
    /// Looks for a list. Lists take turns, and after each look the server is left to others for as
    /// long as that took, however many lists there are.
    pub(in crate::store::redis) async fn in_turn<T>(&self, look: impl Future<Output = T>) -> T {
        let _turn = self.looking.lock().await;
        let start = Instant::now();
        let seen = look.await;
        sleep(start.elapsed()).await;
        seen
    }

    /// One step of SCAN over hashes: where to go on, 0 at the end, and keys.
    pub(in crate::store::redis) async fn scan(
        &self,
        at: u64,
        pattern: &str,
        count: u32,
    ) -> Result<(u64, Vec<Value>), StoreError> {
        self.lives()?;
        let (looks, hash) = (&self.verified.looks, Some(ScanType::Hash));
        let page = looks.scan_page(at.to_string(), pattern, Some(count), hash);
        let page: Result<(String, Vec<Value>), _> = page.await;
        let (next, keys) = page.map_err(|error| self.failed("scan", &error))?;
        match next.parse() {
            Ok(next) => Ok((next, keys)),
            Err(_) => Err(StoreError::Garbled("SCAN gives no cursor".to_owned())),
        }
    }

    /// Runs a script that only reads, several times at once: a result each, or fewer if the connection
    /// breaks.
    pub(in crate::store::redis) async fn run_all(
        &self,
        script: &Script,
        commands: &[Command],
    ) -> Result<Vec<Result<Value, Error>>, StoreError> {
        self.lives()?;
        let run = async || {
            let results = script.run_all(&self.verified.looks, commands.to_vec());
            results
                .await
                .map_err(|error| self.failed(script.name(), &error))
        };
        let reloads = self.reloads.load(std::sync::atomic::Ordering::Acquire);
        let results = run().await?;
        let is_unknown = |result: &Result<Value, Error>| {
            let error = result.as_ref().err();
            error.is_some_and(|error| Refusal::of(error).then == Then::Load)
        };
        if !results.iter().any(is_unknown) {
            return Ok(results);
        }
        let reloaded = self.reload_scripts(reloads).await;
        reloaded.map_err(|error| self.failed(script.name(), &error))?;
        run().await
    }

    /// What becomes of a look, and of the node, after an error.
    pub(in crate::store::redis) fn failed(&self, what: &str, error: &Error) -> StoreError {
        let refusal = Refusal::of(error);
        let text = format!("{what}: {}", plain(error));
        match refusal.then {
            Then::End | Then::Elsewhere => self.condemn(&refusal.why(&text)),
            Then::Load | Then::Keep | Then::Doubt => self.complain(refusal, &text, &|| Command {
                keys: Vec::new(),
                args: Vec::new(),
            }),
        }
        refusal.store_error(text)
    }

    fn lives(&self) -> Result<(), StoreError> {
        match self.why.get() {
            Some(why) => Err(StoreError::NotNow(why.clone())),
            None => Ok(()),
        }
    }
}
