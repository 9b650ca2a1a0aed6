//! Watches a node: that it answers, that it is still the verified master, and that its era stands.

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
    clock_step::{ClockSteps, HostClocks},
    clocks::Reading,
    connection::plain,
    node::Node,
    refusal::{Refusal, Then, Told},
    verify::ServerInfo,
};
use crate::store::Assumption;

const EVERY: Duration = Duration::from_millis(500);
const MISSED_MAX: u32 = 3;
/// The reply of a probe slower than this is no measurement of the clock.
const QUICK: Duration = Duration::from_millis(100);

struct Seen {
    time: Reading,
    era: Looked,
    info: String,
}

/// What a look at an era found.
enum Looked {
    /// The one of the node.
    One(Option<String>),
    /// The one of a slot.
    Slot(u16, Option<String>),
    /// It is on another server, or cannot be read.
    Odd(u16),
    /// The node has none.
    Nothing,
}

/// Why a node must end.
pub(super) struct End {
    pub(super) why: String,
    /// Then its eras end, too: locks may have been lost that the server does not know of.
    pub(super) broken: Option<Assumption>,
}

impl End {
    /// Nothing is known to be lost.
    pub(super) fn of_node(why: String) -> Self {
        Self { why, broken: None }
    }
}

enum Verdict {
    /// A new connection would be told the same.
    Lives,
    Missed,
    /// The node must end; why.
    Over(String),
}

/// Runs until the node must end, and says why.
pub(super) async fn probe(node: &Node, client: Client, subscriber: Client) -> End {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut missed, mut last) = (0, None);
    let mut steps = ClockSteps::new();
    loop {
        ticks.tick().await;
        let (start, asked) = (Instant::now(), HostClocks::read());
        match timeout(EVERY, look(node, &client, &subscriber)).await {
            Ok(Ok(seen)) => {
                (missed, last) = (0, None);
                if let Some(why) = node.answers() {
                    return End::of_node(why);
                }
                if start.elapsed() <= QUICK {
                    node.set_time(seen.time);
                }
                if let Some(why) = objection(node, &seen) {
                    return End::of_node(why);
                }
                if let Some(end) = broken_assumption(node, &seen, &mut steps, asked) {
                    return end;
                }
            }
            Ok(Err(error)) => match verdict(&error) {
                Verdict::Lives => {
                    (missed, last) = (0, None);
                    if let Some(why) = node.answers() {
                        return End::of_node(why);
                    }
                }
                Verdict::Over(why) => return End::of_node(why),
                Verdict::Missed => {
                    missed += 1;
                    last = Some(plain(&error));
                }
            },
            Err(_) => missed += 1,
        }
        if missed == MISSED_MAX {
            return End::of_node(match last {
                Some(last) => format!("{MISSED_MAX} probes failed ({last})"),
                None => format!("no answer to {MISSED_MAX} probes"),
            });
        }
    }
}

async fn look(node: &Node, client: &Client, subscriber: &Client) -> Result<Seen, Error> {
    let info = CustomCommand::new_static("INFO", None::<u16>, false);
    let (time, era, info, heard) = join!(
        Reading::of(client),
        look_at_era(node, client),
        client.custom::<String, _>(info, vec!["replication", "memory"]),
        subscriber.ping::<()>(None)
    );
    // A server that takes no writes refuses this, too, and can still be looked at.
    let heard = heard.or_else(|error| match verdict(&error) {
        Verdict::Lives => Ok(()),
        Verdict::Missed | Verdict::Over(_) => Err(error),
    });
    heard?;
    Ok(Seen {
        time: time?,
        era: era?,
        info: info?,
    })
}

async fn look_at_era(node: &Node, client: &Client) -> Result<Looked, Error> {
    let Some((key, slot)) = node.era_to_look_at() else {
        return Ok(Looked::Nothing);
    };
    let era = client.get::<Option<String>, _>(key).await;
    match (slot, era) {
        (None, era) => era.map(Looked::One),
        (Some(slot), Ok(era)) => Ok(Looked::Slot(slot, era)),
        (Some(slot), Err(error)) => {
            let Refusal { then, told, .. } = Refusal::of(&error);
            match (then, told) {
                (Then::Elsewhere, _) | (Then::Keep, Told::Corrupt) => Ok(Looked::Odd(slot)),
                (Then::Load | Then::Keep | Then::Doubt | Then::End, _) => Err(error),
            }
        }
    }
}

/// What an error says of the server.
fn verdict(error: &Error) -> Verdict {
    let refusal = Refusal::of(error);
    match refusal.then {
        Then::End | Then::Elsewhere => Verdict::Over(refusal.why(&plain(error))),
        // Nobody but the era is looked at.
        Then::Keep if refusal.told == Told::Corrupt => {
            Verdict::Over(format!("its era was overwritten ({})", plain(error)))
        }
        Then::Keep => Verdict::Lives,
        Then::Load | Then::Doubt => Verdict::Missed,
    }
}

fn objection(node: &Node, seen: &Seen) -> Option<String> {
    match (&seen.era, node.era(), node.slot_eras()) {
        (Looked::One(None), _, _) => {
            return Some("its era is gone: it has lost its data".to_owned());
        }
        (Looked::One(Some(text)), Some(era), _)
            if text.split('|').next() != Some(era.id.as_str()) =>
        {
            return Some("another broker began a new era".to_owned());
        }
        (Looked::Slot(slot, era), _, Some(eras)) => eras.compare(*slot, era.as_deref()),
        (Looked::Odd(slot), _, Some(eras)) => eras.doubt(*slot, false),
        (Looked::One(_) | Looked::Slot(..) | Looked::Odd(_) | Looked::Nothing, _, _) => {}
    }
    let info = ServerInfo::parse(&seen.info);
    if info.replicas() > 0 {
        node.has_replicas();
    }
    if !info.is_master() {
        return Some("it is a master no more".to_owned());
    }
    let server = node.server();
    let same = info
        .identity_of(&server.run_id)
        .is_some_and(|now| now.continues(&server.replid));
    (!same).then(|| "its data were replaced by those of another server".to_owned())
}

/// What happened to the server that it does not know of: its clock was stepped, or it may have evicted locks.
fn broken_assumption(
    node: &Node,
    seen: &Seen,
    steps: &mut ClockSteps,
    asked: HostClocks,
) -> Option<End> {
    if let Some(step_ms) = steps.see(&seen.time, asked, HostClocks::read()) {
        return Some(End {
            why: format!(
                "its clock was stepped by at least {step_ms} ms: leases may have ended early"
            ),
            broken: Some(Assumption::Clock),
        });
    }
    let policy = ServerInfo::parse(&seen.info).eviction()?;
    (!node.allows_unsafe()).then(|| End {
        why: format!(
            "it began to evict keys (maxmemory-policy {policy}): locks may have been evicted"
        ),
        broken: Some(Assumption::NoEviction),
    })
}
