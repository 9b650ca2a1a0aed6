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
    connection::plain,
    node::Node,
    open::time_ms,
    refusal::{Refusal, Then, Told},
    verify::ServerInfo,
};

const EVERY: Duration = Duration::from_millis(500);
const MISSED_MAX: u32 = 3;
/// The reply of a probe slower than this is no measurement of the clock.
const QUICK: Duration = Duration::from_millis(100);

struct Seen {
    now_ms: u64,
    era: Option<String>,
    replication: String,
}

enum Verdict {
    /// A new connection would be told the same.
    Lives,
    Missed,
    /// The node must end; why.
    Over(String),
}

/// Runs until the node must end, and says why.
pub(super) async fn probe(
    node: &Node,
    client: Client,
    subscriber: Client,
    era_key: String,
) -> String {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut missed, mut last) = (0, None);
    loop {
        ticks.tick().await;
        let start = Instant::now();
        match timeout(EVERY, look(&client, &subscriber, &era_key)).await {
            Ok(Ok(seen)) => {
                (missed, last) = (0, None);
                if start.elapsed() <= QUICK {
                    node.set_time(seen.now_ms);
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

async fn look(client: &Client, subscriber: &Client, era_key: &str) -> Result<Seen, Error> {
    let (now_ms, era, replication, heard) = join!(
        time_ms(client),
        client.get::<Option<String>, _>(era_key),
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
        now_ms: now_ms?,
        era: era?,
        replication: replication?,
    })
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
    let Some(era) = &seen.era else {
        return Some("its era is gone: it has lost its data".to_owned());
    };
    if era.split('|').next() != Some(node.era_id()) {
        return Some("another broker began a new era".to_owned());
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
