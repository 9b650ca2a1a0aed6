//! One verified Redis server process, and the scripts that run on it.

mod clock;
mod looks;

use std::{
    sync::{
        Arc, LazyLock, Mutex as StdMutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use fred::{clients::Client, error::Error, interfaces::PubsubInterface as _, types::Value};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use self::clock::Clock;
use super::{
    batches::Batches,
    clocks::Reading,
    cluster::{eras::SlotEras, redirect::Redirect, shards::Shards, slot},
    complaints::Complaints,
    connection::{Endpoint, plain},
    era::{Era, ServerIdentity},
    former::Pause,
    gate::Gate,
    refusal::{Refusal, Then, Told},
    script::Script,
    scripts::Command,
    silence::LastAnswer,
    traced::traced,
};
use crate::{
    lock::{DeploymentKey, NOT_AFTER_MS},
    store::{HandOff, StoreError},
};

static MOVE: LazyLock<Script> =
    LazyLock::new(|| Script::new("moving", include_str!("lua/moving.lua")));

/// What a node is made of, after verification.
pub(super) struct Verified {
    pub(super) endpoint: Endpoint,
    pub(super) client: Client,
    /// A second connection, on which nobody waits for a lock.
    pub(super) looks: Client,
    pub(super) scripts: Arc<[Script]>,
    pub(super) server: ServerIdentity,
    pub(super) eras: Eras,
    pub(super) key: DeploymentKey,
    pub(super) time: Reading,
    /// Why it confirms no lease at first; in a cluster each slot has its own.
    pub(super) pause: Option<Pause>,
    /// Another server may take its place.
    pub(super) may_be_replaced: bool,
    /// What answers wait for.
    pub(super) gate: Option<Gate>,
    /// The sharded channels that are listened to.
    pub(super) shards: Option<Shards>,
}

/// In which era a node grants.
pub(super) enum Eras {
    /// In one.
    One(Era),
    /// In a cluster each slot has its own, and locks may be elsewhere.
    Slots(Arc<SlotEras>),
}

/// How a script is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// At once, after all that was sent before.
    Plain,
    /// With others that wait, if many are under way: what is asked later may be run before it.
    Along,
    /// On a server to which the lock's slot is on its way.
    Asking,
}

/// Why a script has no reply.
#[derive(Debug)]
pub(super) enum Missed {
    /// It was not executed: another server of the cluster has the lock.
    Elsewhere(Redirect),
    Failed(StoreError),
}

/// One verified Redis server process. It ends when its connections break, when it stops answering,
/// or when it turns out to be another server or another era than the verified one.
pub struct Node {
    verified: Verified,
    batches: Arc<Batches>,
    clock: Clock,
    /// The last quick one.
    time: StdMutex<Reading>,
    pause: StdMutex<Option<Pause>>,
    last_answer: LastAnswer,
    may_be_replaced: AtomicBool,
    /// Which slot's era is looked at next.
    turn: AtomicU16,
    /// How often forgotten scripts were loaded again; locked while they are.
    reloading: Mutex<()>,
    reloads: AtomicU64,
    /// Locked by the list that looks.
    looking: Mutex<()>,
    complaints: Complaints,
    ended: CancellationToken,
    why: OnceLock<String>,
}

impl Node {
    pub(super) fn new(mut verified: Verified, last_answer: LastAnswer) -> Self {
        Self {
            clock: Clock::starting_at(verified.time.now_ms),
            time: StdMutex::new(verified.time),
            pause: StdMutex::new(verified.pause.take()),
            last_answer,
            may_be_replaced: AtomicBool::new(verified.may_be_replaced),
            turn: AtomicU16::new(0),
            batches: Arc::default(),
            verified,
            reloading: Mutex::default(),
            reloads: AtomicU64::new(0),
            looking: Mutex::default(),
            complaints: Complaints::default(),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
        }
    }

    /// Runs a script once, with what `command` makes when it is sent. After `Unavailable` it may or
    /// may not have been executed.
    pub async fn eval(
        &self,
        script: &Script,
        command: impl Fn() -> Command,
    ) -> Result<Value, StoreError> {
        let value = self.try_eval(script, Way::Plain, command).await;
        value.map_err(StoreError::from)
    }

    /// `eval`, where another server of a cluster may have the lock.
    pub(super) async fn try_eval(
        &self,
        script: &Script,
        way: Way,
        command: impl Fn() -> Command,
    ) -> Result<Value, Missed> {
        let run = self.run(script, way, command);
        traced(script.name(), self, run).await
    }

    async fn run(
        &self,
        script: &Script,
        way: Way,
        command: impl Fn() -> Command,
    ) -> Result<Value, Missed> {
        if let Some(why) = self.why.get() {
            return Err(Missed::Failed(StoreError::NotNow(why.clone())));
        }
        if let Some(silent) = self.last_answer.silent() {
            return Err(Missed::Failed(StoreError::NotNow(self.was_silent(silent))));
        }
        let client = &self.verified.client;
        let run = async || match way {
            Way::Plain => script.run(client, command()).await,
            Way::Along => script.run_along(&self.batches, client, command()).await,
            Way::Asking => Box::pin(script.run_asking(client, command())).await,
        };
        let reloads = self.reloads.load(Ordering::Acquire);
        let result = match run().await {
            Err(error) if Refusal::of(&error).then == Then::Load => {
                match Box::pin(self.reload_scripts(reloads)).await {
                    Ok(()) => run().await,
                    Err(error) => Err(error),
                }
            }
            result => result,
        };
        if result.is_ok()
            && let Some(why) = self.answers()
        {
            return Err(Missed::Failed(StoreError::Unavailable(why)));
        }
        result.map_err(|error| {
            let refusal = Refusal::of(&error);
            let redirect = Redirect::of(&error, &self.verified.endpoint.address);
            if let (Eras::Slots(_), Some(redirect)) = (&self.verified.eras, redirect) {
                return Missed::Elsewhere(redirect);
            }
            let text = format!("{}: {}", script.name(), plain(&error));
            match refusal.then {
                Then::End | Then::Elsewhere => self.condemn(&refusal.why(&text)),
                Then::Load | Then::Keep | Then::Doubt => self.complain(refusal, &text, &command),
            }
            Missed::Failed(refusal.store_error(text))
        })
    }

    /// The server answers. The node ends if it had not for long; why.
    pub(super) fn answers(&self) -> Option<String> {
        let silent = self.last_answer.renew()?;
        Some(self.was_silent(silent))
    }

    /// Whether another server may take its place, as far as was seen.
    pub(super) fn may_be_replaced(&self) -> bool {
        self.may_be_replaced.load(Ordering::Relaxed)
    }

    /// Replicas follow it.
    pub(super) fn has_replicas(&self) {
        self.may_be_replaced.store(true, Ordering::Relaxed);
    }

    fn was_silent(&self, silent: Duration) -> String {
        let why = format!(
            "no answer for {} ms: the server may have been replaced",
            silent.as_millis()
        );
        self.condemn(&why);
        why
    }

    /// When the server last answered: see [`LastAnswer`].
    pub(super) fn last_answer_ms(&self) -> u64 {
        self.last_answer.ms()
    }

    /// Why it confirms no lease now, and until when at most; in a cluster each slot has its own.
    pub(super) fn pause(&self) -> Option<Pause> {
        let pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        pause.clone().filter(|pause| pause.left().is_some())
    }

    /// From now on it confirms leases.
    pub(super) fn end_pause(&self) {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Marks the era of a slot that is on its way to another server, before a lock is sought there: should the
    /// slot stay, and what the other server had be lost, the lock is not granted here at once.
    pub(super) async fn mark_moving(&self, slot: u16) -> Result<(), StoreError> {
        let client = &self.verified.client;
        let key = slot::era_key(&self.verified.endpoint.config.key_prefix, slot);
        let mark = async || {
            let command = Command {
                keys: vec![key.clone()],
                args: Vec::new(),
            };
            MOVE.run(client, command).await
        };
        let marked = match mark().await {
            Err(error) if Refusal::of(&error).then == Then::Load => match MOVE.load(client).await {
                Ok(()) => mark().await,
                Err(error) => Err(error),
            },
            marked => marked,
        };
        match marked {
            Ok(_) => Ok(()),
            // The era is there already, and nothing is granted here without.
            Err(error) if Refusal::of(&error).then == Then::Elsewhere => Ok(()),
            Err(error) => Err(StoreError::NotNow(format!(
                "cannot mark the era of a moving slot: {}",
                plain(&error)
            ))),
        }
    }

    /// Sends a message to all who listen to a channel.
    pub(super) async fn publish(&self, channel: &str, message: &str) -> Result<(), StoreError> {
        let told = self.verified.client.publish(channel, message).await;
        told.map_err(|error| {
            let text = format!("publish: {}", plain(&error));
            Refusal::of(&error).store_error(text)
        })
    }

    /// Returns once as many replicas as configured have everything that was answered so far. After
    /// `Unavailable` that may come to be lost.
    pub async fn replicated(&self) -> Result<(), StoreError> {
        match &self.verified.gate {
            Some(gate) if !gate.passed().await => Err(StoreError::Unavailable(
                "too few replicas have it (store.wait_replicas)".to_owned(),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The same hand-offs; where replicas must have a grant, each is told only after it was claimed.
    pub(super) fn to_be_claimed(&self, mut hand_offs: Vec<HandOff>) -> Vec<HandOff> {
        for hand_off in &mut hand_offs {
            hand_off.provisional |= self.verified.gate.is_some();
        }
        hand_offs
    }

    /// Tells the log of what a command met, unless that was told a moment ago.
    pub fn complain(&self, refusal: Refusal, text: &str, command: &impl Fn() -> Command) {
        let Refusal { means, next, .. } = refusal;
        let address = self.name();
        match refusal.told {
            Told::Corrupt => {
                let key = command().keys.into_iter().next().unwrap_or_default();
                if let Some(untold) = self.complaints.due(means, &key) {
                    error!(answer = text, key, untold, "{address} {means}. {next}.");
                }
            }
            Told::Unavailable | Told::Full => {
                if let Some(untold) = self.complaints.due(means, "") {
                    warn!(answer = text, untold, "{address} {means}. {next}.");
                }
            }
        }
    }

    /// The era in which this node may be asked for grants; in a cluster there is none for all.
    pub fn era(&self) -> Option<&Era> {
        match &self.verified.eras {
            Eras::One(era) => Some(era),
            Eras::Slots(_) => None,
        }
    }

    /// Its id; nothing in a cluster.
    pub fn era_id(&self) -> &str {
        self.era().map_or("", |era| &era.id)
    }

    /// The eras of a node of a cluster.
    pub(super) fn slot_eras(&self) -> Option<&Arc<SlotEras>> {
        match &self.verified.eras {
            Eras::One(_) => None,
            Eras::Slots(eras) => Some(eras),
        }
    }

    /// The sharded channels that this node of a cluster listens to, where brokers do.
    pub(super) fn shards(&self) -> Option<&Shards> {
        self.verified.shards.as_ref()
    }

    /// The key of an era in which it grants, in a cluster that of another slot each time.
    pub(super) fn era_to_look_at(&self) -> Option<(String, Option<u16>)> {
        let config = &self.verified.endpoint.config;
        match &self.verified.eras {
            Eras::One(_) => Some((config.era_key(), None)),
            Eras::Slots(eras) => {
                let turn = self.turn.fetch_add(257, Ordering::Relaxed);
                let slot = eras.any_settled(turn)?;
                Some((slot::era_key(&config.key_prefix, slot), Some(slot)))
            }
        }
    }

    /// Whether it may keep locks although it may evict them.
    pub(super) fn allows_unsafe(&self) -> bool {
        self.verified.endpoint.config.allow_unsafe
    }

    /// The key of the deployment.
    pub fn deployment_key(&self) -> DeploymentKey {
        self.verified.key.clone()
    }

    /// The process, by a name that is new at every start.
    pub fn run_id(&self) -> &str {
        &self.verified.server.run_id
    }

    /// The server's clock, as far as it is known here, in microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// The Redis time after which a command sent now must not be executed any more.
    pub fn not_after_ms(&self) -> u64 {
        self.clock.now_ms() + NOT_AFTER_MS
    }

    /// Learns the time from a reply. Replies may be late, so they never set the estimate back.
    pub fn saw_time(&self, now_ms: u64) {
        self.clock.at_least(now_ms);
    }

    /// Ends the node: it is not what was verified. Only the first call counts.
    pub fn condemn(&self, why: &str) {
        if self.why.set(why.to_owned()).is_ok() {
            warn!("{} is lost: {why}", self.name());
            self.ended.cancel();
        }
    }

    /// Ends the node without complaint: the broker stops.
    pub(super) fn retire(&self) {
        if self.why.set("the broker stops".to_owned()).is_ok() {
            self.ended.cancel();
        }
    }

    /// Resolves when the node has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Whether it may be used: it ends if the server was silent for long.
    pub(super) fn is_usable(&self) -> bool {
        if let Some(silent) = self.last_answer.silent() {
            self.was_silent(silent);
        }
        !self.is_ended()
    }

    /// Whether the node has ended.
    pub fn is_ended(&self) -> bool {
        self.why.get().is_some()
    }

    pub(super) fn server(&self) -> &ServerIdentity {
        &self.verified.server
    }

    pub(super) fn client(&self) -> &Client {
        &self.verified.client
    }

    /// How the server is called in messages.
    pub(super) fn name(&self) -> String {
        self.verified.endpoint.name()
    }

    /// Learns the time from a reply known to be quick: the clock may have been set back.
    pub(super) fn set_time(&self, reading: Reading) {
        self.clock.set(reading.now_ms);
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }

    /// The last time that was learnt so.
    pub(super) fn time(&self) -> Reading {
        *self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the scripts, unless somebody has since they were loaded `seen` times: of the calls that
    /// find them missing together one loads them.
    async fn reload_scripts(&self, seen: u64) -> Result<(), Error> {
        let _alone = self.reloading.lock().await;
        if self.reloads.load(Ordering::Acquire) == seen {
            for script in self.verified.scripts.iter() {
                script.load(&self.verified.client).await?;
            }
            self.reloads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}
