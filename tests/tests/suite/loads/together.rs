//! The clients of all languages at the same time: one line before one lock, and one sale.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    scale::{count, figures},
    suite::{
        language::{Cast, Language},
        probe::{Call, Probe},
        sale::sell_to,
        scene::{Scene, TTL},
        wire::Ask,
    },
};
use rand::seq::SliceRandom as _;

const BROKERS: usize = 3;
/// Of each language.
const WAITERS: usize = 4;
const WAIT: Duration = Duration::from_secs(60);

/// Brokers, and a probe of each language, the first brokers of which differ.
async fn all() -> (Scene, Vec<Probe>) {
    let (one, other) = (Language::Rust, Language::Rust);
    let scene = Scene::start(Cast { one, other }, BROKERS).await;
    let mut addrs = scene.deployment.addrs();
    let probes = Language::ALL.map(|language| {
        addrs.rotate_left(1);
        let addrs = addrs.clone();
        async move { Probe::start(language, &format!("{language:?}"), &addrs).await }
    });
    let probes = join_all(probes).await;
    (scene, probes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_all_languages_keeps_its_order() {
    let (scene, probes) = all().await;
    let (rounds, mut granted, mut changes) = (count(20, 2), 0, 0);
    for round in 0..rounds {
        let lock = format!("round-{round}");
        let mut order: Vec<usize> = (0..probes.len() * WAITERS)
            .map(|place| place % probes.len())
            .collect();
        order.shuffle(&mut rand::thread_rng());
        let held = scene.takes(&lock).await;
        let mut line: Vec<(usize, String, Call)> = Vec::new();
        for (place, who) in order.into_iter().enumerate() {
            let name = format!("{round}-{place}");
            let call = probes[who].asks(&Ask::one(&lock).called(&name).ttl(TTL * 5).wait(WAIT));
            let behind = u32::try_from(place + 1).expect("a short line");
            probes[who].queued(&call, behind).await;
            line.push((who, name, call));
        }
        scene.gives(&held).await;
        let (mut last, mut before) = (held.token(), None);
        let mut line = line.into_iter().peekable();
        while let Some((who, name, call)) = line.next() {
            let lease = call.lease().await.expect("its turn");
            assert!(lease.token() > last, "not the turn of {name}");
            assert_eq!(scene.held(&lock).await.lease_id, lease.lease_id);
            if let Some((_, next, call)) = line.peek_mut() {
                assert!(call.is_open(), "{next} is before its turn");
            }
            probes[who].gives(&name).await;
            changes += usize::from(before.is_some_and(|before| before != who));
            (last, before, granted) = (lease.token(), Some(who), granted + 1);
        }
        assert_eq!(scene.look(&lock).await, None);
    }
    figures(&format!(
        "suite together: rounds={rounds} languages={} waiters={} granted_in_order={granted} from_language_to_language={changes}",
        probes.len(),
        probes.len() * WAITERS
    ));
    assert_eq!(granted, rounds * probes.len() * WAITERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_all_languages_buys_exactly_the_stock() {
    let (_scene, probes) = all().await;
    sell_to(&probes, "together").await;
}
