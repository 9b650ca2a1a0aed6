//! Order of the masters in a listing of all locks.

use tokio::time::Instant;

use super::Router;
use crate::store::{StoreError, redis::list::ListedServer};

impl Router {
    /// Returns the first master, in the order of their first slots, whose first slot is at least
    /// `from`. Returns `None` after the last master.
    pub(in crate::store::redis) async fn listed_server(
        &self,
        from: u16,
        until: Instant,
    ) -> Result<Option<ListedServer>, StoreError> {
        let masters = self.map.borrow().by_first_slot();
        if masters.is_empty() {
            return Err(StoreError::NotExecuted("no master has slots".to_owned()));
        }
        let mut masters = masters.into_iter().filter(|(slot, _)| *slot >= from);
        let Some((server, address)) = masters.next() else {
            return Ok(None);
        };
        let remaining = until.saturating_duration_since(Instant::now());
        Ok(Some(ListedServer {
            server,
            next: masters.next().map(|(slot, _)| slot),
            node: self.supervisor(&address).node(remaining).await,
            name: Some(format!("Redis at {address}")),
        }))
    }
}
