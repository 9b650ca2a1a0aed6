//! Watches a node: that it answers, that it is still the verified master, and that its era stands.

use std::time::Duration;

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::InfoKind,
};
use tokio::{
    join,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    clocks::Reading,
    connection::plain,
    node::Node,
    refusal::{Refusal, Then, Told},
    verify::ServerInfo,
};

const EVERY: Duration = Duration::from_millis(500);
const MISSED_MAX: u32 = 3;
/// The reply of a probe slower than this is no measurement of the clock.
const QUICK: Duration = Duration::from_millis(100);

struct Seen {
    time: Reading,
    era: Looked,
    replication: String,
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

enum Verdict {
    /// A new connection would be told the same.
    Lives,
    Missed,
    /// The node must end; why.
    Over(String),
}

/// Runs until the node must end, and says why.
pub(super) async fn probe(node: &Node, client: Client, subscriber: Client) -> String {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut missed, mut last) = (0, None);
    loop {
        ticks.tick().await;
        let start = Instant::now();
        match timeout(EVERY, look(node, &client, &subscriber)).await {
            Ok(Ok(seen)) => {
                (missed, last) = (0, None);
                if start.elapsed() <= QUICK {
                    node.set_time(seen.time);
                }
                if let Some(why) = objection(node, &seen) {
                    return why;
                }
            }
            Ok(Err(error)) => match verdict(&error) {
                Verdict::Lives => (missed, last) = (0, None),
                Verdict::Over(why) => return why,
                Verdict::Missed => {
                    missed += 1;
                    last = Some(plain(&error));
                }
            },
            Err(_) => missed += 1,
        }
        if missed == MISSED_MAX {
            return match last {
                Some(last) => format!("{MISSED_MAX} probes failed ({last})"),
                None => format!("no answer to {MISSED_MAX} probes"),
            };
        }
    }
}

async fn look(node: &Node, client: &Client, subscriber: &Client) -> Result<Seen, Error> {
    let (time, era, replication, heard) = join!(
        Reading::of(client),
        look_at_era(node, client),
        client.info::<String>(Some(InfoKind::Replication)),
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
        replication: replication?,
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
    let info = ServerInfo::parse(&seen.replication);
    if !info.is_master() {
        return Some("it is a master no more".to_owned());
    }
    let server = node.server();
    let same = info
        .identity_of(&server.run_id)
        .is_some_and(|now| now.continues(&server.replid));
    (!same).then(|| "its data were replaced by those of another server".to_owned())
}
