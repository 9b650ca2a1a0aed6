//! Random calls of the Rust client behind connections that are cut, each dropped at a random moment.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::{Client, Error, Guard, Held, Lock, ReleaseError, RunError};
use rand::{Rng, seq::index::sample};
use tokio::{runtime::Builder, sync::oneshot, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    sdk_cut::Cut,
    sdk_site::Site,
    sdk_stay::{Register, lock_name},
};

/// The store's expiry is then longer than the 6 s for which the wait of a broken stream keeps its
/// place.
pub const TTL: Duration = Duration::from_secs(5);
/// Locks that many want.
pub const CONTENDED: usize = 12;
/// Those, and locks that hardly two want at once.
pub const LOCKS: usize = CONTENDED + FREE;
/// Locks that somebody else holds all the time.
pub const HELD: usize = 2;

const FREE: usize = 200;
const SITES: usize = 4;
const WAIT: Duration = Duration::from_secs(10);
const WAIT_UNDER: Duration = Duration::from_millis(100);
const WORK_US: u64 = 2_000;
const CUT_EVERY_MS: Range<u64> = 200..1_000;

/// What became of the futures.
#[derive(Debug, Default)]
pub struct Tally {
    /// Dropped before they were ready.
    pub cut: AtomicUsize,
    /// Ready first.
    pub ready: AtomicUsize,
    /// Of those, the calls that found the lock held.
    pub busy: AtomicUsize,
    /// The calls that no broker could answer.
    pub unavailable: AtomicUsize,
    /// The calls and releases whose lease was over.
    pub lost: AtomicUsize,
}

impl Tally {
    /// The count at this moment.
    #[must_use]
    pub fn get(count: &AtomicUsize) -> usize {
        count.load(Ordering::SeqCst)
    }

    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts what a future gave; `None`: it was cut.
    fn of<T>(&self, done: Option<T>) -> Option<T> {
        let count = if done.is_some() {
            &self.ready
        } else {
            &self.cut
        };
        Self::add(count);
        done
    }

    fn guard(&self, done: Option<Result<Guard, Error>>) -> Option<Guard> {
        let done = self.of(done)?;
        done.inspect_err(|error| self.error(error)).ok()
    }

    /// As calls may fail under cut connections.
    fn error(&self, error: &Error) {
        if matches!(error, Error::WaitTimeout(_) | Error::Held(_)) {
            Self::add(&self.busy);
        } else if matches!(error, Error::Unavailable(_)) {
            Self::add(&self.unavailable);
        } else {
            assert!(matches!(error, Error::LeaseLost(_)), "{error:?}");
            Self::add(&self.lost);
        }
    }

    fn release_error(&self, error: &ReleaseError) {
        assert!(!matches!(error, ReleaseError::Refused(_)), "{error:?}");
        Self::add(&self.lost);
    }
}

/// Where the calls are made.
#[derive(Debug)]
pub struct Scene {
    /// Sees every guard.
    pub register: Register,
    /// What became of the calls.
    pub tally: Tally,
    sites: Vec<Site>,
}

/// The name of a lock that somebody else holds.
#[must_use]
pub fn held_name(lock: usize) -> String {
    format!("held-{lock}")
}

/// Work of a random, short time.
pub async fn work() {
    let time = Duration::from_micros(rand::thread_rng().gen_range(0..WORK_US));
    sleep(time).await;
}

impl Scene {
    /// Clients of these brokers.
    pub async fn start(brokers: &[SocketAddr]) -> Self {
        let mut sites = Vec::new();
        for index in 0..SITES {
            sites.push(Site::start(&format!("site-{index}"), brokers, index % 2).await);
        }
        Self {
            register: Register::new(LOCKS),
            tally: Tally::default(),
            sites,
        }
    }

    /// Cuts connections until stopped; how many.
    pub async fn cut_connections(self: Arc<Self>, stop: CancellationToken) -> usize {
        let mut cut = 0;
        loop {
            let pause = rand::thread_rng().gen_range(CUT_EVERY_MS);
            tokio::select! {
                () = sleep(Duration::from_millis(pause)) => {}
                () = stop.cancelled() => return cut,
            }
            let site = rand::thread_rng().gen_range(0..SITES);
            cut += self.sites[site].cut().await;
        }
    }

    /// One call of any kind, and what is done with its guard.
    pub async fn step(self: &Arc<Self>) {
        let kind = rand::thread_rng().gen_range(0..12);
        match kind {
            0 => self.wait_in_vain().await,
            1 => self.try_it().await,
            2 | 3 => self.run().await,
            4 => self.beside_a_runtime().await,
            _ => self.take().await,
        }
    }

    fn client(&self) -> &Client {
        &self.sites[rand::thread_rng().gen_range(0..SITES)].client
    }

    /// A call for one lock or several.
    fn call(&self) -> (Lock, Vec<usize>) {
        let mut rng = rand::thread_rng();
        let (client, free) = (self.client(), CONTENDED + rng.gen_range(0..FREE));
        let locks = match rng.gen_range(0..4) {
            0 => vec![free],
            1 => {
                let some = rng.gen_range(1..=2);
                let contended = sample(&mut rng, CONTENDED, some).into_iter();
                contended.chain([free]).collect()
            }
            _ => vec![rng.gen_range(0..CONTENDED)],
        };
        let call = match locks.as_slice() {
            [one] => client.lock(lock_name(*one)),
            several => client.lock_all(several.iter().map(|lock| lock_name(*lock))),
        };
        let call = call.ttl(TTL).wait(WAIT);
        // Being told its place wakes a call more often.
        let call = if rng.gen_bool(0.5) {
            call.on_queue(|_| {})
        } else {
            call
        };
        (call, locks)
    }

    async fn take(&self) {
        let (call, locks) = self.call();
        let taken = Cut::random().apply(call.acquire()).await;
        let Some(guard) = self.tally.guard(taken) else {
            return;
        };
        let stay = self.register.enter(&guard, &locks);
        work().await;
        if rand::thread_rng().gen_bool(0.3) {
            self.add(&guard, &locks).await;
        }
        drop(stay);
        self.end(guard).await;
    }

    /// Adds a lock to the lease, or enters the first one again.
    async fn add(&self, guard: &Held, locks: &[usize]) {
        let other = CONTENDED + rand::thread_rng().gen_range(0..FREE);
        let is_entry = rand::thread_rng().gen_bool(0.3) || locks.contains(&other);
        let lock = if is_entry { locks[0] } else { other };
        // Any client will do: the call goes where the lease is.
        let call = self.client().lock(lock_name(lock)).under(guard);
        let added = Cut::random().apply(call.wait(WAIT_UNDER).acquire()).await;
        let Some(added) = self.tally.guard(added) else {
            return;
        };
        assert_eq!(added.lease_id(), guard.lease_id());
        if is_entry {
            let token = guard.fencing_token_of(lock_name(lock));
            assert_eq!(Some(added.fencing_token()), token, "entered, not taken");
            work().await;
        } else {
            let stay = self.register.enter_under(&added, &[lock]);
            work().await;
            drop(stay);
        }
        self.end(added).await;
    }

    async fn end(&self, guard: Guard) {
        let kind = rand::thread_rng().gen_range(0..4);
        match kind {
            0 => drop(guard),
            // Beside any runtime.
            1 => drop(thread::spawn(move || drop(guard))),
            _ => {
                let released = Cut::random().apply(guard.release()).await;
                if let Some(Err(error)) = self.tally.of(released) {
                    self.tally.release_error(&error);
                }
            }
        }
    }

    async fn try_it(&self) {
        let (call, locks) = self.call();
        let tried = call.attempts(3, Duration::from_millis(2)).try_acquire();
        let tried = self.tally.of(Cut::random().apply(tried).await);
        match tried {
            Some(Ok(Some(guard))) => {
                let stay = self.register.enter(&guard, &locks);
                work().await;
                drop(stay);
                self.end(guard).await;
            }
            Some(Err(error)) => self.tally.error(&error),
            Some(Ok(None)) | None => {}
        }
    }

    async fn run(&self) {
        let (call, locks) = self.call();
        let done = call.run(|held| async move {
            let stay = self.register.enter(&held, &locks);
            work().await;
            drop(stay);
        });
        let Some(Err(error)) = self.tally.of(Cut::random().apply(done).await) else {
            return;
        };
        if let RunError::Acquire(error) = &error {
            self.tally.error(error);
        } else if let RunError::Release(error) = &error {
            self.tally.release_error(error);
        } else {
            Tally::add(&self.tally.lost);
        }
    }

    /// A lock that is never free.
    async fn wait_in_vain(&self) {
        let lock = held_name(rand::thread_rng().gen_range(0..HELD));
        let call = self
            .client()
            .lock(lock)
            .ttl(TTL)
            .wait(WAIT)
            .on_queue(|_| {});
        let got = self.tally.guard(Cut::random().apply(call.acquire()).await);
        assert!(got.is_none(), "two have it");
    }

    /// Calls that end with the runtime of their caller, and a guard that is dropped after that.
    async fn beside_a_runtime(self: &Arc<Self>) {
        let (done, is_done) = oneshot::channel();
        let scene = Arc::clone(self);
        let caller = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let (call, _) = scene.call();
            drop(runtime.spawn(call.acquire()));
            let (call, locks) = scene.call();
            let taken = runtime.block_on(Cut::random().apply(call.acquire()));
            drop(runtime);
            // The call that the runtime took with it.
            Tally::add(&scene.tally.cut);
            if let Some(guard) = scene.tally.guard(taken) {
                drop(scene.register.enter(&guard, &locks));
                drop(guard);
            }
            drop(scene);
            done.send(()).expect("it is waited for");
        });
        is_done.await.expect("no panic");
        caller.join().expect("no panic");
    }
}
