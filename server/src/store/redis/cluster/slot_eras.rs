//! Eras of slots: those that this process has used, and those in which a node may grant locks.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::slot::SLOTS;
use crate::{
    lock::{FencingToken, Recovery},
    store::{
        StoreError,
        redis::{
            era::{Era, FormerProcess},
            era_decision::KnownState,
            former_master::ConfirmationPause,
            scripts::EraUse,
        },
    },
};

/// Longest time for which a call waits for the era of its slot. After that it runs without an era,
/// which allows no grants.
const ERA_TIMEOUT: Duration = Duration::from_millis(700);
/// Time after which a call is retried that needs a lease confirmed in a slot without an agreed era.
const CONFIRM_RETRY_MS: u64 = 500;

/// Eras of each slot that this process has read, on any node.
#[derive(Debug)]
pub(in crate::store::redis) struct EraHistory(Mutex<Vec<KnownState>>);

/// State of a slot's era at a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The era has not been read.
    Unread,
    /// There was no era, in a cluster that is trusted to be new. An era is written when it is
    /// needed.
    Unused,
    /// The era with this id is agreed, and the node may grant locks in it.
    Synced {
        id: Box<str>,
        /// Reason why no lease is confirmed in this era now.
        pause: Option<ConfirmationPause>,
        /// Period in which the era allows no grants, if it had not ended when the era was agreed.
        recovery: Option<Box<Recovery>>,
    },
    /// The era is at the server to which the slot is moving.
    Moving,
    /// The era cannot be read or written now.
    Failed,
}

/// The era of a slot, in which a node grants locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct SlotEra {
    pub(in crate::store::redis) slot: u16,
    pub(in crate::store::redis) id: Box<str>,
}

/// The slots in which a node confirms no leases because of one former master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct PausedSlots {
    pub(in crate::store::redis) process: FormerProcess,
    pub(in crate::store::redis) slots: Vec<u16>,
}

/// The eras in which one node may grant locks.
#[derive(Debug)]
pub(in crate::store::redis) struct SlotEras {
    slots: Mutex<Vec<SlotState>>,
    requested: Mutex<BTreeSet<u16>>,
    work_available: Notify,
    changed: watch::Sender<()>,
}

impl EraHistory {
    pub(in crate::store::redis) fn new() -> Self {
        Self(Mutex::new(vec![KnownState::default(); SLOTS.into()]))
    }

    /// Returns the values for the decision about a slot.
    pub(super) fn known_state(&self, slot: u16) -> KnownState {
        self.0.lock()[usize::from(slot)].clone()
    }

    /// Marks eras as doubtful, in which locks may have been lost without a trace on the server.
    pub(in crate::store::redis) fn mark_doubtful(&self, eras: Vec<SlotEra>) {
        let mut all = self.0.lock();
        for SlotEra { slot, id } in eras {
            all[usize::from(slot)].doubted = Some(id);
        }
    }

    /// Returns true if this process has used an era of the slot.
    pub(super) fn is_known(&self, slot: u16) -> bool {
        self.0.lock()[usize::from(slot)].bounds.is_some()
    }

    /// Records the token of a grant in the slot.
    pub(super) fn record_token(&self, slot: u16, token: FencingToken) {
        self.0.lock()[usize::from(slot)].record_token(Some(token));
    }

    pub(super) fn remember(&self, slot: u16, era: &Era) {
        self.0.lock()[usize::from(slot)].remember(era);
    }
}

impl SlotEras {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            slots: Mutex::new(vec![SlotState::Unread; SLOTS.into()]),
            requested: Mutex::default(),
            work_available: Notify::new(),
            changed: watch::Sender::new(()),
        }
    }

    /// Returns the era in which the node may grant locks. The id is empty if there is none within
    /// [`ERA_TIMEOUT`].
    async fn id(&self, slot: u16) -> Box<str> {
        let mut synced = self.changed.subscribe();
        let settle = async {
            loop {
                match self.slots.lock()[usize::from(slot)].clone() {
                    SlotState::Synced { id, .. } => return id,
                    SlotState::Moving | SlotState::Failed => return Box::default(),
                    SlotState::Unread | SlotState::Unused => {}
                }
                self.request(slot);
                if synced.changed().await.is_err() {
                    return Box::default();
                }
            }
        };
        timeout(ERA_TIMEOUT, settle).await.unwrap_or_default()
    }

    /// Returns the era for this operation of a script, which is empty if the script needs none.
    ///
    /// # Errors See [`SlotEras::id_for_confirmation`].
    pub(super) async fn id_for(&self, slot: u16, era_use: EraUse) -> Result<Box<str>, StoreError> {
        match era_use {
            EraUse::Grant => Ok(self.id(slot).await),
            EraUse::Confirm => self.id_for_confirmation(slot).await,
            EraUse::None => Ok(Box::default()),
        }
    }

    /// Returns the era in which the node may confirm leases. The id is empty while the slot is
    /// moving: then no other master has replaced this one.
    ///
    /// # Errors While the former master of the slot may accept writes, or as long as it is unknown
    /// whether there is one.
    async fn id_for_confirmation(&self, slot: u16) -> Result<Box<str>, StoreError> {
        if self.slots.lock()[usize::from(slot)] == SlotState::Unread {
            self.id(slot).await;
        }
        match &self.slots.lock()[usize::from(slot)] {
            SlotState::Unread | SlotState::Failed => Err(StoreError::Recovering {
                retry_after_ms: CONFIRM_RETRY_MS,
                recovery: None,
            }),
            SlotState::Synced {
                pause: Some(pause), ..
            } if pause.remaining().is_some() => Err(pause.rejection()),
            SlotState::Synced { id, .. } => Ok(id.clone()),
            SlotState::Unused | SlotState::Moving => Ok(Box::default()),
        }
    }

    /// Returns the period in which the era of a slot allows no grants, if there is one. It may have
    /// ended.
    pub(in crate::store::redis) fn recovery(&self, slot: u16) -> Option<Recovery> {
        match &self.slots.lock()[usize::from(slot)] {
            SlotState::Synced { recovery, .. } => recovery.as_deref().copied(),
            SlotState::Unread | SlotState::Unused | SlotState::Moving | SlotState::Failed => None,
        }
    }

    /// Returns the slots in which no lease is confirmed now, grouped by former master.
    pub(in crate::store::redis) fn paused(&self) -> Vec<PausedSlots> {
        let mut paused: Vec<PausedSlots> = Vec::new();
        for (slot, state) in (0..SLOTS).zip(self.slots.lock().iter_mut()) {
            let SlotState::Synced { pause, .. } = state else {
                continue;
            };
            *pause = pause.take().filter(|pause| pause.remaining().is_some());
            let Some(pause) = pause else { continue };
            match paused
                .iter_mut()
                .find(|group| group.process == pause.process)
            {
                Some(group) => group.slots.push(slot),
                None => paused.push(PausedSlots {
                    process: pause.process.clone(),
                    slots: vec![slot],
                }),
            }
        }
        paused
    }

    /// Ends the pause of these slots, because their former master has stopped.
    pub(in crate::store::redis) fn end_pause(&self, slots: &[u16]) {
        let mut all = self.slots.lock();
        for &slot in slots {
            if let SlotState::Synced { pause, .. } = &mut all[usize::from(slot)] {
                *pause = None;
            }
        }
    }

    /// Returns all eras in which the node grants.
    pub(in crate::store::redis) fn all_synced(&self) -> Vec<SlotEra> {
        let mut synced = Vec::new();
        for (slot, state) in (0..SLOTS).zip(self.slots.lock().iter()) {
            if let SlotState::Synced { id, .. } = state {
                let id = id.clone();
                synced.push(SlotEra { slot, id });
            }
        }
        synced
    }

    /// Returns a slot with an agreed era. The search starts at `start`.
    pub(in crate::store::redis) fn any_synced(&self, start: u16) -> Option<u16> {
        let slots = self.slots.lock();
        let mut order = (0..SLOTS).map(|at| (at + start % SLOTS) % SLOTS);
        order.find(|&slot| matches!(slots[usize::from(slot)], SlotState::Synced { .. }))
    }

    /// Discards the era that the node has for a slot, because the store has another one, and
    /// requests a new agreement. With `is_lost` the store has no era at all. The server may then
    /// have lost all data, so all eras are discarded.
    pub(in crate::store::redis) fn invalidate(&self, slot: u16, is_lost: bool) {
        let mut slots = self.slots.lock();
        for (at, state) in slots.iter_mut().enumerate() {
            let is_slot = at == usize::from(slot);
            if is_slot || is_lost && matches!(state, SlotState::Synced { .. }) {
                *state = SlotState::Unread;
            }
        }
        drop(slots);
        self.request(slot);
    }

    /// Compares the node's era of a slot with that of the store, and discards it if they differ.
    pub(in crate::store::redis) fn compare(&self, slot: u16, stored: Option<&str>) {
        let stored = stored.map(|era| era.split('|').next().unwrap_or_default());
        let differs = match &self.slots.lock()[usize::from(slot)] {
            SlotState::Synced { id, .. } => stored != Some(&**id),
            SlotState::Unread | SlotState::Unused | SlotState::Moving | SlotState::Failed => false,
        };
        if differs {
            self.invalidate(slot, stored.is_none());
        }
    }

    /// Waits until an era is requested for a slot.
    pub(super) async fn wait_for_request(&self) {
        self.work_available.notified().await;
    }

    /// Discards the eras of slots that are not the node's.
    pub(super) fn retain(&self, own_slots: &BTreeSet<u16>) {
        for (slot, state) in (0..SLOTS).zip(self.slots.lock().iter_mut()) {
            if !own_slots.contains(&slot) {
                *state = SlotState::Unread;
            }
        }
    }

    /// Returns the slots to agree on next, and whether calls wait for them. Returns the slots for
    /// which calls wait, if there are any, else at most `max` slots whose eras have not been read.
    pub(super) fn next_batch(&self, own_slots: &BTreeSet<u16>, max: usize) -> (Vec<u16>, bool) {
        let requested = std::mem::take(&mut *self.requested.lock());
        if !requested.is_empty() {
            let (own, others): (Vec<_>, Vec<_>) = requested
                .into_iter()
                .partition(|slot| own_slots.contains(slot));
            self.set(&others, &SlotState::Failed);
            self.notify_waiting();
            return (own, true);
        }
        let slots = self.slots.lock();
        let unread = |slot: &&u16| slots[usize::from(**slot)] == SlotState::Unread;
        let unread = own_slots.iter().filter(unread).take(max).copied();
        (unread.collect(), false)
    }

    /// Returns the node's slots without an agreed era, because it is moving or could not be read or
    /// written.
    pub(super) fn all_failed(&self, own_slots: &BTreeSet<u16>) -> Vec<u16> {
        let slots = self.slots.lock();
        let failed = |slot: &&u16| {
            matches!(
                slots[usize::from(**slot)],
                SlotState::Moving | SlotState::Failed
            )
        };
        own_slots.iter().filter(failed).copied().collect()
    }

    pub(super) fn set(&self, slots: &[u16], state: &SlotState) {
        for &slot in slots {
            self.slots.lock()[usize::from(slot)] = state.clone();
        }
    }

    /// Notifies the waiting calls of changes.
    pub(super) fn notify_waiting(&self) {
        self.changed.send_replace(());
    }

    fn request(&self, slot: u16) {
        self.requested.lock().insert(slot);
        self.work_available.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_slots(slots: &[u16]) -> BTreeSet<u16> {
        slots.iter().copied().collect()
    }

    fn synced(id: &str) -> SlotState {
        SlotState::Synced {
            id: id.into(),
            pause: None,
            recovery: None,
        }
    }

    #[tokio::test]
    async fn a_call_waits_until_its_slot_is_settled_or_stuck() {
        let eras = SlotEras::new();
        assert_eq!(&*eras.id(7).await, "", "no task settles eras");
        assert_eq!(eras.next_batch(&own_slots(&[5, 7]), 9), (vec![7], true));
        assert_eq!(eras.next_batch(&own_slots(&[5, 7]), 1), (vec![5], false));
        let (id, ()) = tokio::join!(eras.id(7), async {
            eras.wait_for_request().await;
            eras.set(&[7], &synced("era"));
            eras.notify_waiting();
        });
        assert_eq!(&*id, "era");
        eras.set(&[7], &SlotState::Failed);
        assert_eq!(&*eras.id(7).await, "");
    }

    #[test]
    fn a_lost_era_puts_all_slots_in_doubt_and_a_changed_era_only_its_own_slot() {
        let eras = SlotEras::new();
        let all = own_slots(&[1, 2, 3]);
        let settle = || eras.set(&[1, 2, 3], &synced("one"));
        settle();
        eras.compare(2, Some("one|0|"));
        assert_eq!(eras.next_batch(&all, 9), (vec![], false));
        eras.compare(2, Some("other|0|"));
        assert_eq!(eras.next_batch(&all, 9), (vec![2], true));
        assert_eq!(eras.next_batch(&all, 9), (vec![2], false));
        settle();
        eras.compare(2, None);
        assert_eq!(eras.next_batch(&all, 9), (vec![2], true));
        assert_eq!(eras.next_batch(&all, 9), (vec![1, 2, 3], false));
        settle();
        eras.retain(&own_slots(&[1]));
        assert_eq!(eras.next_batch(&all, 9), (vec![2, 3], false));
        assert_eq!((eras.any_synced(0), eras.any_synced(2)), (Some(1), Some(1)));
    }

    #[test]
    fn slots_of_others_are_not_settled() {
        let eras = SlotEras::new();
        eras.invalidate(4, false);
        assert_eq!(eras.next_batch(&own_slots(&[5]), 9), (vec![], true));
        assert_eq!(eras.all_failed(&own_slots(&[4, 5])), [4]);
    }
}
