//! Brings the slots of a node to eras of this server process: reads, decides, writes.

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
    eras::{Learnt, SlotEra, SlotEras},
    map::SlotMap,
    slot::{era_key, ranges},
    tally::{Due, Tally},
};
use crate::store::redis::{
    complaints::Complaints,
    connection::{Endpoint, NodeError},
    decide::{Decision, Found, decide},
    era::{Era, NotOurs, ServerIdentity},
    former::Pause,
    open::time_ms,
    place::Address,
    refusal::{Refusal, Then},
    script::Script,
    settle::{not_ours, own, refused},
};

static ERA: LazyLock<Script> = LazyLock::new(|| Script::new("era", include_str!("../lua/era.lua")));

/// So many at once, so that calls are not held up.
const BATCH: usize = 128;
/// Between batches that nobody waits for, and that only find what they should: a master with a third
/// of the slots is through in two seconds. What is used sooner is settled sooner.
const PAUSE: Duration = Duration::from_millis(50);
/// After one that found lost locks: all slots of a master begin to wait at the same time.
const PAUSE_LOST: Duration = Duration::from_millis(2);
/// How soon a slot that could not be settled is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often another broker may be faster before the slot is left for later.
const ROUNDS_MAX: usize = 8;

/// Whose slots are settled, and what is known of them.
#[derive(Clone)]
pub(in crate::store::redis) struct Slots {
    pub(super) map: watch::Receiver<Arc<SlotMap>>,
    pub(super) learnt: Arc<Learnt>,
    /// Wants the map read again.
    pub(super) reread: Arc<Notify>,
}

/// Settles the slots of one node.
pub(in crate::store::redis) struct Settler {
    slots: Slots,
    endpoint: Endpoint,
    client: Client,
    server: ServerIdentity,
    pub(in crate::store::redis) eras: Arc<SlotEras>,
    complaints: Complaints,
    /// All slots are settled again, since one had lost its era.
    is_losing: bool,
}

impl Slots {
    /// Locks may have been lost in these eras that their server does not know of.
    pub(in crate::store::redis) fn doubt(&self, eras: Vec<SlotEra>) {
        self.learnt.doubt(eras);
    }

    /// A slot of this master.
    pub(in crate::store::redis) fn first_of(&self, master: &Address) -> Option<u16> {
        self.map.borrow().slots_of(master).first().copied()
    }
}

impl Settler {
    /// For the node on this server, of which nothing is settled yet.
    pub(in crate::store::redis) fn new(
        slots: Slots,
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
            complaints: Complaints::default(),
            is_losing: false,
        }
    }

    /// Settles a few slots before the node serves: all that is wrong with the others, too, is
    /// noticed by them.
    pub(in crate::store::redis) async fn begin(&mut self) -> Result<(), NodeError> {
        ERA.load(&self.client)
            .await
            .map_err(|e| self.endpoint.unreachable(&e))?;
        let first: Vec<u16> = self.mine().into_iter().take(1).collect();
        self.settle(&first, true).await.map(drop)
    }

    /// Settles all slots, or says which it cannot.
    pub(super) async fn settle_all(&mut self) -> Result<(), NodeError> {
        let mine = self.mine();
        let slots: Vec<u16> = mine.iter().copied().collect();
        self.settle(&slots, true).await?;
        let stuck = self.eras.all_stuck(&mine);
        if stuck.is_empty() {
            return Ok(());
        }
        Err(NodeError::Unreachable(format!(
            "{} has slots of which the eras cannot be written: {}. See whether they are on their \
             way to another master.",
            self.endpoint.name(),
            ranges(stuck)
        )))
    }

    /// Reads all eras, and says why no broker could serve with them.
    pub(super) async fn check_all(&mut self) -> Result<(), NodeError> {
        let slots: Vec<u16> = self.mine().into_iter().collect();
        for batch in slots.chunks(BATCH) {
            self.read(batch, false, &mut Tally::default()).await?;
        }
        Ok(())
    }

    /// Settles what calls wait for, then all the rest, whenever there is something to do. Ends with
    /// the reason why the node must.
    pub(in crate::store::redis) async fn run(mut self) -> String {
        let mut tried = Instant::now();
        let mut mine = self.mine();
        loop {
            if self.slots.map.has_changed().unwrap_or(false) {
                mine = self.mine();
                self.eras.keep_only(&mine);
            }
            let (mut batch, is_urgent) = self.eras.next(&mine, BATCH);
            if batch.is_empty() && !is_urgent {
                self.is_losing = false;
                if tried.elapsed() >= AGAIN {
                    batch = self.eras.all_stuck(&mine);
                    tried = Instant::now();
                }
            }
            let settled = self.settle(&batch, is_urgent).await;
            if let Err(NodeError::Unfit(problems)) = settled {
                return problems.join(" ");
            }
            let rest = match (batch.is_empty(), is_urgent, settled) {
                (true, false, _) => AGAIN,
                (_, true, _) => Duration::ZERO,
                (false, false, Ok(true)) => PAUSE_LOST,
                (false, false, Ok(false) | Err(_)) => PAUSE,
            };
            let changed = self.slots.map.changed();
            select! {
                () = self.eras.asked() => {}
                Ok(()) = changed => self.slots.map.mark_changed(),
                () = sleep(rest) => {}
            }
        }
    }

    fn mine(&mut self) -> BTreeSet<u16> {
        let map = Arc::clone(&self.slots.map.borrow_and_update());
        map.slots_of(&self.endpoint.address).into_iter().collect()
    }

    /// `must_have`: eras are written for new slots of a cluster that is trusted to be new, too. What
    /// fails is tried again later, unless somebody has to change something. True if some slots wait
    /// now.
    async fn settle(&mut self, slots: &[u16], must_have: bool) -> Result<bool, NodeError> {
        let mut do_wait = false;
        for batch in slots.chunks(BATCH) {
            let tally = match self.settle_batch(batch.to_vec(), must_have).await {
                Ok(tally) => tally,
                Err(error) => {
                    self.eras.stuck(batch);
                    self.eras.tell();
                    return Err(error);
                }
            };
            self.eras.moving(&tally.elsewhere);
            self.eras.stuck(&tally.failed);
            self.eras.tell();
            tally.log(&self.endpoint.name(), &self.complaints);
            do_wait |= !tally.waiting.is_empty();
            // The rest that was settled before may be lost with it.
            if tally.is_lost && !self.is_losing {
                self.is_losing = true;
                self.eras.doubt(batch[0], true);
            }
            if !tally.elsewhere.is_empty() {
                self.slots.reread.notify_one();
            }
        }
        Ok(do_wait)
    }

    async fn settle_batch(&self, slots: Vec<u16>, must_have: bool) -> Result<Tally, NodeError> {
        let (mut left, mut tally) = (slots, Tally::default());
        for _ in 0..ROUNDS_MAX {
            let due = self.read(&left, must_have, &mut tally).await?;
            if due.is_empty() {
                return Ok(tally);
            }
            left = self.write(due, &mut tally).await?;
            if left.is_empty() {
                return Ok(tally);
            }
        }
        tally.failed.append(&mut left);
        "its eras change faster than this broker can follow".clone_into(&mut tally.why);
        Ok(tally)
    }

    /// Adopts what can be; returns what must be written.
    async fn read(
        &self,
        slots: &[u16],
        must_have: bool,
        tally: &mut Tally,
    ) -> Result<Vec<Due>, NodeError> {
        let config = &self.endpoint.config;
        let pipeline = self.client.pipeline();
        for &slot in slots {
            let key = era_key(&config.key_prefix, slot);
            let queued: Result<(), Error> = pipeline.get(key).await;
            queued.map_err(|e| self.endpoint.unreachable(&e))?;
        }
        let replies = pipeline.try_all::<Option<String>>().await;
        let replies = self.whole(replies, slots.len())?;
        let mut due = Vec::new();
        let now_ms = time_ms(&self.client).await;
        let now_ms = now_ms.map_err(|e| self.endpoint.unreachable(&e))?;
        for (&slot, reply) in slots.iter().zip(replies) {
            let text = match reply {
                Ok(text) => text,
                Err(error) => {
                    tally.refused(slot, &error);
                    continue;
                }
            };
            let era = match text.as_deref().map(Era::parse).transpose() {
                Ok(era) => era,
                Err(NotOurs::Unreadable) => {
                    tally.failed.push(slot);
                    "it is no era of this version".clone_into(&mut tally.why);
                    continue;
                }
                Err(why @ NotOurs::OtherSchema(_)) => {
                    let key = era_key(&config.key_prefix, slot);
                    return Err(not_ours(&self.endpoint.name(), &why, &key));
                }
            };
            let is_known = self.slots.learnt.is_known(slot);
            if era.is_none() && config.trust_empty_store && !is_known && !must_have {
                self.eras.unused(slot);
                continue;
            }
            tally.is_lost |= era.is_none() && is_known;
            let was_moving = era.as_ref().is_some_and(|era| era.is_moving);
            let found = Found {
                has_stayed: was_moving && self.has_stayed(slot).await?,
                era,
                key: None,
            };
            let known = self
                .slots
                .learnt
                .known(slot, config.deployment_key.as_ref());
            match (
                decide(&found, &self.server, &own(config), &known),
                found.era,
            ) {
                (Decision::Adopt(_), Some(era)) => self.adopt(slot, &era, now_ms),
                (Decision::Adopt(_), None) => {}
                (Decision::Refuse(why), _) => return Err(refused(&self.endpoint, why)),
                (Decision::Write(write), _) => due.push(Due {
                    slot,
                    expected: text.unwrap_or_default(),
                    write,
                }),
            }
        }
        Ok(due)
    }

    /// Whether a slot is not on its way any more: the server then looks for a key that nobody has.
    async fn has_stayed(&self, slot: u16) -> Result<bool, NodeError> {
        let nobody_s = format!("{}-", era_key(&self.endpoint.config.key_prefix, slot));
        match self.client.get::<Option<String>, _>(nobody_s).await {
            Ok(_) => Ok(true),
            Err(error) if Refusal::of(&error).then == Then::Elsewhere => Ok(false),
            Err(error) => Err(self.endpoint.unreachable(&error)),
        }
    }

    /// Writes where the store still holds what was read; returns where another broker was faster.
    async fn write(&self, due: Vec<Due>, tally: &mut Tally) -> Result<Vec<u16>, NodeError> {
        let prefix = &self.endpoint.config.key_prefix;
        let commands = due.iter().map(|due| due.command(prefix)).collect();
        let replies = ERA.run_all(&self.client, commands).await;
        let replies = replies.map_err(|e| self.endpoint.unreachable(&e))?;
        let replies = self.whole(replies, due.len())?;
        let mut again = Vec::new();
        for (due, reply) in due.iter().zip(replies) {
            let reply = reply.and_then(<(u64, String, u64)>::from_value);
            match reply {
                Ok((1, text, now_ms)) => {
                    let Ok(era) = Era::parse(&text) else {
                        tally.failed.push(due.slot);
                        continue;
                    };
                    self.adopt(due.slot, &era, now_ms);
                    tally.wrote(due.slot, era.no_grants_before_ms.saturating_sub(now_ms));
                }
                Ok(_) => again.push(due.slot),
                Err(error) if Refusal::of(&error).then == Then::Load => {
                    let loaded = ERA.load(&self.client).await;
                    loaded.map_err(|e| self.endpoint.unreachable(&e))?;
                    again.push(due.slot);
                }
                Err(error) => tally.refused(due.slot, &error),
            }
        }
        Ok(again)
    }

    fn adopt(&self, slot: u16, era: &Era, now_ms: u64) {
        self.slots.learnt.remember(slot, era);
        self.eras.settle(slot, &era.id, Pause::of(era, now_ms));
    }

    /// A pipeline that broke has one error for all.
    fn whole<T>(
        &self,
        mut replies: Vec<Result<T, Error>>,
        count: usize,
    ) -> Result<Vec<Result<T, Error>>, NodeError> {
        if replies.len() == count {
            return Ok(replies);
        }
        Err(match replies.pop() {
            Some(Err(error)) => self.endpoint.unreachable(&error),
            Some(Ok(_)) | None => {
                NodeError::Unreachable(format!("{} answers too little.", self.endpoint.name()))
            }
        })
    }
}
