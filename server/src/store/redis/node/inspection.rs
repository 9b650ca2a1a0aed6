//! Reads for listings and health checks, on a connection of their own so that commands never wait
//! behind them.

use fred::{
    error::Error,
    interfaces::KeysInterface as _,
    types::{Value, scan::ScanType},
};
use tokio::time::{Instant, sleep};

use super::{ErrorClass, Node, NodeAction};
use crate::store::{
    StoreError,
    redis::{connection::plain_message, script::Script, scripts::Command},
};

impl Node {
    /// Runs a query of a listing. Listings run one query at a time. After each query the server is
    /// left to other commands for as long as the query took, however many listings there are.
    pub(in crate::store::redis) async fn throttled<T>(&self, query: impl Future<Output = T>) -> T {
        let _permit = self.list_permit.lock().await;
        let start = Instant::now();
        let result = query.await;
        sleep(start.elapsed()).await;
        result
    }

    /// Runs one step of SCAN over hashes. Returns the next cursor, which is 0 at the end, and keys.
    pub(in crate::store::redis) async fn scan(
        &self,
        at: u64,
        pattern: &str,
        count: u32,
    ) -> Result<(u64, Vec<Value>), StoreError> {
        self.ensure_alive()?;
        let (client, hash) = (&self.verified.inspect_client, Some(ScanType::Hash));
        let page = client.scan_page(at.to_string(), pattern, Some(count), hash);
        let page: Result<(String, Vec<Value>), _> = page.await;
        let (next, keys) = page.map_err(|error| self.handle_error("scan", &error))?;
        match next.parse() {
            Ok(next) => Ok((next, keys)),
            Err(_) => Err(StoreError::InvalidReply(
                "SCAN returned no cursor".to_owned(),
            )),
        }
    }

    /// Runs a read-only script for several commands in one pipeline. Returns a result for each, or
    /// fewer if the connection breaks.
    pub(in crate::store::redis) async fn run_all(
        &self,
        script: &Script,
        commands: &[Command],
    ) -> Result<Vec<Result<Value, Error>>, StoreError> {
        self.ensure_alive()?;
        let run = async || {
            let results = script.run_pipelined(&self.verified.inspect_client, commands.to_vec());
            results
                .await
                .map_err(|error| self.handle_error(script.name(), &error))
        };
        let reloads = self.reloads.load(std::sync::atomic::Ordering::Acquire);
        let results = run().await?;
        let is_unknown = |result: &Result<Value, Error>| {
            let error = result.as_ref().err();
            error.is_some_and(|error| {
                ErrorClass::classify(error).action == NodeAction::ReloadScripts
            })
        };
        if !results.iter().any(is_unknown) {
            return Ok(results);
        }
        let reloaded = self.reload_scripts(reloads).await;
        reloaded.map_err(|error| self.handle_error(script.name(), &error))?;
        run().await
    }

    /// Handles an error of a query: closes the node or logs the error, and returns the error for
    /// the caller.
    pub(in crate::store::redis) fn handle_error(
        &self,
        operation: &str,
        error: &Error,
    ) -> StoreError {
        let class = ErrorClass::classify(error);
        let text = format!("{operation}: {}", plain_message(error));
        match class.action {
            NodeAction::Close | NodeAction::Redirect => self.fail(&class.description(&text)),
            NodeAction::ReloadScripts | NodeAction::Keep | NodeAction::ProbeDecides => {
                self.log_error(class, &text, "");
            }
        }
        class.store_error(text)
    }

    fn ensure_alive(&self) -> Result<(), StoreError> {
        match self.end_reason.get() {
            Some(reason) => Err(StoreError::NotExecuted(reason.clone())),
            None => Ok(()),
        }
    }
}
