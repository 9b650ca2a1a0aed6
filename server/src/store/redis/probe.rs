//! Watches a node: that it answers, that it is still the verified master, and that its era stands.

use std::time::Duration;

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike as _, KeysInterface as _},
    types::InfoKind,
};
use tokio::{
    time::{Instant, MissedTickBehavior, interval, timeout},
    try_join,
};

use super::{
    connection::plain,
    node::Node,
    open::time_ms,
    script::{condemns, is_busy},
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

/// Runs until the node must end, and says why.
pub(super) async fn probe(
    node: &Node,
    client: Client,
    subscriber: Client,
    era_key: String,
) -> String {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    loop {
        ticks.tick().await;
        let start = Instant::now();
        match timeout(EVERY, look(&client, &subscriber, &era_key)).await {
            Ok(Ok(seen)) => {
                missed = 0;
                if start.elapsed() <= QUICK {
                    node.set_time(seen.now_ms);
                }
                if let Some(why) = objection(node, &seen) {
                    return why;
                }
            }
            // It lives: a new connection would be told the same.
            Ok(Err(error)) if is_busy(&error) => missed = 0,
            Ok(Err(error)) if condemns(&error) => return plain(&error),
            Ok(Err(_)) | Err(_) => missed += 1,
        }
        if missed == MISSED_MAX {
            return format!("no answer to {MISSED_MAX} probes");
        }
    }
}

async fn look(client: &Client, subscriber: &Client, era_key: &str) -> Result<Seen, Error> {
    let (now_ms, era, replication, ()) = try_join!(
        time_ms(client),
        client.get::<Option<String>, _>(era_key),
        client.info::<String>(Some(InfoKind::Replication)),
        subscriber.ping::<()>(None)
    )?;
    Ok(Seen {
        now_ms,
        era,
        replication,
    })
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
