//! The clients of all languages at the same time, in one queue for one lock and in one sale.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    scale::{print_figures, scaled_count},
    suite::{
        flash_sale::sell_to,
        language::{Cast, Language},
        messages::ProbeAcquire,
        probe::{PendingCommand, Probe},
        scenario::{ScenarioFixture, TTL},
    },
};
use rand::seq::SliceRandom as _;

const BROKERS: usize = 3;
/// Number of waiters per language.
const WAITERS: usize = 4;
const WAIT: Duration = Duration::from_secs(60);

/// Starts brokers and a probe of each language. The probes have different first brokers.
async fn all() -> (ScenarioFixture, Vec<Probe>) {
    let (one, other) = (Language::Rust, Language::Rust);
    let fixture = ScenarioFixture::start(Cast { one, other }, BROKERS).await;
    let mut addrs = fixture.deployment.addrs();
    let probes = Language::ALL.map(|language| {
        addrs.rotate_left(1);
        let addrs = addrs.clone();
        async move { Probe::start(language, &format!("{language:?}"), &addrs).await }
    });
    let probes = join_all(probes).await;
    (fixture, probes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_all_languages_keeps_its_order() {
    let (fixture, probes) = all().await;
    let (rounds, mut granted, mut changes) = (scaled_count(20, 2), 0, 0);
    for round in 0..rounds {
        let lock = format!("round-{round}");
        let mut order: Vec<usize> = (0..probes.len() * WAITERS)
            .map(|place| place % probes.len())
            .collect();
        order.shuffle(&mut rand::thread_rng());
        let held = fixture.expect_acquired(&lock).await;
        let mut line: Vec<(usize, String, PendingCommand)> = Vec::new();
        for (place, who) in order.into_iter().enumerate() {
            let name = format!("{round}-{place}");
            let call = probes[who].start_acquire(
                &ProbeAcquire::exclusive(&lock)
                    .with_lease_name(&name)
                    .with_ttl(TTL * 5)
                    .with_wait(WAIT),
            );
            let behind = u32::try_from(place + 1).expect("a short line");
            probes[who].wait_for_position(&call, behind).await;
            line.push((who, name, call));
        }
        fixture.expect_released(&held).await;
        let (mut last, mut before) = (held.token(), None);
        let mut line = line.into_iter().peekable();
        while let Some((who, name, call)) = line.next() {
            let lease = call.lease().await.expect("its turn");
            assert!(lease.token() > last, "not the turn of {name}");
            assert_eq!(fixture.expect_holder(&lock).await.lease_id, lease.lease_id);
            if let Some((_, next, call)) = line.peek_mut() {
                assert!(call.is_pending(), "{next} is before its turn");
            }
            probes[who].expect_released(&name).await;
            changes += usize::from(before.is_some_and(|before| before != who));
            (last, before, granted) = (lease.token(), Some(who), granted + 1);
        }
        assert_eq!(fixture.holder(&lock).await, None);
    }
    print_figures(&format!(
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
