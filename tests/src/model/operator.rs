//! Actions of an operator. Their commands are neither lost nor late.

use leasehold_server::lock::{CloseCommand, Owner, RevokeCommand, RevokeMode};

use super::{
    broker::ModelBroker,
    keys::{CallKey, LockIndex, MessageKey, TaskKey, lock_key},
    store::ModelStep,
    world::World,
};
use crate::differential::steps::StoreCommand;

impl World {
    pub(super) fn set_limit(
        &mut self,
        lock: LockIndex,
        limit: Option<u32>,
    ) -> Result<bool, String> {
        self.operate(lock, StoreCommand::SetLimit(limit))
    }

    pub(super) fn revoke(
        &mut self,
        lock: LockIndex,
        lease: CallKey,
        mode: RevokeMode,
    ) -> Result<bool, String> {
        self.observe_revocation(lock, lease, mode);
        let command = RevokeCommand {
            lock: lock_key(lock),
            lease_id: lease.lease_id(),
            reason: "maintenance".to_owned(),
            grace_ms: 0,
            lock_delay_ms: None,
            mode,
        };
        self.operate(lock, StoreCommand::Revoke(command))
    }

    pub(super) fn close(&mut self, lock: LockIndex, for_ms: u32) -> Result<bool, String> {
        let command = CloseCommand {
            lock: lock_key(lock),
            until_ms: self.now_us / 1_000 + u64::from(for_ms),
            operator: Owner::default(),
        };
        self.operate(lock, StoreCommand::Close(command))
    }

    pub(super) fn open(&mut self, lock: LockIndex) -> Result<bool, String> {
        self.operate(lock, StoreCommand::Open)
    }

    fn operate(&mut self, lock: LockIndex, command: StoreCommand) -> Result<bool, String> {
        let ModelBroker { process, era, .. } = self.brokers[0];
        let step = ModelStep {
            now_us: self.now_us,
            lock,
            broker: process.id(),
            not_after_ms: u64::MAX,
            era,
            command,
        };
        let message = MessageKey {
            task: TaskKey::Touch(process, lock),
            number: 0,
        };
        self.execute(process, message, step)?;
        Ok(true)
    }
}
