//! Whose turn it is in a list of the locks of all masters.

use tokio::time::Instant;

use super::Router;
use crate::store::{StoreError, redis::list::Turn};

impl Router {
    /// The first master, in the order of their first slots, that has none before `from`; `None` behind
    /// the last one.
    pub(in crate::store::redis) async fn turn(
        &self,
        from: u16,
        until: Instant,
    ) -> Result<Option<Turn>, StoreError> {
        let masters = self.map.borrow().by_first_slot();
        if masters.is_empty() {
            return Err(StoreError::NotNow("no master has slots".to_owned()));
        }
        let mut masters = masters.into_iter().filter(|(slot, _)| *slot >= from);
        let Some((server, address)) = masters.next() else {
            return Ok(None);
        };
        let left = until.saturating_duration_since(Instant::now());
        Ok(Some(Turn {
            server,
            next: masters.next().map(|(slot, _)| slot),
            node: self.supervisor(&address).node(left).await,
            name: Some(format!("Redis at {address}")),
        }))
    }
}
