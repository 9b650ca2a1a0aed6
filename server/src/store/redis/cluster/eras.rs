//! The eras of slots: what this process learnt of each, and those in which one node may grant.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::slot::SLOTS;
use crate::{
    lock::DeploymentKey,
    store::{
        StoreError,
        redis::{
            decide::Known,
            era::{Era, EraBounds, FormerProcess},
            former::Pause,
        },
    },
};

/// How long a call waits for the era of its slot; then it does what it can without.
const SETTLED_WITHIN: Duration = Duration::from_millis(700);
/// When a lease may be confirmed whose slot was not settled in time.
const CONFIRMED_AFTER_MS: u64 = 500;

/// What this process learnt of each slot's era, whichever node had the slot.
#[derive(Debug)]
pub(in crate::store::redis) struct Learnt {
    of_slots: Mutex<Vec<Option<(EraBounds, u64)>>>,
    /// Eras in which locks may have been lost that the server does not know of.
    doubted: Mutex<HashMap<u16, Box<str>>>,
}

/// What a node has of the era of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    /// Nobody has looked.
    Unseen,
    /// There was none, in a cluster that is trusted to be new: one is written when it is needed.
    Unused,
    /// The node may be asked for grants in it.
    Settled(Settled),
    /// It is at the server to which the slot is on its way.
    Moving,
    /// It cannot be had now.
    Stuck,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Settled {
    id: Box<str>,
    /// Why no lease is confirmed in it now.
    pause: Option<Pause>,
}

/// The era in which a node grants in one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct SlotEra {
    pub(in crate::store::redis) slot: u16,
    pub(in crate::store::redis) id: Box<str>,
}

/// The slots in which a node confirms no lease because of one former master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct PausedSlots {
    /// The former master.
    pub(in crate::store::redis) process: FormerProcess,
    pub(in crate::store::redis) slots: Vec<u16>,
}

/// The eras in which one node may grant.
#[derive(Debug)]
pub(in crate::store::redis) struct SlotEras {
    slots: Mutex<Vec<Slot>>,
    wanted: Mutex<BTreeSet<u16>>,
    work: Notify,
    settled: watch::Sender<()>,
}

impl Learnt {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            of_slots: Mutex::new(vec![None; SLOTS.into()]),
            doubted: Mutex::default(),
        }
    }

    /// For the decision on a slot.
    pub(super) fn known(&self, slot: u16, key: Option<&DeploymentKey>) -> Known {
        let learnt = self.of(slot);
        Known {
            bounds: learnt.map(|(bounds, _)| bounds),
            no_grants_before_ms: learnt.map_or(0, |(_, ms)| ms),
            key: key.cloned(),
            doubted: self.doubted().get(&slot).cloned(),
        }
    }

    /// Whichever era of these slots is in force: locks may have been lost in it.
    pub(in crate::store::redis) fn doubt(&self, eras: Vec<SlotEra>) {
        let by_slot = eras.into_iter().map(|era| (era.slot, era.id));
        self.doubted().extend(by_slot);
    }

    /// Whether there was ever an era.
    pub(super) fn is_known(&self, slot: u16) -> bool {
        self.of(slot).is_some()
    }

    pub(super) fn remember(&self, slot: u16, era: &Era) {
        let mut all = self.all();
        let learnt = &mut all[usize::from(slot)];
        let (bounds, ms) = learnt.unwrap_or((era.bounds, 0));
        *learnt = Some((bounds.max(era.bounds), ms.max(era.no_grants_before_ms)));
    }

    fn of(&self, slot: u16) -> Option<(EraBounds, u64)> {
        self.all()[usize::from(slot)]
    }

    fn all(&self) -> MutexGuard<'_, Vec<Option<(EraBounds, u64)>>> {
        self.of_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubted(&self) -> MutexGuard<'_, HashMap<u16, Box<str>>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotEras {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            slots: Mutex::new(vec![Slot::Unseen; SLOTS.into()]),
            wanted: Mutex::default(),
            work: Notify::new(),
            settled: watch::Sender::new(()),
        }
    }

    /// The era in which the node may be asked for grants; nothing if there is none soon.
    pub(in crate::store::redis) async fn id(&self, slot: u16) -> Box<str> {
        let mut settled = self.settled.subscribe();
        let settle = async {
            loop {
                match self.slots()[usize::from(slot)].clone() {
                    Slot::Settled(settled) => return settled.id,
                    Slot::Moving | Slot::Stuck => return Box::default(),
                    Slot::Unseen | Slot::Unused => {}
                }
                self.want(slot);
                if settled.changed().await.is_err() {
                    return Box::default();
                }
            }
        };
        timeout(SETTLED_WITHIN, settle).await.unwrap_or_default()
    }

    /// The era in which the node may confirm leases. Nothing where the slot is on its way: then no other master
    /// has taken it over.
    ///
    /// # Errors
    /// While the former master of the slot may take writes, or nobody has looked whether there is one.
    pub(in crate::store::redis) async fn id_to_confirm_in(
        &self,
        slot: u16,
    ) -> Result<Box<str>, StoreError> {
        if self.slots()[usize::from(slot)] == Slot::Unseen {
            self.id(slot).await;
        }
        match &self.slots()[usize::from(slot)] {
            Slot::Unseen | Slot::Stuck => Err(StoreError::Recovering {
                retry_after_ms: CONFIRMED_AFTER_MS,
            }),
            Slot::Settled(settled) => match &settled.pause {
                Some(pause) if pause.left().is_some() => Err(pause.refusal()),
                Some(_) | None => Ok(settled.id.clone()),
            },
            Slot::Unused | Slot::Moving => Ok(Box::default()),
        }
    }

    /// Returns the slots in which no lease is confirmed now, grouped by former master.
    pub(in crate::store::redis) fn paused(&self) -> Vec<PausedSlots> {
        let mut paused: Vec<PausedSlots> = Vec::new();
        for (slot, state) in (0..SLOTS).zip(self.slots().iter_mut()) {
            let Slot::Settled(settled) = state else {
                continue;
            };
            settled.pause = settled.pause.take().filter(|pause| pause.left().is_some());
            let Some(pause) = &settled.pause else {
                continue;
            };
            match paused
                .iter_mut()
                .find(|group| group.process == *pause.process())
            {
                Some(group) => group.slots.push(slot),
                None => paused.push(PausedSlots {
                    process: pause.process().clone(),
                    slots: vec![slot],
                }),
            }
        }
        paused
    }

    /// The former master of these slots is known to have stopped.
    pub(in crate::store::redis) fn end_pause(&self, slots: &[u16]) {
        let mut all = self.slots();
        for &slot in slots {
            if let Slot::Settled(settled) = &mut all[usize::from(slot)] {
                settled.pause = None;
            }
        }
    }

    /// Returns all eras in which the node grants.
    pub(in crate::store::redis) fn all_settled(&self) -> Vec<SlotEra> {
        let slots = self.slots();
        let settled = (0..SLOTS)
            .zip(slots.iter())
            .filter_map(|(slot, state)| match state {
                Slot::Settled(settled) => Some(SlotEra {
                    slot,
                    id: settled.id.clone(),
                }),
                Slot::Unseen | Slot::Unused | Slot::Moving | Slot::Stuck => None,
            });
        settled.collect()
    }

    /// A slot in whose era the node grants, other ones by turns.
    pub(in crate::store::redis) fn any_settled(&self, turn: u16) -> Option<u16> {
        let slots = self.slots();
        let by_turns = (0..SLOTS).map(|at| (at + turn % SLOTS) % SLOTS);
        by_turns
            .into_iter()
            .find(|&slot| matches!(slots[usize::from(slot)], Slot::Settled(_)))
    }

    /// The era that the node has of a slot is not that of the store: it is settled again. If there
    /// is none at all, the server may have lost all that it had.
    pub(in crate::store::redis) fn doubt(&self, slot: u16, is_lost: bool) {
        let mut slots = self.slots();
        for (at, state) in slots.iter_mut().enumerate() {
            let is_it = at == usize::from(slot);
            if is_it || is_lost && matches!(state, Slot::Settled(_)) {
                *state = Slot::Unseen;
            }
        }
        drop(slots);
        self.want(slot);
    }

    /// Whether the store holds what the node has of a slot; doubts it if not.
    pub(in crate::store::redis) fn compare(&self, slot: u16, stored: Option<&str>) {
        let stored = stored.map(|era| era.split('|').next().unwrap_or_default());
        let is_same = match &self.slots()[usize::from(slot)] {
            Slot::Settled(settled) => stored == Some(&*settled.id),
            Slot::Unseen | Slot::Unused | Slot::Moving | Slot::Stuck => true,
        };
        if !is_same {
            self.doubt(slot, stored.is_none());
        }
    }

    /// Resolves when slots are asked for.
    pub(super) async fn asked(&self) {
        self.work.notified().await;
    }

    /// Forgets what is not the node's any more.
    pub(super) fn keep_only(&self, mine: &BTreeSet<u16>) {
        for (slot, state) in (0..SLOTS).zip(self.slots().iter_mut()) {
            if !mine.contains(&slot) {
                *state = Slot::Unseen;
            }
        }
    }

    /// What to settle next of the node's slots, at most so many: those that calls wait for, or
    /// those that nobody has looked at.
    pub(super) fn next(&self, mine: &BTreeSet<u16>, most: usize) -> (Vec<u16>, bool) {
        let wanted = std::mem::take(&mut *self.wanted());
        if !wanted.is_empty() {
            let (ours, others): (Vec<_>, Vec<_>) =
                wanted.into_iter().partition(|slot| mine.contains(slot));
            self.stuck(&others);
            self.tell();
            return (ours, true);
        }
        let slots = self.slots();
        let unseen = |slot: &&u16| slots[usize::from(**slot)] == Slot::Unseen;
        let unseen = mine.iter().filter(unseen).take(most).copied();
        (unseen.collect(), false)
    }

    /// The node's slots that could not be settled.
    pub(super) fn all_stuck(&self, mine: &BTreeSet<u16>) -> Vec<u16> {
        let slots = self.slots();
        let stuck = |slot: &&u16| matches!(slots[usize::from(**slot)], Slot::Moving | Slot::Stuck);
        mine.iter().filter(stuck).copied().collect()
    }

    pub(super) fn settle(&self, slot: u16, id: &str, pause: Option<Pause>) {
        let state = &mut self.slots()[usize::from(slot)];
        *state = Slot::Settled(Settled {
            id: id.into(),
            pause,
        });
    }

    pub(super) fn unused(&self, slot: u16) {
        self.slots()[usize::from(slot)] = Slot::Unused;
    }

    pub(super) fn moving(&self, moving: &[u16]) {
        for &slot in moving {
            self.slots()[usize::from(slot)] = Slot::Moving;
        }
    }

    pub(super) fn stuck(&self, stuck: &[u16]) {
        for &slot in stuck {
            self.slots()[usize::from(slot)] = Slot::Stuck;
        }
    }

    /// Tells those who wait that something changed.
    pub(super) fn tell(&self) {
        self.settled.send_replace(());
    }

    fn want(&self, slot: u16) {
        self.wanted().insert(slot);
        self.work.notify_one();
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine(slots: &[u16]) -> BTreeSet<u16> {
        slots.iter().copied().collect()
    }

    #[tokio::test]
    async fn a_call_waits_until_its_slot_is_settled_or_stuck() {
        let eras = SlotEras::new();
        assert_eq!(&*eras.id(7).await, "", "nobody settles");
        assert_eq!(eras.next(&mine(&[5, 7]), 9), (vec![7], true));
        assert_eq!(eras.next(&mine(&[5, 7]), 1), (vec![5], false));
        let (id, ()) = tokio::join!(eras.id(7), async {
            eras.asked().await;
            eras.settle(7, "era", None);
            eras.tell();
        });
        assert_eq!(&*id, "era");
        eras.stuck(&[7]);
        assert_eq!(&*eras.id(7).await, "");
    }

    #[test]
    fn a_lost_era_puts_all_slots_in_doubt_and_a_changed_era_only_its_own_slot() {
        let eras = SlotEras::new();
        let all = mine(&[1, 2, 3]);
        let settle = || all.iter().for_each(|&slot| eras.settle(slot, "one", None));
        settle();
        eras.compare(2, Some("one|0|"));
        assert_eq!(eras.next(&all, 9), (vec![], false));
        eras.compare(2, Some("other|0|"));
        assert_eq!(eras.next(&all, 9), (vec![2], true));
        assert_eq!(eras.next(&all, 9), (vec![2], false));
        settle();
        eras.compare(2, None);
        assert_eq!(eras.next(&all, 9), (vec![2], true));
        assert_eq!(eras.next(&all, 9), (vec![1, 2, 3], false));
        settle();
        eras.keep_only(&mine(&[1]));
        assert_eq!(eras.next(&all, 9), (vec![2, 3], false));
        assert_eq!(
            (eras.any_settled(0), eras.any_settled(2)),
            (Some(1), Some(1))
        );
    }

    #[test]
    fn slots_of_others_are_not_settled() {
        let eras = SlotEras::new();
        eras.doubt(4, false);
        assert_eq!(eras.next(&mine(&[5]), 9), (vec![], true));
        assert_eq!(eras.all_stuck(&mine(&[4, 5])), [4]);
    }
}
