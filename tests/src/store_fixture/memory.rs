//! The memory store under tokio's paused clock.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_server::{
    lock::{BrokerId, FencingToken, LockKey},
    store::{
        Store,
        memory::{Memory, context::SpanLimit},
    },
};

use super::{Backend, InitialState};

const QUARANTINE_MS: u64 = 95_250;

pub(super) struct MemoryBackend {
    memory: Arc<Memory>,
}

impl MemoryBackend {
    pub(super) fn new(start: InitialState) -> Self {
        let quarantine_ms = match start {
            InitialState::Trusted => 0,
            InitialState::Recovering => QUARANTINE_MS,
        };
        let memory = Memory::new(Duration::from_millis(quarantine_ms));
        Self { memory }
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        Arc::new(self.memory.connect(broker))
    }

    async fn advance_ms(&self, ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    async fn step_back_ms(&self, _ms: u64) {
        // The clock of the memory store is monotonic.
    }

    async fn remove_ttl(&self, _lock: &LockKey) {
        // A record has no time to live apart from the expiries within it.
    }

    fn quarantine_ms(&self) -> u64 {
        QUARANTINE_MS
    }

    async fn limit_spans(&self, limit: SpanLimit) {
        self.memory.limit_spans(limit);
    }

    async fn set_token_floor(&self, _lock: &LockKey, floor: FencingToken) {
        self.memory.set_token_floor(floor);
    }

    async fn check_invariants(&self) {
        // Records are removed by age, and no key could lack a time to live.
    }
}
