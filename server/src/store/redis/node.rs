//! A verified Redis server process, and the execution of scripts on it.

mod inspection;

use std::{
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use fred::{clients::Client, error::Error, interfaces::PubsubInterface as _, types::Value};
use parking_lot::Mutex as SyncMutex;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{
    batcher::ScriptBatcher,
    clock::{Clock, ClockSample},
    cluster::{
        redirect::Redirect, sharded_subscriptions::ShardedSubscriptions, slot, slot_eras::SlotEras,
    },
    connection::{Endpoint, plain_message},
    era::{Era, ServerIdentity},
    error_table::{CallerError, ErrorClass, NodeAction},
    former_master::ConfirmationPause,
    log_throttle::LogThrottle,
    overload::OverloadDetector,
    replication_barrier::ReplicationBarrier,
    reply::ScriptReply,
    script::Script,
    scripts::{Command, Preamble, ScriptCall},
    silence::{LastReply, boot_ms, silence_over_limit},
};
use crate::{
    lock::{ActiveRecovery, COMMAND_DEADLINE_MS, DeploymentKey},
    store::{HandOff, StoreError},
    trace::Span,
};

static MARK_MOVING: LazyLock<Script> =
    LazyLock::new(|| Script::new("moving", include_str!("lua/moving.lua")));

/// The parts of a node after verification.
pub(super) struct VerifiedParts {
    pub(super) endpoint: Endpoint,
    pub(super) client: Client,
    /// A second connection, for listings and health checks. No caller that requests a lock waits
    /// for its commands.
    pub(super) inspect_client: Client,
    pub(super) scripts: Arc<[Script]>,
    pub(super) server: ServerIdentity,
    pub(super) eras: NodeEras,
    pub(super) key: DeploymentKey,
    pub(super) time: ClockSample,
    /// Reason why the node confirms no leases at first. In a cluster each slot has its own reason.
    pub(super) pause: Option<ConfirmationPause>,
    /// True if another server may replace this one.
    pub(super) may_be_replaced: bool,
    /// Delays replies until replicas have acknowledged the writes.
    pub(super) barrier: Option<ReplicationBarrier>,
    /// Subscriptions to sharded channels.
    pub(super) shards: Option<ShardedSubscriptions>,
}

/// The eras in which a node grants locks.
pub(super) enum NodeEras {
    /// The era of the store.
    One(Box<Era>),
    /// The eras of the slots of a cluster, whose locks may be on other nodes.
    Slots(Arc<SlotEras>),
}

/// Way in which a script is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecMode {
    /// At once, after all commands that were sent before.
    Plain,
    /// In a batch with other waiting commands if many are in flight. A later command may then run
    /// earlier.
    Batched,
    /// On a server to which the lock's slot is moving (`ASKING`).
    Asking,
}

/// Reason why a script has no reply.
#[derive(Debug)]
pub(super) enum ScriptError {
    /// The command was not executed, because another server of the cluster has the lock.
    Redirected(Redirect),
    /// The command was not executed, because the server had lost the scripts. They have been loaded
    /// again.
    Reloaded,
    Failed(StoreError),
}

/// A verified Redis server process. The node closes when its connections break, when the server
/// stops replying, or when the server or its era is not the verified one.
pub struct Node {
    verified: VerifiedParts,
    batches: Arc<ScriptBatcher>,
    overload: OverloadDetector,
    clock: Clock,
    /// The last clock sample with a short round trip.
    time: SyncMutex<ClockSample>,
    pause: SyncMutex<Option<ConfirmationPause>>,
    last_reply: LastReply,
    may_be_replaced: AtomicBool,
    /// Position from which the next slot is selected, whose era is checked.
    next_checked_slot: AtomicU16,
    /// Held while scripts are loaded again. `reloads` counts how often that was done.
    reload_permit: Mutex<()>,
    reloads: AtomicU64,
    /// Held by the listing that currently queries the server.
    list_permit: Mutex<()>,
    log_throttle: LogThrottle,
    closed: CancellationToken,
    end_reason: OnceLock<String>,
}

impl Node {
    pub(super) fn new(mut verified: VerifiedParts, last_reply: LastReply) -> Self {
        Self {
            clock: Clock::starting_at(verified.time.now_ms),
            time: SyncMutex::new(verified.time),
            pause: SyncMutex::new(verified.pause.take()),
            last_reply,
            may_be_replaced: AtomicBool::new(verified.may_be_replaced),
            next_checked_slot: AtomicU16::new(0),
            batches: Arc::default(),
            overload: OverloadDetector::new(),
            verified,
            reload_permit: Mutex::default(),
            reloads: AtomicU64::new(0),
            list_permit: Mutex::default(),
            log_throttle: LogThrottle::default(),
            closed: CancellationToken::new(),
            end_reason: OnceLock::new(),
        }
    }

    /// Runs a script. After `Unavailable` the script may or may not have been executed.
    pub async fn eval(&self, script: &Script, command: Command) -> Result<Value, StoreError> {
        let value = match self.run(script, ExecMode::Plain, command.clone()).await {
            Err(ScriptError::Reloaded) => self.run(script, ExecMode::Plain, command).await,
            value => value,
        };
        value.map_err(StoreError::from)
    }

    /// Runs a script like `eval`, where another server of a cluster may have the lock, and without
    /// repeating the command. If the current call is traced, the run has a span.
    pub(super) async fn run(
        &self,
        script: &Script,
        mode: ExecMode,
        command: Command,
    ) -> Result<Value, ScriptError> {
        if let Some(reason) = self.unusable_reason() {
            return Err(ScriptError::Failed(StoreError::NotExecuted(reason)));
        }
        let span = self.start_span(script);
        let _unanswered = self.overload.begin_command();
        let client = &self.verified.client;
        let key = command.keys.first().cloned();
        let reloads = self.reloads.load(Ordering::Acquire);
        let result = match mode {
            ExecMode::Plain => script.run(client, command).await,
            ExecMode::Batched => self.batches.run(client, script, command).await,
            ExecMode::Asking => Box::pin(script.run_asking(client, command)).await,
        };
        let result = match result {
            Ok(value) => match self.record_reply() {
                None => Ok(value),
                Some(reason) => Err(ScriptError::Failed(StoreError::Unavailable(reason))),
            },
            Err(error) if ErrorClass::classify(&error).action == NodeAction::ReloadScripts => {
                match Box::pin(self.reload_scripts(reloads)).await {
                    Ok(()) => Err(ScriptError::Reloaded),
                    Err(error) => Err(self.script_error(script, &error, key)),
                }
            }
            Err(error) => Err(self.script_error(script, &error, key)),
        };
        if let Err(ScriptError::Failed(error)) = &result {
            span.set_error(error.to_string());
        }
        span.end();
        result
    }

    /// Returns true if commands wait too long for a server that replies.
    pub(super) fn is_overloaded(&self) -> bool {
        self.overload.is_overloaded()
    }

    /// Starts a span for the run of a script if the current call is traced.
    fn start_span(&self, script: &Script) -> Span {
        let parent = Span::current();
        if !parent.is_recording() {
            return Span::default();
        }
        let span = parent.client_child(format!("redis {}", script.name()));
        span.set_attribute("db.system.name", "redis");
        span.set_attribute("db.operation.name", script.name().to_owned());
        span.set_attribute("server.address", self.name());
        span
    }

    /// Converts the error of a run. Logs it, or closes the node, as its class says.
    pub(super) fn script_error(
        &self,
        script: &Script,
        error: &Error,
        key: Option<String>,
    ) -> ScriptError {
        let class = ErrorClass::classify(error);
        let redirect = Redirect::from_error(error, &self.verified.endpoint.address);
        if let (NodeEras::Slots(_), Some(redirect)) = (&self.verified.eras, redirect) {
            return ScriptError::Redirected(redirect);
        }
        let text = format!("{}: {}", script.name(), plain_message(error));
        match class.action {
            NodeAction::Close | NodeAction::Redirect => self.fail(&class.description(&text)),
            NodeAction::ReloadScripts | NodeAction::Keep | NodeAction::ProbeDecides => {
                self.log_error(class, &text, &key.unwrap_or_default());
            }
        }
        ScriptError::Failed(class.store_error(text))
    }

    /// Records a reply of the server. If the server was silent for too long, closes the node and
    /// returns the reason.
    pub(super) fn record_reply(&self) -> Option<String> {
        self.overload.record_reply();
        let silent = self.last_reply.record(boot_ms())?;
        Some(self.was_silent(silent))
    }

    /// Returns true if another server may replace this one, as far as is known.
    pub(super) fn may_be_replaced(&self) -> bool {
        self.may_be_replaced.load(Ordering::Relaxed)
    }

    /// Records that the server has replicas.
    pub(super) fn has_replicas(&self) {
        self.may_be_replaced.store(true, Ordering::Relaxed);
    }

    fn was_silent(&self, silent: Duration) -> String {
        let reason = format!(
            "no answer for {} ms: the server may have been replaced",
            silent.as_millis()
        );
        self.fail(&reason);
        reason
    }

    /// Returns the time of the server's last reply: see [`LastReply`].
    pub(super) fn last_reply_ms(&self) -> u64 {
        self.last_reply.ms()
    }

    /// Returns the reason why the node confirms no leases now, with its latest end. In a cluster
    /// each slot has its own.
    pub(super) fn pause(&self) -> Option<ConfirmationPause> {
        let pause = self.pause.lock();
        pause.clone().filter(|pause| pause.remaining().is_some())
    }

    /// Ends the pause, so that the node confirms leases.
    pub(super) fn end_pause(&self) {
        *self.pause.lock() = None;
    }

    /// Marks the era of a slot that is moving to another server, before a lock is requested there.
    /// If the slot stays here and the data of the other server is lost, the lock is not granted
    /// here at once.
    pub(super) async fn mark_moving(&self, slot: u16) -> Result<(), StoreError> {
        let client = &self.verified.client;
        let key = slot::era_key(&self.verified.endpoint.config.key_prefix, slot);
        let mark = async || {
            let command = Command {
                keys: vec![key.clone()],
                args: Vec::new(),
            };
            MARK_MOVING.run(client, command).await
        };
        let marked = match mark().await {
            // The mark is too rare to be among the scripts that are loaded at the start.
            Err(error) if ErrorClass::classify(&error).action == NodeAction::ReloadScripts => {
                match MARK_MOVING.load(client).await {
                    Ok(()) => mark().await,
                    Err(error) => Err(error),
                }
            }
            marked => marked,
        };
        match marked {
            Ok(_) => Ok(()),
            // The era has already moved, and without an era nothing is granted here.
            Err(error) if ErrorClass::classify(&error).action == NodeAction::Redirect => Ok(()),
            Err(error) => Err(StoreError::NotExecuted(format!(
                "cannot mark the era of a moving slot: {}",
                plain_message(&error)
            ))),
        }
    }

    /// Publishes a message to all subscribers of a channel.
    pub(super) async fn publish(&self, channel: &str, message: &str) -> Result<(), StoreError> {
        let published = self.verified.client.publish(channel, message).await;
        published.map_err(|error| {
            let text = format!("publish: {}", plain_message(&error));
            ErrorClass::classify(&error).store_error(text)
        })
    }

    /// Waits until the configured number of replicas has acknowledged all replies so far. After
    /// `Unavailable` the acknowledged writes may be lost.
    pub async fn replicated(&self) -> Result<(), StoreError> {
        match &self.verified.barrier {
            Some(barrier) if !barrier.wait().await => Err(StoreError::Unavailable(
                "too few replicas have acknowledged the write (store.wait_replicas)".to_owned(),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Marks the hand-offs as provisional if replicas must acknowledge a grant, so that each is
    /// reported only after it was claimed.
    pub(super) fn mark_provisional(&self, mut hand_offs: Vec<HandOff>) -> Vec<HandOff> {
        for hand_off in &mut hand_offs {
            hand_off.is_provisional |= self.verified.barrier.is_some();
        }
        hand_offs
    }

    /// Decodes the reply of a call, and updates the estimated clock from it.
    ///
    /// # Errors
    /// [`StoreError::InvalidReply`] if the reply is malformed, which is logged.
    pub(in crate::store) fn decode_reply<T>(
        &self,
        call: &ScriptCall<T>,
        reply: Value,
        preamble: &Preamble<'_>,
    ) -> Result<ScriptReply<T>, StoreError> {
        let reply = call.decode(reply, preamble.broker).inspect_err(|error| {
            let key = preamble.key(call.lock());
            self.log_error(ErrorClass::UNEXPECTED_REPLY, &error.to_string(), &key);
        })?;
        self.observe_time(reply.now_ms);
        Ok(reply)
    }

    /// Logs an error of a command for `key`, unless the same error was logged within the last
    /// minute.
    pub fn log_error(&self, class: ErrorClass, text: &str, key: &str) {
        let ErrorClass {
            problem, advice, ..
        } = class;
        let address = self.name();
        match class.caller_error {
            CallerError::Corrupt => {
                if let Some(suppressed) = self.log_throttle.should_log(problem, key) {
                    error!(
                        answer = text,
                        key,
                        untold = suppressed,
                        "{address} {problem}. {advice}."
                    );
                }
            }
            CallerError::Unavailable | CallerError::Full => {
                if let Some(suppressed) = self.log_throttle.should_log(problem, "") {
                    warn!(
                        answer = text,
                        untold = suppressed,
                        "{address} {problem}. {advice}."
                    );
                }
            }
        }
    }

    /// Returns the era in which the node grants locks. `None` in a cluster, where each slot has an
    /// era.
    pub fn era(&self) -> Option<&Era> {
        match &self.verified.eras {
            NodeEras::One(era) => Some(era),
            NodeEras::Slots(_) => None,
        }
    }

    /// Returns the recovery of the store, if it is going on. `None` in a cluster.
    pub(super) fn recovery(&self) -> Option<ActiveRecovery> {
        self.era()?.recovery().active_at(self.now_us() / 1_000)
    }

    /// Returns the id of that era, which is empty in a cluster.
    pub fn era_id(&self) -> &str {
        self.era().map_or("", |era| &era.id)
    }

    /// Returns the eras of the slots, if this is a node of a cluster.
    pub(super) fn slot_eras(&self) -> Option<&Arc<SlotEras>> {
        match &self.verified.eras {
            NodeEras::One(_) => None,
            NodeEras::Slots(eras) => Some(eras),
        }
    }

    /// Returns the subscriptions to sharded channels, if the brokers of a cluster use them.
    pub(super) fn shards(&self) -> Option<&ShardedSubscriptions> {
        self.verified.shards.as_ref()
    }

    /// Returns the key of an era to check, in a cluster that of another slot with each call.
    pub(super) fn era_to_check(&self) -> Option<(String, Option<u16>)> {
        let config = &self.verified.endpoint.config;
        match &self.verified.eras {
            NodeEras::One(_) => Some((config.era_key(), None)),
            NodeEras::Slots(eras) => {
                let start = self.next_checked_slot.fetch_add(257, Ordering::Relaxed);
                let slot = eras.any_synced(start)?;
                Some((slot::era_key(&config.key_prefix, slot), Some(slot)))
            }
        }
    }

    /// Returns true if the store may be used although the server may evict locks.
    pub(super) fn allows_unsafe(&self) -> bool {
        self.verified.endpoint.config.allow_unsafe
    }

    pub fn deployment_key(&self) -> DeploymentKey {
        self.verified.key.clone()
    }

    /// Returns the run id of the server process, which changes with every restart.
    pub fn run_id(&self) -> &str {
        &self.verified.server.run_id
    }

    /// Returns the estimated time of the server's clock, in microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Returns the time of the server's clock after which a command sent now must not be executed.
    pub fn not_after_ms(&self) -> u64 {
        self.clock.now_ms() + COMMAND_DEADLINE_MS
    }

    /// Updates the estimated clock from a reply. Replies may be late, so they never set the
    /// estimate back.
    pub fn observe_time(&self, now_ms: u64) {
        self.clock.at_least(now_ms);
    }

    /// Closes the node, because it is not what was verified. Only the first call has an effect.
    pub fn fail(&self, reason: &str) {
        if self.end_reason.set(reason.to_owned()).is_ok() {
            warn!("{} is lost: {reason}", self.name());
            self.closed.cancel();
        }
    }

    /// Closes the node without a warning, because the broker stops.
    pub(super) fn close(&self) {
        if self.end_reason.set("the broker stops".to_owned()).is_ok() {
            self.closed.cancel();
        }
    }

    /// Waits until the node is closed.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Returns the reason why the node cannot be used, or `None`. Closes the node if the server was
    /// silent for too long.
    pub(super) fn unusable_reason(&self) -> Option<String> {
        if let Some(silent) = silence_over_limit(boot_ms(), self.last_reply.ms()) {
            self.was_silent(silent);
        }
        self.end_reason.get().cloned()
    }

    /// Returns true if the node is closed.
    pub fn is_closed(&self) -> bool {
        self.end_reason.get().is_some()
    }

    pub(super) fn server(&self) -> &ServerIdentity {
        &self.verified.server
    }

    pub(super) fn client(&self) -> &Client {
        &self.verified.client
    }

    /// Returns the name of the server for messages.
    pub(super) fn name(&self) -> String {
        self.verified.endpoint.name()
    }

    /// Sets the clock from a sample with a short round trip, also backwards: the server's clock may
    /// have been set back.
    pub(super) fn set_time(&self, reading: ClockSample) {
        self.clock.set(reading.now_ms);
        *self.time.lock() = reading;
    }

    /// Returns the last sample that set the clock.
    pub(super) fn time(&self) -> ClockSample {
        *self.time.lock()
    }

    /// Loads the scripts, unless another call has done so since `seen` was read. Of several calls
    /// that find the scripts missing, one loads them.
    async fn reload_scripts(&self, reloads_seen: u64) -> Result<(), Error> {
        let _permit = self.reload_permit.lock().await;
        if self.reloads.load(Ordering::Acquire) == reloads_seen {
            for script in self.verified.scripts.iter() {
                script.load(&self.verified.client).await?;
            }
            self.reloads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}
