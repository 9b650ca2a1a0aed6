//! Agreement on the eras of a node's slots: reads them, decides, and writes.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::Duration,
};

use fred::{clients::Client, error::Error, interfaces::KeysInterface as _, types::FromValue as _};
use tokio::{
    select,
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use super::{
    slot::{era_key, ranges},
    slot_eras::{EraHistory, SlotEras, SlotState},
    slot_map::SlotMap,
    sync_report::{PendingWrite, SyncReport},
};
use crate::store::redis::{
    clock::time_ms,
    connection::{Endpoint, NodeError},
    era::{Era, EraParseError, ServerIdentity},
    era_decision::{EraDecision, StoredState, decide_era},
    era_sync::{era_error, local_config, refuse_to_serve},
    error_table::{ErrorClass, NodeAction},
    former_master::ConfirmationPause,
    location::Address,
    log_throttle::LogThrottle,
    script::Script,
};

static ERA: LazyLock<Script> = LazyLock::new(|| Script::new("era", include_str!("../lua/era.lua")));

/// Number of slots in one batch, so that calls are not delayed.
const BATCH_SLOTS: usize = 128;
/// Pause between batches for which no call waits, and which find only unchanged eras. With it a
/// master with a third of the slots is done in two seconds. Slots that are used earlier come first.
const BATCH_PAUSE: Duration = Duration::from_millis(50);
/// Pause after a batch that found lost locks, so that the quarantine of all slots of a master
/// starts at nearly the same time.
const LOST_BATCH_PAUSE: Duration = Duration::from_millis(2);
/// Interval at which slots without agreement are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of times that another broker may write first before the slot is left for later.
const ROUNDS_MAX: usize = 8;

/// The slot map, and the eras that this process has used.
#[derive(Clone)]
pub(in crate::store::redis) struct SlotContext {
    map: watch::Receiver<Arc<SlotMap>>,
    pub(in crate::store::redis) history: Arc<EraHistory>,
    /// Requests a new reading of the slot map.
    pub(super) refresh_slot_map: Arc<Notify>,
}

/// Agreement on the eras of one node's slots.
pub(in crate::store::redis) struct SlotEraSync {
    slots: SlotContext,
    endpoint: Endpoint,
    client: Client,
    server: ServerIdentity,
    pub(in crate::store::redis) eras: Arc<SlotEras>,
    log_throttle: LogThrottle,
    /// True while all slots are checked again, because one of them has lost its era.
    has_lost_eras: bool,
}

impl SlotContext {
    pub(super) fn new(map: watch::Receiver<Arc<SlotMap>>) -> Self {
        Self {
            map,
            history: Arc::new(EraHistory::new()),
            refresh_slot_map: Arc::default(),
        }
    }

    /// Returns the first slot of a master.
    pub(in crate::store::redis) fn first_slot_of(&self, master: &Address) -> Option<u16> {
        self.map.borrow().slots_of(master).first().copied()
    }
}

impl SlotEraSync {
    /// Creates the agreement for the node on this server, with no era agreed yet.
    pub(in crate::store::redis) fn new(
        slots: SlotContext,
        endpoint: Endpoint,
        client: Client,
        server: ServerIdentity,
    ) -> Self {
        Self {
            slots,
            endpoint,
            client,
            server,
            eras: Arc::new(SlotEras::new()),
            log_throttle: LogThrottle::default(),
            has_lost_eras: false,
        }
    }

    /// Agrees on the era of one slot before the node serves. It shows any problem that the other
    /// slots have as well.
    pub(in crate::store::redis) async fn sync_first(&mut self) -> Result<(), NodeError> {
        ERA.load(&self.client)
            .await
            .map_err(|e| self.endpoint.unreachable(&e))?;
        let first: Vec<u16> = self.own_slots().into_iter().take(1).collect();
        self.sync(&first, true).await.map(drop)
    }

    /// Agrees on the eras of all slots. Returns an error that lists the slots for which that
    /// failed.
    pub(super) async fn sync_all(&mut self) -> Result<(), NodeError> {
        let own_slots = self.own_slots();
        let slots: Vec<u16> = own_slots.iter().copied().collect();
        self.sync(&slots, true).await?;
        let failed = self.eras.all_failed(&own_slots);
        if failed.is_empty() {
            return Ok(());
        }
        Err(NodeError::Unreachable(format!(
            "{} has slots whose eras cannot be written: {}. Check whether the slots are migrating \
             to another master.",
            self.endpoint.name(),
            ranges(failed)
        )))
    }

    /// Reads all eras. Returns an error if no broker could serve with them.
    pub(super) async fn check_all(&mut self) -> Result<(), NodeError> {
        let slots: Vec<u16> = self.own_slots().into_iter().collect();
        for batch in slots.chunks(BATCH_SLOTS) {
            self.read_eras(batch, false, &mut SyncReport::default())
                .await?;
        }
        Ok(())
    }

    /// Runs until the node must be closed, and returns the reason. Slots for which calls wait come
    /// first, then all others.
    pub(in crate::store::redis) async fn run(mut self) -> String {
        let mut tried = Instant::now();
        let mut own_slots = self.own_slots();
        loop {
            if self.slots.map.has_changed().unwrap_or(false) {
                own_slots = self.own_slots();
                self.eras.retain(&own_slots);
            }
            let (mut batch, is_urgent) = self.eras.next_batch(&own_slots, BATCH_SLOTS);
            if batch.is_empty() && !is_urgent {
                self.has_lost_eras = false;
                if tried.elapsed() >= RETRY_INTERVAL {
                    batch = self.eras.all_failed(&own_slots);
                    tried = Instant::now();
                }
            }
            let settled = self.sync(&batch, is_urgent).await;
            if let Err(NodeError::Unfit(problems)) = settled {
                return problems.join(" ");
            }
            let pause = match (batch.is_empty(), is_urgent, settled) {
                (true, false, _) => RETRY_INTERVAL,
                (_, true, _) => Duration::ZERO,
                (false, false, Ok(true)) => LOST_BATCH_PAUSE,
                (false, false, Ok(false) | Err(_)) => BATCH_PAUSE,
            };
            let changed = self.slots.map.changed();
            select! {
                () = self.eras.wait_for_request() => {}
                Ok(()) = changed => self.slots.map.mark_changed(),
                () = sleep(pause) => {}
            }
        }
    }

    fn own_slots(&mut self) -> BTreeSet<u16> {
        let map = Arc::clone(&self.slots.map.borrow_and_update());
        map.slots_of(&self.endpoint.address).into_iter().collect()
    }

    /// Agrees on the eras of `slots`. With `must_have`, eras are also written for unused slots of a
    /// cluster that is trusted to be new. Failed slots are tried again later, unless an operator
    /// must change something. Returns true if some slots are now in quarantine.
    async fn sync(&mut self, slots: &[u16], must_have: bool) -> Result<bool, NodeError> {
        let mut do_wait = false;
        for batch in slots.chunks(BATCH_SLOTS) {
            let report = match self.sync_batch(batch.to_vec(), must_have).await {
                Ok(report) => report,
                Err(error) => {
                    self.eras.set(batch, &SlotState::Failed);
                    self.eras.notify_waiting();
                    return Err(error);
                }
            };
            self.eras.set(&report.redirected, &SlotState::Moving);
            self.eras.set(&report.failed, &SlotState::Failed);
            self.eras.notify_waiting();
            report.log(&self.endpoint.name(), &self.log_throttle);
            do_wait |= !report.quarantined.is_empty();
            // The other slots, for which an era was agreed before, may have lost theirs as well.
            if report.is_lost && !self.has_lost_eras {
                self.has_lost_eras = true;
                self.eras.invalidate(batch[0], true);
            }
            if !report.redirected.is_empty() {
                self.slots.refresh_slot_map.notify_one();
            }
        }
        Ok(do_wait)
    }

    async fn sync_batch(&self, slots: Vec<u16>, must_have: bool) -> Result<SyncReport, NodeError> {
        let (mut remaining, mut report) = (slots, SyncReport::default());
        for _ in 0..ROUNDS_MAX {
            let pending = self.read_eras(&remaining, must_have, &mut report).await?;
            if pending.is_empty() {
                return Ok(report);
            }
            remaining = self.write_eras(pending, &mut report).await?;
            if remaining.is_empty() {
                return Ok(report);
            }
        }
        report.failed.append(&mut remaining);
        "its eras change faster than this broker can read them".clone_into(&mut report.failure);
        Ok(report)
    }

    /// Adopts the stored eras where possible. Returns the eras to write.
    async fn read_eras(
        &self,
        slots: &[u16],
        must_have: bool,
        report: &mut SyncReport,
    ) -> Result<Vec<PendingWrite>, NodeError> {
        let config = &self.endpoint.config;
        let pipeline = self.client.pipeline();
        for &slot in slots {
            let key = era_key(&config.key_prefix, slot);
            let queued: Result<(), Error> = pipeline.get(key).await;
            queued.map_err(|e| self.endpoint.unreachable(&e))?;
        }
        let replies = pipeline.try_all::<Option<String>>().await;
        let replies = self.require_all(replies, slots.len())?;
        let mut pending = Vec::new();
        let now_ms = time_ms(&self.client).await;
        let now_ms = now_ms.map_err(|e| self.endpoint.unreachable(&e))?;
        for (&slot, reply) in slots.iter().zip(replies) {
            let text = match reply {
                Ok(text) => text,
                Err(error) => {
                    report.record_error(slot, &error);
                    continue;
                }
            };
            let era = match text.as_deref().map(Era::parse).transpose() {
                Ok(era) => era,
                Err(EraParseError::Unreadable) => {
                    report.failed.push(slot);
                    "this version cannot read the era".clone_into(&mut report.failure);
                    continue;
                }
                Err(reason @ EraParseError::OtherSchema(_)) => {
                    let key = era_key(&config.key_prefix, slot);
                    return Err(era_error(&self.endpoint.name(), &reason, &key));
                }
            };
            let has_history = self.slots.history.is_known(slot);
            if era.is_none() && config.trust_empty_store && !has_history && !must_have {
                self.eras.set(&[slot], &SlotState::Unused);
                continue;
            }
            report.is_lost |= era.is_none() && has_history;
            let was_moving = era.as_ref().is_some_and(|era| era.is_moving);
            let found = StoredState {
                has_stayed: was_moving && self.has_stopped_moving(slot).await?,
                era,
                key: None,
            };
            let known_state = self.slots.history.known_state(slot);
            let own = local_config(config);
            let decision = decide_era(&found, &self.server, &own, &known_state)
                .map_err(|reason| refuse_to_serve(&self.endpoint, reason))?;
            match (decision, found.era) {
                (EraDecision::Adopt(_), Some(era)) => self.adopt_era(slot, &era, now_ms),
                (EraDecision::Adopt(_), None) => {}
                (EraDecision::Write(write), _) => pending.push(PendingWrite {
                    slot,
                    expected: text.unwrap_or_default(),
                    write,
                }),
            }
        }
        Ok(pending)
    }

    /// Returns true if a slot has stopped moving: the server then accepts a command for a missing
    /// key.
    async fn has_stopped_moving(&self, slot: u16) -> Result<bool, NodeError> {
        let probe_key = format!("{}-", era_key(&self.endpoint.config.key_prefix, slot));
        match self.client.get::<Option<String>, _>(probe_key).await {
            Ok(_) => Ok(true),
            Err(error) if ErrorClass::classify(&error).action == NodeAction::Redirect => Ok(false),
            Err(error) => Err(self.endpoint.unreachable(&error)),
        }
    }

    /// Writes each era if the store still contains what was read. Returns the slots where another
    /// broker wrote first.
    async fn write_eras(
        &self,
        pending: Vec<PendingWrite>,
        report: &mut SyncReport,
    ) -> Result<Vec<u16>, NodeError> {
        let prefix = &self.endpoint.config.key_prefix;
        let commands = pending
            .iter()
            .map(|pending| pending.command(prefix))
            .collect();
        let replies = ERA.run_pipelined(&self.client, commands).await;
        let replies = replies.map_err(|e| self.endpoint.unreachable(&e))?;
        let replies = self.require_all(replies, pending.len())?;
        let mut retry_slots = Vec::new();
        for (pending, reply) in pending.iter().zip(replies) {
            let reply = reply.and_then(<(u64, String, u64)>::from_value);
            match reply {
                Ok((1, text, now_ms)) => {
                    let Ok(era) = Era::parse(&text) else {
                        report.failed.push(pending.slot);
                        continue;
                    };
                    self.adopt_era(pending.slot, &era, now_ms);
                    report
                        .record_write(pending.slot, era.no_grants_before_ms.saturating_sub(now_ms));
                }
                Ok(_) => retry_slots.push(pending.slot),
                Err(error) if ErrorClass::classify(&error).action == NodeAction::ReloadScripts => {
                    let loaded = ERA.load(&self.client).await;
                    loaded.map_err(|e| self.endpoint.unreachable(&e))?;
                    retry_slots.push(pending.slot);
                }
                Err(error) => report.record_error(pending.slot, &error),
            }
        }
        Ok(retry_slots)
    }

    fn adopt_era(&self, slot: u16, era: &Era, now_ms: u64) {
        self.slots.history.remember(slot, era);
        let synced = SlotState::Synced {
            id: era.id.as_str().into(),
            pause: ConfirmationPause::required_by(era, now_ms),
        };
        self.eras.set(&[slot], &synced);
    }

    /// Checks that a pipeline returned all replies. A pipeline that broke has one error for all
    /// commands.
    fn require_all<T>(
        &self,
        mut replies: Vec<Result<T, Error>>,
        count: usize,
    ) -> Result<Vec<Result<T, Error>>, NodeError> {
        if replies.len() == count {
            return Ok(replies);
        }
        Err(match replies.pop() {
            Some(Err(error)) => self.endpoint.unreachable(&error),
            Some(Ok(_)) | None => NodeError::Unreachable(format!(
                "{} returned fewer replies than expected.",
                self.endpoint.name()
            )),
        })
    }
}
