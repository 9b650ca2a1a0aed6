//! Which locks change, gathered for all browsers together: one ear at the store, two beats a second at most, and
//! only while somebody listens.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    broker::{
        Broker,
        watch::{News, Watch},
    },
    lock::LockKey,
};

/// Between two beats.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// Locks that one beat names; a beat of more is of all.
const NAMED_MOST: usize = 256;
/// How often an ear without news looks whether anybody is left who listens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Until a store that has told nothing is asked again to do so.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What has changed since the beat before.
#[derive(Debug, Default)]
pub(super) struct Beat {
    number: u64,
    locks: HashSet<LockKey>,
    /// More than could be named, or something that was missed.
    is_of_all: bool,
}

/// The one ear, and those who listen to it.
#[derive(Clone)]
pub(super) struct Pulse {
    beats: watch::Sender<Arc<Beat>>,
    is_beating: Arc<Mutex<bool>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Pulse {
    pub(super) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            beats: watch::Sender::default(),
            is_beating: Arc::default(),
            tasks,
            stop,
        }
    }

    /// All beats from now on. Returns once the store tells, or cannot.
    pub(super) async fn listen(&self, broker: &Broker) -> watch::Receiver<Arc<Beat>> {
        let beats = self.beats.subscribe();
        let mut is_beating = self.is_beating.lock().await;
        if !std::mem::replace(&mut *is_beating, true) {
            // A store without watches, or out of reach, leaves browsers with the time that passes.
            let watch = broker.watch_uncounted().await.ok();
            let beat = self.clone().beat(broker.clone(), watch);
            self.tasks
                .spawn(self.stop.clone().run_until_cancelled_owned(beat));
        }
        beats
    }

    async fn beat(self, broker: Broker, mut watch: Option<Watch>) {
        let mut last = Instant::now();
        while !broker.is_draining() && !self.is_left().await {
            let Some(ear) = &mut watch else {
                sleep(ASK_AGAIN).await;
                watch = broker.watch_uncounted().await.ok();
                continue;
            };
            match timeout_at(Instant::now() + LOOK_EVERY, ear.next()).await {
                Ok(Some(news)) => {
                    let beat = gather(ear, news, last + BEAT).await;
                    last = Instant::now();
                    self.beats.send_modify(|beats| {
                        let number = beats.number + 1;
                        *beats = Arc::new(Beat { number, ..beat });
                    });
                }
                Ok(None) => watch = None,
                Err(_) => {}
            }
        }
        *self.is_beating.lock().await = false;
    }

    /// Whether nobody listens any more. Who comes now finds it so, and begins anew.
    async fn is_left(&self) -> bool {
        let mut is_beating = self.is_beating.lock().await;
        *is_beating = self.beats.receiver_count() > 0;
        !*is_beating
    }
}

/// The first news with all that follow until then.
async fn gather(ear: &mut Watch, first: News, until: Instant) -> Beat {
    let mut beat = Beat::default();
    beat.add(first);
    while let Ok(Some(news)) = timeout_at(until, ear.next()).await {
        beat.add(news);
    }
    beat
}

impl Beat {
    fn add(&mut self, news: News) {
        match news {
            News::Changed(lock, _) if self.locks.len() < NAMED_MOST => {
                self.locks.insert(lock);
            }
            News::Changed(..) | News::Gap => self.is_of_all = true,
        }
    }

    /// Whether a lock of those that are meant may have changed since the beat of that number.
    pub(super) fn concerns(&self, after: u64, is_meant: impl Fn(&LockKey) -> bool) -> bool {
        let has_missed = self.number > after + 1;
        has_missed || self.is_of_all || self.locks.iter().any(is_meant)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{Mode, Owner},
        store::{Change, ChangeKind, stub::lock},
    };

    #[test]
    fn a_beat_of_too_many_locks_is_of_all() {
        let change = Arc::new(Change {
            kind: ChangeKind::Released,
            lease_id: None,
            owner: Owner::default(),
            mode: Mode::Exclusive,
            fencing_token: 0,
            since_ms: 0,
            remaining_ms: 0,
        });
        let changed = |number: usize| News::Changed(lock(&number.to_string()), change.clone());
        let (mut beat, other) = (Beat::default(), lock("other"));
        (0..NAMED_MOST).for_each(|number| beat.add(changed(number)));
        assert!(!beat.concerns(0, |lock| *lock == other));
        beat.add(changed(NAMED_MOST));
        assert!(beat.concerns(0, |lock| *lock == other));
        assert_eq!(beat.locks.len(), NAMED_MOST);
    }
}
