//! Supervisor of a node: opens it, monitors it, and opens another node after it has closed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use fred::{clients::Client, interfaces::ClientLike as _};
use tokio::{
    select,
    sync::{broadcast::error::RecvError, oneshot, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use super::{
    cluster::slot_era_sync::SlotEraSync,
    connect::{NodeConnections, NodePlan, OpenedNode, Subscriber, check, open},
    connection::{Connection, ConnectionLost, Endpoint, NodeError, RedisConfig},
    era_decision::KnownState,
    former_master::end_pauses,
    health_check::{NodeFailure, monitor},
    largest_token::LargestToken,
    location::{MasterResolver, SentinelViewHandle},
    node::Node,
    replication_barrier::BarrierTask,
    script::Script,
    silence::SilenceCheck,
    span_keeper::{SpanKeeper, SpanUse},
    verify::ServerInfo,
};
use crate::{
    lock::FencingToken,
    store::{Assumption, StoreError},
};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Maximum delay between two attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Interval at which the settings of a server are checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// An event that a node reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// The payload of a message on the broker's channel.
    Message(Bytes),
    /// A new node serves, or messages arrived too fast. Earlier messages may have been lost.
    Ready,
    /// The new node is another server process than the previous one.
    Replaced,
    /// The server violated an assumption of the guarantees.
    AssumptionViolated(Assumption),
}

/// The pub/sub channels to which nodes subscribe.
#[derive(Debug, Clone)]
pub struct Channel {
    /// Name of the broker's channel.
    pub name: String,
    /// Name of the channel to which all brokers subscribe.
    pub shared_name: String,
    /// Capacity of fred's message buffer. Each slot costs 600 bytes, which are allocated at once.
    pub messages_max: usize,
}

/// The channels to which nodes subscribe, and the handler of their events.
pub struct Subscription {
    pub channel: Channel,
    /// Handler of events. It must not block.
    pub on_event: Box<dyn Fn(NodeEvent) + Send + Sync>,
}

/// The current node of a store, or of one master of a cluster.
pub struct Supervisor {
    current: watch::Receiver<Option<Arc<Node>>>,
    span_use: Arc<SpanUse>,
    largest_token: Arc<LargestToken>,
}

/// The parts of a supervisor.
pub(super) struct SupervisorConfig {
    pub(super) plan: NodePlan,
    pub(super) finder: MasterResolver,
    pub(super) on_event: Box<dyn Fn(NodeEvent) + Send + Sync>,
    pub(super) stop: CancellationToken,
}

struct SupervisorTask {
    parts: SupervisorConfig,
    known: KnownState,
    silence: SilenceCheck,
    current: watch::Sender<Option<Arc<Node>>>,
    last_warnings: Vec<String>,
    last_failure: Option<NodeError>,
    /// The run id of the process that served last.
    last_run_id: Option<String>,
}

impl Supervisor {
    /// Opens the first node. If the store cannot be reached and `wait_for_store` is set, keeps
    /// trying in the background.
    pub async fn start(
        config: RedisConfig,
        scripts: Arc<[Script]>,
        subscription: Subscription,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, NodeError> {
        let wait = config.wait_for_store;
        let span_use = Arc::new(SpanUse::default());
        let largest_token = Arc::new(LargestToken::default());
        let (mut task, current) = SupervisorTask::new(SupervisorConfig {
            finder: MasterResolver::new(&config),
            plan: NodePlan {
                config,
                scripts,
                processes: Arc::default(),
                channel: subscription.channel,
                slots: None,
                span_use: Arc::clone(&span_use),
                largest_token: Arc::clone(&largest_token),
            },
            on_event: subscription.on_event,
            stop,
        });
        let first = match task.open().await {
            Ok(opened) => Some(opened),
            Err(error @ NodeError::Unreachable(_)) if wait => {
                task.log_failure(error);
                None
            }
            Err(error) => return Err(error),
        };
        tasks.spawn(task.run(first));
        Ok(Self {
            current,
            span_use,
            largest_token,
        })
    }

    /// Opens the first node in the background, and sends the result to the receiver.
    pub(super) fn start_in_background(
        start: SupervisorConfig,
        tasks: &TaskTracker,
    ) -> (Self, oneshot::Receiver<Result<(), NodeError>>) {
        let span_use = Arc::clone(&start.plan.span_use);
        let largest_token = Arc::clone(&start.plan.largest_token);
        let (mut task, current) = SupervisorTask::new(start);
        let (opened, is_open) = oneshot::channel();
        tasks.spawn(async move {
            let stop = task.parts.stop.clone();
            let first = select! {
                () = stop.cancelled() => return,
                first = task.open() => first,
            };
            // Only the start of a store waits for the result.
            let (first, result) = match first {
                Ok(first) => (Some(first), Ok(())),
                Err(error) => {
                    task.log_failure(error.clone());
                    (None, Err(error))
                }
            };
            let _ = opened.send(result);
            task.run(first).await;
        });
        let supervisor = Self {
            current,
            span_use,
            largest_token,
        };
        (supervisor, is_open)
    }

    /// Records the span of a call or of a lease, for the limit of spans.
    pub(super) fn record_span(&self, span_ms: u64) {
        self.span_use.record(span_ms);
    }

    /// Records the token of a grant, for the floor of tokens of the next era.
    pub(super) fn record_token(&self, token: FencingToken) {
        self.largest_token.record(token);
    }

    /// Returns the node that serves now, if there is one.
    pub(super) fn current_node(&self) -> Option<Arc<Node>> {
        let current = self.current.borrow();
        let is_usable = |node: &&Arc<Node>| node.unusable_reason().is_none();
        current.as_ref().filter(is_usable).cloned()
    }

    /// Returns the current node. Waits for a node for at most `within`.
    pub async fn node(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        let serves = |node: &Option<Arc<Node>>| {
            node.as_ref()
                .is_some_and(|node| node.unusable_reason().is_none())
        };
        if let Some(node) = self.current_node() {
            return Ok(node);
        }
        let mut current = self.current.clone();
        let found = timeout(within, current.wait_for(serves)).await;
        match found {
            Ok(Ok(node)) => node.clone(),
            Ok(Err(_)) | Err(_) => None,
        }
        .ok_or_else(|| StoreError::NotExecuted("no verified connection".to_owned()))
    }
}

impl SupervisorTask {
    fn new(parts: SupervisorConfig) -> (Self, watch::Receiver<Option<Arc<Node>>>) {
        let (sender, current) = watch::channel(None);
        let task = Self {
            parts,
            known: KnownState::default(),
            silence: SilenceCheck::default(),
            current: sender,
            last_warnings: Vec::new(),
            last_failure: None,
            last_run_id: None,
        };
        (task, current)
    }

    async fn run(mut self, first: Option<OpenedNode>) {
        let stop = self.parts.stop.clone();
        select! {
            () = stop.cancelled() => {}
            never = self.serve_forever(first) => match never {},
        }
        if let Some(node) = self.current.send_replace(None) {
            node.close();
        }
    }

    async fn serve_forever(&mut self, mut next: Option<OpenedNode>) -> Infallible {
        let mut backoff = BACKOFF_MIN;
        loop {
            if let Some(opened) = next.take() {
                let start = Instant::now();
                self.serve(opened).await;
                if start.elapsed() > BACKOFF_MAX {
                    backoff = BACKOFF_MIN;
                }
            }
            sleep(backoff).await;
            backoff = BACKOFF_MAX.min(backoff * 2);
            match self.open().await {
                Ok(opened) => {
                    info!("{} serves again", opened.endpoint.name());
                    next = Some(opened);
                }
                Err(error) => self.log_failure(error),
            }
        }
    }

    async fn open(&mut self) -> Result<OpenedNode, NodeError> {
        let address = self.parts.finder.resolve().await?;
        let view = self.parts.finder.view().current();
        let opened = open(&self.parts.plan, address, view, &mut self.known).await?;
        self.silence.check(&opened)?;
        // Opening may take longer than a master may be used after the Sentinels have named it.
        let now = self.parts.finder.resolve().await?;
        if now != opened.endpoint.address {
            return Err(NodeError::Unreachable(format!(
                "{} was replaced by {now} while the connection was opened.",
                opened.endpoint.name()
            )));
        }
        self.last_failure = None;
        log_new_warnings(&mut self.last_warnings, &opened.warnings);
        Ok(opened)
    }

    fn log_failure(&mut self, error: NodeError) {
        if self.last_failure.as_ref() != Some(&error) {
            warn!("{error}");
            self.last_failure = Some(error);
        }
    }

    /// Serves until the node closes.
    async fn serve(&mut self, opened: OpenedNode) {
        let OpenedNode {
            endpoint,
            node,
            links,
            ..
        } = opened;
        self.current.send_replace(Some(Arc::clone(&node)));
        let run_id = node.run_id().to_owned();
        let processes = Arc::clone(&self.parts.plan.processes);
        processes.record_serving(&run_id, &endpoint.address);
        let before = self.last_run_id.replace(run_id);
        if before.is_some_and(|before| before != node.run_id()) {
            (self.parts.on_event)(NodeEvent::Replaced);
        }
        let NodeConnections {
            mut command,
            probe: mut prober,
            subscriber,
            era_sync,
            barrier,
        } = links;
        let probe_client = prober.client().clone();
        let (checking, view) = (probe_client.clone(), self.parts.finder.view());
        let keeper = SpanKeeper {
            node: &node,
            client: probe_client.clone(),
            config: &endpoint.config,
            span_use: &self.parts.plan.span_use,
            last_limit: &self.known.span_limit,
        };
        let subscribed = subscriber.connection.client().clone();
        let broken = |broken: ConnectionLost| {
            if broken.is_closed {
                processes.record_closed(node.run_id());
            }
            Some(NodeFailure::without_lost_locks(broken.reason))
        };
        let end = select! {
            () = node.closed() => None,
            reason = command.broken() => broken(reason),
            reason = prober.broken() => broken(reason),
            reason = forward_messages(subscriber, &self.parts.on_event) => broken(reason),
            reason = run_barrier(barrier) => broken(reason),
            never = end_pauses(&node, &endpoint, &processes) => match never {},
            never = keeper.run() => match never {},
            reason = run_era_sync(era_sync) => Some(NodeFailure::without_lost_locks(reason)),
            end = monitor(&node, probe_client, subscribed, &self.known.span_limit) => Some(end),
            reason = self.parts.finder.wait_until_moved(&endpoint.address) => Some(NodeFailure::without_lost_locks(reason)),
            never = recheck(&endpoint, &checking, &view, &mut self.last_warnings) => match never {},
        };
        if let Some(NodeFailure {
            reason,
            violated_assumption: broken,
        }) = end
        {
            if let Some(broken) = broken {
                self.invalidate_eras(&node);
                (self.parts.on_event)(NodeEvent::AssumptionViolated(broken));
            }
            node.fail(&reason);
        }
        processes.record_last_reply(node.run_id(), node.last_reply_ms());
        self.silence.record_closed(&node);
        self.current.send_replace(None);
    }

    /// Marks the eras of a closed node as doubtful. They are not used again, unless another broker
    /// has started new ones.
    fn invalidate_eras(&mut self, node: &Node) {
        match (node.era(), node.slot_eras(), &self.parts.plan.slots) {
            (Some(era), _, _) => self.known.doubted = Some(era.id.as_str().into()),
            (None, Some(eras), Some(slots)) => slots.history.mark_doubtful(eras.all_synced()),
            (None, _, _) => {}
        }
    }
}

/// Checks settings and replicas again while a node serves, because they may change, and logs new
/// warnings.
async fn recheck(
    endpoint: &Endpoint,
    client: &Client,
    view: &SentinelViewHandle,
    warned: &mut Vec<String>,
) -> Infallible {
    loop {
        sleep(RECHECK_INTERVAL).await;
        if let Ok(text) = client.info::<String>(None).await {
            let info = ServerInfo::parse(&text);
            if let Ok(findings) = check(endpoint, client, &info, view.current()).await {
                log_new_warnings(warned, &findings.warnings);
                if findings.hides_settings {
                    // The server records each rejected attempt in its ACL LOG.
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// Logs the warnings that were not in the last list of warnings.
fn log_new_warnings(warned: &mut Vec<String>, warnings: &[String]) {
    if warned != warnings {
        for warning in warnings.iter().filter(|warning| !warned.contains(warning)) {
            warn!("{warning}");
        }
        *warned = warnings.to_vec();
    }
}

/// Runs the replication barrier until its connection breaks.
async fn run_barrier(barrier: Option<(Connection, BarrierTask)>) -> ConnectionLost {
    let Some((mut connection, waiting)) = barrier else {
        return std::future::pending().await;
    };
    let client = connection.client().clone();
    select! {
        reason = connection.broken() => reason,
        never = waiting.serve(&client) => match never {},
    }
}

/// Agrees on the eras of the slots of a cluster's node.
async fn run_era_sync(era_sync: Option<SlotEraSync>) -> String {
    match era_sync {
        Some(era_sync) => era_sync.run().await,
        None => std::future::pending().await,
    }
}

/// Forwards messages until the connection breaks.
async fn forward_messages(
    subscriber: Subscriber,
    on_event: &(dyn Fn(NodeEvent) + Send + Sync),
) -> ConnectionLost {
    let Subscriber {
        mut connection,
        mut messages,
    } = subscriber;
    let mut event = NodeEvent::Ready;
    loop {
        on_event(event);
        let received = select! {
            reason = connection.broken() => return reason,
            received = messages.recv() => received,
        };
        event = match received {
            Ok(message) => NodeEvent::Message(message.value.convert().unwrap_or_default()),
            Err(RecvError::Lagged(_)) => NodeEvent::Ready,
            Err(RecvError::Closed) => return connection.broken().await,
        };
    }
}
