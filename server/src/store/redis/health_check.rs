//! Health check of a node: the server replies, is still the verified master, and its era is
//! unchanged.

use std::time::Duration;

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::CustomCommand,
};
use tokio::{
    join,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    clock::{ClockSample, ClockStepDetector, HostClocks},
    connection::plain_message,
    error_table::{CallerError, ErrorClass, NodeAction},
    node::Node,
    silence::boot_ms,
    span_limit::{LastSpanLimit, StoredSpanLimit},
    verify::ServerInfo,
};
use crate::store::Assumption;

const PROBE_INTERVAL: Duration = Duration::from_millis(500);
const MISSED_PROBES_MAX: u32 = 3;
/// Longest round trip of a health check whose reply is used as a clock sample.
const QUICK_ROUND_TRIP_MAX: Duration = Duration::from_millis(100);

struct Observation {
    time: ClockSample,
    era: EraCheck,
    info: String,
}

/// Result of reading an era.
enum EraCheck {
    /// The era of the node.
    Store(Option<String>),
    /// The era of a slot.
    Slot(u16, Option<String>),
    /// The era of the slot is on another server, or cannot be read.
    Unreadable(u16),
    /// The node has no era to check.
    Nothing,
}

impl EraCheck {
    /// Returns the limit of spans in the era.
    fn span_limit(&self) -> Option<StoredSpanLimit> {
        let Self::Store(Some(text)) = self else {
            return None;
        };
        StoredSpanLimit::of_era(text)
    }
}

/// Reason why a node must be closed.
pub(super) struct NodeFailure {
    pub(super) reason: String,
    /// The violated assumption. In that case the node's eras end as well, because locks may have
    /// been lost without a trace on the server.
    pub(super) violated_assumption: Option<Assumption>,
}

impl NodeFailure {
    /// Creates the reason for a node that is not known to have lost locks.
    pub(super) fn without_lost_locks(reason: String) -> Self {
        Self {
            reason,
            violated_assumption: None,
        }
    }
}

enum ProbeResult {
    /// A new connection would receive the same reply.
    Alive,
    Missed,
    /// The node must be closed, for this reason.
    Fatal(String),
}

/// Runs until the node must be closed, and returns the reason.
pub(super) async fn monitor(
    node: &Node,
    client: Client,
    subscriber: Client,
    last_limit: &LastSpanLimit,
) -> NodeFailure {
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut missed, mut last) = (0, None);
    let mut steps = ClockStepDetector::new();
    loop {
        ticks.tick().await;
        let (start, clocks_before) = (Instant::now(), HostClocks::read());
        let sent_ms = boot_ms();
        match timeout(PROBE_INTERVAL, observe(node, &client, &subscriber)).await {
            Ok(Ok(observation)) => {
                (missed, last) = (0, None);
                if let Some(reason) = node.record_reply() {
                    return NodeFailure::without_lost_locks(reason);
                }
                if start.elapsed() <= QUICK_ROUND_TRIP_MAX {
                    node.set_time(observation.time);
                }
                if let Some(reason) = find_problem(node, &observation) {
                    return NodeFailure::without_lost_locks(reason);
                }
                if let Some(limit) = observation.era.span_limit() {
                    last_limit.record(limit.at(observation.time.now_ms), sent_ms);
                }
                if let Some(end) = broken_assumption(node, &observation, &mut steps, clocks_before)
                {
                    return end;
                }
            }
            Ok(Err(error)) => match classify_error(&error) {
                ProbeResult::Alive => {
                    (missed, last) = (0, None);
                    if let Some(reason) = node.record_reply() {
                        return NodeFailure::without_lost_locks(reason);
                    }
                }
                ProbeResult::Fatal(reason) => return NodeFailure::without_lost_locks(reason),
                ProbeResult::Missed => {
                    missed += 1;
                    last = Some(plain_message(&error));
                }
            },
            Err(_) => missed += 1,
        }
        if missed == MISSED_PROBES_MAX {
            return NodeFailure::without_lost_locks(match last {
                Some(last) => format!("{MISSED_PROBES_MAX} probes failed ({last})"),
                None => format!("no answer to {MISSED_PROBES_MAX} probes"),
            });
        }
    }
}

async fn observe(node: &Node, client: &Client, subscriber: &Client) -> Result<Observation, Error> {
    let info = CustomCommand::new_static("INFO", None::<u16>, false);
    let (time, era, info, ping) = join!(
        ClockSample::take(client),
        read_era(node, client),
        client.custom::<String, _>(info, vec!["replication", "memory"]),
        subscriber.ping::<()>(None)
    );
    // A server that rejects writes rejects PING as well, but can still be checked.
    let ping = ping.or_else(|error| match classify_error(&error) {
        ProbeResult::Alive => Ok(()),
        ProbeResult::Missed | ProbeResult::Fatal(_) => Err(error),
    });
    ping?;
    Ok(Observation {
        time: time?,
        era: era?,
        info: info?,
    })
}

async fn read_era(node: &Node, client: &Client) -> Result<EraCheck, Error> {
    let Some((key, slot)) = node.era_to_check() else {
        return Ok(EraCheck::Nothing);
    };
    let era = client.get::<Option<String>, _>(key).await;
    match (slot, era) {
        (None, era) => era.map(EraCheck::Store),
        (Some(slot), Ok(era)) => Ok(EraCheck::Slot(slot, era)),
        (Some(slot), Err(error)) => {
            let class = ErrorClass::classify(&error);
            match (class.action, class.caller_error) {
                (NodeAction::Redirect, _) | (NodeAction::Keep, CallerError::Corrupt) => {
                    Ok(EraCheck::Unreadable(slot))
                }
                _ => Err(error),
            }
        }
    }
}

/// Returns the consequence of an error for the node.
fn classify_error(error: &Error) -> ProbeResult {
    let class = ErrorClass::classify(error);
    match class.action {
        NodeAction::Close | NodeAction::Redirect => {
            ProbeResult::Fatal(class.description(&plain_message(error)))
        }
        // The health check reads no other record than the era.
        NodeAction::Keep if class.caller_error == CallerError::Corrupt => ProbeResult::Fatal(
            format!("its era was overwritten ({})", plain_message(error)),
        ),
        NodeAction::Keep => ProbeResult::Alive,
        NodeAction::ReloadScripts | NodeAction::ProbeDecides => ProbeResult::Missed,
    }
}

fn find_problem(node: &Node, observation: &Observation) -> Option<String> {
    match (&observation.era, node.era(), node.slot_eras()) {
        (EraCheck::Store(None), _, _) => {
            return Some("its era is missing: the server has lost its data".to_owned());
        }
        (EraCheck::Store(Some(text)), Some(era), _)
            if text.split('|').next() != Some(era.id.as_str()) =>
        {
            return Some("another broker began a new era".to_owned());
        }
        (EraCheck::Slot(slot, era), _, Some(eras)) => eras.compare(*slot, era.as_deref()),
        (EraCheck::Unreadable(slot), _, Some(eras)) => eras.invalidate(*slot, false),
        _ => {}
    }
    let info = ServerInfo::parse(&observation.info);
    if info.replica_count() > 0 {
        node.has_replicas();
    }
    if !info.is_master() {
        return Some("it is no longer a master".to_owned());
    }
    let server = node.server();
    let same = info
        .identity_of(&server.run_id)
        .is_some_and(|now| now.continues(&server.replid));
    (!same).then(|| "its data were replaced by those of another server".to_owned())
}

/// Returns an event that violates an assumption and that the server does not report: its clock was
/// stepped, or it may have evicted locks.
fn broken_assumption(
    node: &Node,
    observation: &Observation,
    steps: &mut ClockStepDetector,
    clocks_before: HostClocks,
) -> Option<NodeFailure> {
    if let Some(step_ms) = steps.observe(&observation.time, clocks_before, HostClocks::read()) {
        return Some(NodeFailure {
            reason: format!(
                "its clock was stepped by at least {step_ms} ms: leases may have ended early"
            ),
            violated_assumption: Some(Assumption::Clock),
        });
    }
    let policy = ServerInfo::parse(&observation.info).check_eviction()?;
    (!node.allows_unsafe()).then(|| NodeFailure {
        reason: format!(
            "it began to evict keys (maxmemory-policy {policy}): locks may have been evicted"
        ),
        violated_assumption: Some(Assumption::NoEviction),
    })
}
