//! Keeps one node alive: opens it, watches it, and builds another when it has ended.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use fred::{clients::Client, interfaces::ClientLike as _, types::Message};
use tokio::{
    select,
    sync::{
        broadcast::{self, error::RecvError},
        oneshot, watch,
    },
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use super::{
    cluster::settle::Settler,
    connection::{Broken, Connection, Endpoint, NodeError, RedisConfig},
    decide::Known,
    former::end_pauses,
    gate::Waiting,
    node::Node,
    open::{Links, Opened, Plan, Subscriber, check, open},
    place::{Finder, View},
    probe::{End, probe},
    script::Script,
    silence::Silence,
    verify::ServerInfo,
};
use crate::store::{Assumption, StoreError};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Maximum delay between two attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How often the settings of a server are looked at again.
const CHECKED_EVERY: Duration = Duration::from_secs(5);

/// What a node tells unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// The payload of a message on the broker's channel.
    Message(Bytes),
    /// A node is new, or messages came too fast: some may have been lost.
    Ready,
    /// It is another server process than before.
    Replaced,
    /// It violated an assumption of the guarantees.
    Broken(Assumption),
}

/// What nodes listen to.
#[derive(Debug, Clone)]
pub struct Channel {
    /// How it is called.
    pub name: String,
    /// One that all brokers listen to.
    pub of_all: String,
    /// Messages that fred keeps until they are taken. Each costs 600 bytes, at once.
    pub messages_max: usize,
}

/// What nodes listen to, and who is told of it.
pub struct Subscription {
    /// The broker's channel.
    pub channel: Channel,
    /// Must not block.
    pub tell: Box<dyn Fn(NodeEvent) + Send + Sync>,
}

/// The node of a store, or of one master of a cluster, whichever it is at the moment.
pub struct Supervisor {
    current: watch::Receiver<Option<Arc<Node>>>,
}

/// What a supervisor is made of.
pub(super) struct Start {
    pub(super) plan: Plan,
    pub(super) finder: Finder,
    pub(super) tell: Box<dyn Fn(NodeEvent) + Send + Sync>,
    pub(super) stop: CancellationToken,
}

struct Keeper {
    plan: Plan,
    finder: Finder,
    known: Known,
    silence: Silence,
    current: watch::Sender<Option<Arc<Node>>>,
    tell: Box<dyn Fn(NodeEvent) + Send + Sync>,
    stop: CancellationToken,
    warned: Vec<String>,
    failed: Option<NodeError>,
    /// The run id of the process that served last.
    served: Option<String>,
}

impl Supervisor {
    /// Opens the first node. If that fails and the configuration says to wait for a store that is
    /// out of reach, it goes on trying in the background.
    pub async fn start(
        config: RedisConfig,
        scripts: Arc<[Script]>,
        subscription: Subscription,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, NodeError> {
        let wait = config.wait_for_store;
        let (mut keeper, current) = Keeper::new(Start {
            finder: Finder::new(&config),
            plan: Plan {
                config,
                scripts,
                processes: Arc::default(),
                channel: subscription.channel,
                slots: None,
            },
            tell: subscription.tell,
            stop,
        });
        let first = match keeper.open().await {
            Ok(opened) => Some(opened),
            Err(error @ NodeError::Unreachable(_)) if wait => {
                keeper.log_failure(error);
                None
            }
            Err(error) => return Err(error),
        };
        tasks.spawn(keeper.keep(first));
        Ok(Self { current })
    }

    /// Opens the first node in the background, and tells how that went.
    pub(super) fn begin(
        start: Start,
        tasks: &TaskTracker,
    ) -> (Self, oneshot::Receiver<Result<(), NodeError>>) {
        let (mut keeper, current) = Keeper::new(start);
        let (opened, is_open) = oneshot::channel();
        tasks.spawn(async move {
            let stop = keeper.stop.clone();
            let first = select! {
                () = stop.cancelled() => return,
                first = keeper.open() => first,
            };
            // Only a store that starts wants to know.
            let (first, told) = match first {
                Ok(first) => (Some(first), Ok(())),
                Err(error) => {
                    keeper.log_failure(error.clone());
                    (None, Err(error))
                }
            };
            let _ = opened.send(told);
            keeper.keep(first).await;
        });
        (Self { current }, is_open)
    }

    /// The node that serves now, if there is one.
    pub(super) fn present(&self) -> Option<Arc<Node>> {
        let current = self.current.borrow();
        current.as_ref().filter(|node| node.is_usable()).cloned()
    }

    /// The present node; waits for one at most `within`.
    pub async fn node(&self, within: Duration) -> Result<Arc<Node>, StoreError> {
        let serves = |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|n| n.is_usable());
        if let Some(node) = self.present() {
            return Ok(node);
        }
        let mut current = self.current.clone();
        let found = timeout(within, current.wait_for(serves)).await;
        match found {
            Ok(Ok(node)) => node.clone(),
            Ok(Err(_)) | Err(_) => None,
        }
        .ok_or_else(|| StoreError::NotNow("no verified connection".to_owned()))
    }
}

impl Keeper {
    fn new(start: Start) -> (Self, watch::Receiver<Option<Arc<Node>>>) {
        let Start {
            plan,
            finder,
            tell,
            stop,
        } = start;
        let (sender, current) = watch::channel(None);
        let keeper = Self {
            plan,
            finder,
            known: Known::default(),
            silence: Silence::default(),
            current: sender,
            tell,
            stop,
            warned: Vec::new(),
            failed: None,
            served: None,
        };
        (keeper, current)
    }

    async fn keep(mut self, first: Option<Opened>) {
        let stop = self.stop.clone();
        select! {
            () = stop.cancelled() => {}
            never = self.serve_for_ever(first) => match never {},
        }
        if let Some(node) = self.current.send_replace(None) {
            node.retire();
        }
    }

    async fn serve_for_ever(&mut self, mut next: Option<Opened>) -> Infallible {
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

    async fn open(&mut self) -> Result<Opened, NodeError> {
        let address = self.finder.find().await?;
        let view = self.finder.view().seen();
        let opened = open(&self.plan, address, view, &mut self.known).await?;
        self.silence.check(&opened)?;
        // Opening may have taken longer than a master is used after the Sentinels have named it.
        let now = self.finder.find().await?;
        if now != opened.endpoint.address {
            return Err(NodeError::Unreachable(format!(
                "{} was replaced by {now} while it was opened.",
                opened.endpoint.name()
            )));
        }
        self.failed = None;
        warn_of_new(&mut self.warned, &opened.warnings);
        Ok(opened)
    }

    fn log_failure(&mut self, error: NodeError) {
        if self.failed.as_ref() != Some(&error) {
            warn!("{error}");
            self.failed = Some(error);
        }
    }

    /// Serves until the node has ended.
    async fn serve(&mut self, opened: Opened) {
        let Opened {
            endpoint,
            node,
            links,
            ..
        } = opened;
        self.current.send_replace(Some(Arc::clone(&node)));
        let run_id = node.run_id().to_owned();
        let processes = Arc::clone(&self.plan.processes);
        processes.serves(&run_id, &endpoint.address);
        let before = self.served.replace(run_id);
        if before.is_some_and(|before| before != node.run_id()) {
            (self.tell)(NodeEvent::Replaced);
        }
        let Links {
            mut command,
            probe: mut prober,
            subscriber,
            settler,
            gate,
        } = links;
        let probe_client = prober.client().clone();
        let (checking, view) = (probe_client.clone(), self.finder.view());
        let subscribed = subscriber.connection.client().clone();
        let broken = |broken: Broken| {
            if broken.is_closed {
                processes.closed(node.run_id());
            }
            Some(End::of_node(broken.why))
        };
        let end = select! {
            () = node.ended() => None,
            why = command.broken() => broken(why),
            why = prober.broken() => broken(why),
            why = pass_on(subscriber, &self.tell) => broken(why),
            why = hold_back(gate) => broken(why),
            never = end_pauses(&node, &endpoint, &processes) => match never {},
            why = settle(settler) => Some(End::of_node(why)),
            end = probe(&node, probe_client, subscribed) => Some(end),
            why = self.finder.moved(&endpoint.address) => Some(End::of_node(why)),
            never = check_again(&endpoint, &checking, &view, &mut self.warned) => match never {},
        };
        if let Some(End { why, broken }) = end {
            if let Some(broken) = broken {
                self.doubt_eras(&node);
                (self.tell)(NodeEvent::Broken(broken));
            }
            node.condemn(&why);
        }
        self.silence.ended(&node);
        self.current.send_replace(None);
    }

    /// The eras of a node that has ended are not served in any more, unless another broker has begun new ones.
    fn doubt_eras(&mut self, node: &Node) {
        match (node.era(), node.slot_eras(), &self.plan.slots) {
            (Some(era), _, _) => self.known.doubted = Some(era.id.as_str().into()),
            (None, Some(eras), Some(slots)) => slots.doubt(eras.all_settled()),
            (None, _, _) => {}
        }
    }
}

/// Settings and replicas may change while a node serves: says so when something is wrong with them then.
async fn check_again(
    endpoint: &Endpoint,
    client: &Client,
    view: &View,
    warned: &mut Vec<String>,
) -> Infallible {
    loop {
        sleep(CHECKED_EVERY).await;
        if let Ok(text) = client.info::<String>(None).await {
            let info = ServerInfo::parse(&text);
            if let Ok(findings) = check(endpoint, client, &info, view.seen()).await {
                warn_of_new(warned, &findings.warnings);
                if findings.hides_settings {
                    // The server notes each try in its ACL LOG.
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// Logs the warnings unless they are those that were logged last.
fn warn_of_new(warned: &mut Vec<String>, warnings: &[String]) {
    if warned != warnings {
        for warning in warnings.iter().filter(|warning| !warned.contains(warning)) {
            warn!("{warning}");
        }
        *warned = warnings.to_vec();
    }
}

/// Lets answers pass as replicas get what they tell of, until the connection breaks.
async fn hold_back(gate: Option<(Connection, Waiting)>) -> Broken {
    let Some((mut connection, waiting)) = gate else {
        return std::future::pending().await;
    };
    let client = connection.client().clone();
    select! {
        why = connection.broken() => why,
        never = waiting.serve(&client) => match never {},
    }
}

/// Settles the slots of a node of a cluster.
async fn settle(settler: Option<Settler>) -> String {
    match settler {
        Some(settler) => settler.run().await,
        None => std::future::pending().await,
    }
}

/// Passes messages on until the connection breaks.
async fn pass_on(
    Subscriber {
        mut connection,
        messages,
    }: Subscriber,
    tell: &(dyn Fn(NodeEvent) + Send + Sync),
) -> Broken {
    select! {
        why = connection.broken() => why,
        never = forward(messages, tell) => match never {},
    }
}

async fn forward(
    mut messages: broadcast::Receiver<Message>,
    tell: &(dyn Fn(NodeEvent) + Send + Sync),
) -> Infallible {
    let mut event = NodeEvent::Ready;
    loop {
        tell(event);
        event = match messages.recv().await {
            Ok(message) => NodeEvent::Message(message.value.convert().unwrap_or_default()),
            Err(RecvError::Lagged(_)) => NodeEvent::Ready,
            Err(RecvError::Closed) => std::future::pending().await,
        };
    }
}
