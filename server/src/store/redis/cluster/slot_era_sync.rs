//! Agreement on the eras of a node's slots: reads them, decides, and writes.
//!
//! A node serves while slots have no era, unlike the node of a store with one era. A slot that
//! fails is therefore reported and tried again later, and an era that has changed is agreed again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fred::{clients::Client, error::Error, interfaces::KeysInterface as _};
use tokio::{
    select,
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tracing::{error, info, warn};

use super::{
    slot::{era_key, ranges},
    slot_eras::{EraHistory, SlotEras, SlotState},
    slot_map::SlotMap,
};
use crate::store::redis::{
    clock::time_ms,
    connect::VerifiedServer,
    connection::{NodeError, plain_message},
    era::{Era, EraParseError},
    era_decision::{EraDecision, StoredState},
    era_sync::{ERA, PendingEra, ROUNDS_MAX, WrittenEra, decide, era_error},
    error_table::{CallerError, ErrorClass, NodeAction},
    former_master::ConfirmationPause,
    location::Address,
    log_throttle::LogThrottle,
};

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
    server: VerifiedServer,
    pub(in crate::store::redis) eras: Arc<SlotEras>,
    log_throttle: LogThrottle,
    /// True while all slots are checked again, because one of them has lost its era.
    has_lost_eras: bool,
}

/// Result of agreeing on the eras of some slots, for the node and for the log.
#[derive(Debug, Default)]
struct SyncReport {
    written: Vec<u16>,
    /// The written slots that are in quarantine, and the longest quarantine.
    quarantined: Vec<u16>,
    quarantine_ms: u64,
    /// The written slots that have a floor of tokens.
    with_floor: Vec<u16>,
    causes: BTreeSet<&'static str>,
    redirected: Vec<u16>,
    failed: Vec<u16>,
    failure: String,
    /// True if an era that this process has used is missing in the store.
    is_lost: bool,
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
    pub(in crate::store::redis) fn new(slots: SlotContext, server: VerifiedServer) -> Self {
        Self {
            slots,
            server,
            eras: Arc::new(SlotEras::new()),
            log_throttle: LogThrottle::default(),
            has_lost_eras: false,
        }
    }

    /// Agrees on the era of one slot before the node serves. It shows any problem that the other
    /// slots have as well.
    pub(in crate::store::redis) async fn sync_first(&mut self) -> Result<(), NodeError> {
        ERA.load(&self.server.client)
            .await
            .map_err(|e| self.server.endpoint.unreachable(&e))?;
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
            self.server.endpoint.name(),
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
        map.slots_of(&self.server.endpoint.address)
            .into_iter()
            .collect()
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
            report.log(&self.server.endpoint.name(), &self.log_throttle);
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
    ) -> Result<BTreeMap<u16, PendingEra>, NodeError> {
        let config = &self.server.endpoint.config;
        let replies = read_era_texts(&self.server.client, &config.key_prefix, slots).await;
        let replies = self.require_all(replies, slots.len())?;
        let mut pending = BTreeMap::new();
        let now_ms = time_ms(&self.server.client).await;
        let now_ms = now_ms.map_err(|e| self.server.endpoint.unreachable(&e))?;
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
                    return Err(era_error(&self.server.endpoint.name(), &reason, &key));
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
                is_slot: true,
                ..StoredState::default()
            };
            let known_state = self.slots.history.known_state(slot);
            match (decide(&self.server, &found, &known_state)?, found.era) {
                (EraDecision::Adopt(_), Some(era)) => self.adopt_era(slot, &era, now_ms),
                (EraDecision::Adopt(_), None) => {}
                (EraDecision::Write(write), _) => {
                    let expected = text.unwrap_or_default();
                    pending.insert(
                        slot,
                        PendingEra {
                            expected,
                            write,
                            not_after_ms: None,
                        },
                    );
                }
            }
        }
        Ok(pending)
    }

    /// Returns true if a slot has stopped moving: the server then accepts a command for a missing
    /// key.
    async fn has_stopped_moving(&self, slot: u16) -> Result<bool, NodeError> {
        let probe_key = format!(
            "{}-",
            era_key(&self.server.endpoint.config.key_prefix, slot)
        );
        match self.server.client.get::<Option<String>, _>(probe_key).await {
            Ok(_) => Ok(true),
            Err(error) if ErrorClass::classify(&error).action == NodeAction::Redirect => Ok(false),
            Err(error) => Err(self.server.endpoint.unreachable(&error)),
        }
    }

    /// Writes each era if the store still contains what was read. Returns the slots where another
    /// broker wrote first.
    async fn write_eras(
        &self,
        pending: BTreeMap<u16, PendingEra>,
        report: &mut SyncReport,
    ) -> Result<Vec<u16>, NodeError> {
        let prefix = &self.server.endpoint.config.key_prefix;
        let commands = pending
            .iter()
            .map(|(&slot, pending)| pending.command(vec![era_key(prefix, slot)]));
        let replies = ERA.run_pipelined(&self.server.client, commands.collect());
        let replies = self.require_all(replies.await, pending.len())?;
        let mut retry_slots = Vec::new();
        for (&slot, reply) in pending.keys().zip(replies) {
            match reply.and_then(WrittenEra::parse) {
                Ok(Some(WrittenEra {
                    era: Ok(era),
                    now_ms,
                })) => {
                    self.adopt_era(slot, &era, now_ms);
                    report.record_write(slot, &era, now_ms);
                }
                Ok(Some(WrittenEra { era: Err(_), .. })) => report.failed.push(slot),
                Ok(None) => retry_slots.push(slot),
                Err(error) if ErrorClass::classify(&error).action == NodeAction::ReloadScripts => {
                    let loaded = ERA.load(&self.server.client).await;
                    loaded.map_err(|e| self.server.endpoint.unreachable(&e))?;
                    retry_slots.push(slot);
                }
                Err(error) => report.record_error(slot, &error),
            }
        }
        Ok(retry_slots)
    }

    fn adopt_era(&self, slot: u16, era: &Era, now_ms: u64) {
        self.slots.history.remember(slot, era);
        let synced = SlotState::Synced {
            id: era.id.as_str().into(),
            pause: ConfirmationPause::required_by(era, now_ms),
            recovery: Some(era.recovery())
                .filter(|recovery| recovery.active_at(now_ms).is_some())
                .map(Box::new),
        };
        self.eras.set(&[slot], &synced);
    }

    /// Checks that a pipeline returned all replies. A pipeline that broke has one error for all
    /// commands.
    fn require_all<T>(
        &self,
        replies: Result<Vec<Result<T, Error>>, Error>,
        count: usize,
    ) -> Result<Vec<Result<T, Error>>, NodeError> {
        let mut replies = replies.map_err(|e| self.server.endpoint.unreachable(&e))?;
        if replies.len() == count {
            return Ok(replies);
        }
        Err(match replies.pop() {
            Some(Err(error)) => self.server.endpoint.unreachable(&error),
            Some(Ok(_)) | None => NodeError::Unreachable(format!(
                "{} returned fewer replies than expected.",
                self.server.endpoint.name()
            )),
        })
    }
}

impl SyncReport {
    fn record_write(&mut self, slot: u16, era: &Era, now_ms: u64) {
        self.written.push(slot);
        if era.token_floor.is_some() {
            self.with_floor.push(slot);
        }
        let wait_ms = era.no_grants_before_ms.saturating_sub(now_ms);
        if wait_ms > 0 {
            self.quarantined.push(slot);
            self.causes.insert(era.recovery().cause_name());
            self.quarantine_ms = self.quarantine_ms.max(wait_ms);
        }
    }

    fn record_error(&mut self, slot: u16, error: &Error) {
        let class = ErrorClass::classify(error);
        if class.action == NodeAction::Redirect {
            self.redirected.push(slot);
            return;
        }
        self.failed.push(slot);
        self.failure = match class.caller_error {
            CallerError::Corrupt => "this version cannot read the era".to_owned(),
            CallerError::Unavailable | CallerError::Full => plain_message(error),
        };
    }

    /// Logs the result for operators.
    fn log(&self, name: &str, throttle: &LogThrottle) {
        let (waiting, failed) = (&self.quarantined, &self.failed);
        if !waiting.is_empty() {
            warn!(
                slots = ranges(waiting.iter().copied()),
                cause = Vec::from_iter(self.causes.iter().copied()).join(", "),
                wait_ms = self.quarantine_ms,
                "{name} may have lost locks: no new grants in these slots for a while"
            );
        } else if !self.written.is_empty() {
            info!(
                slots = ranges(self.written.iter().copied()),
                "{name} has eras written by this broker"
            );
        }
        if !self.with_floor.is_empty() {
            info!(
                slots = ranges(self.with_floor.iter().copied()),
                "{name} continues the fencing tokens of earlier eras in these slots: a clock was \
                 ahead"
            );
        }
        let suppressed_before = throttle.should_log("era", &self.failure);
        if let (Some(suppressed), false) = (suppressed_before, failed.is_empty()) {
            error!(
                suppressed,
                slots = ranges(failed.iter().copied()),
                "{name} has slots without an era ({}): no new grants there",
                self.failure
            );
        }
    }
}

/// Reads the eras of slots in one pipeline. Returns a result for each, or fewer if the connection
/// breaks.
pub(in crate::store::redis) async fn read_era_texts(
    client: &Client,
    key_prefix: &str,
    slots: &[u16],
) -> Result<Vec<Result<Option<String>, Error>>, Error> {
    let pipeline = client.pipeline();
    for &slot in slots {
        let _: () = pipeline.get(era_key(key_prefix, slot)).await?;
    }
    Ok(pipeline.try_all().await)
}
