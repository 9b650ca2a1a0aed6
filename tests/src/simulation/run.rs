//! Runs of plans.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_server::{
    lock::{AcquireCall, ArgumentsHash, LeaseOptions, Mode, Owner, RequestId, Target, Ttl},
    store::memory::SavedRecords,
};
use tokio::{
    runtime::Builder,
    time::{sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    client::Client,
    plan::{FaultPlan, LOCKS, Plan, Planned},
    world::{World, lock_key},
};
use crate::history::{Event, Fault, Rule, Verdict, Violation, judge};

/// Time after which every lease of stopped clients has expired, whatever has happened before.
const EXPIRY: Duration = Duration::from_secs(120);
/// Time for which a fault may have effects after its end: messages are late, hand-offs lapse, and
/// brokers count as silent. Longer than the time for which a new era grants nothing.
const AFTER_EFFECTS: Duration = Duration::from_secs(10);

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub history: Vec<Event>,
    pub verdict: Verdict,
}

/// Runs a plan and judges its history. Equal plans have equal outcomes.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O");
    let (history, stranded) = runtime.block_on(simulate(plan));
    let mut verdict = judge(&history);
    verdict.violations.extend(stranded);
    Outcome { history, verdict }
}

async fn simulate(plan: &Plan) -> (Vec<Event>, Vec<Violation>) {
    let world = World::new(plan);
    let stop = CancellationToken::new();
    let clients = plan.clients.iter().cloned().enumerate();
    let clients = clients.map(|(index, client)| {
        let client = Client::new(Arc::clone(&world), client, index);
        tokio::spawn(client.run(stop.clone()))
    });
    let clients: Vec<_> = clients.collect();
    for fault in &plan.faults {
        inject(&world, fault).await;
    }
    sleep_until(world.instant(plan.duration_ms * 1_000)).await;
    stop.cancel();
    for client in join_all(clients).await {
        client.expect("a client does not panic");
    }
    let history = world.take_history();
    sleep(EXPIRY).await;
    let mut stranded = Vec::new();
    for lock in 0..LOCKS {
        stranded.extend(probe(&world, lock).await);
    }
    (history, stranded)
}

/// Acquires a lock whose leases have expired. Returns a violation if that fails.
async fn probe(world: &Arc<World>, lock: usize) -> Option<Violation> {
    let key = lock_key(lock);
    let semaphore = Mode::Semaphore {
        permits: 1,
        limit: 0,
    };
    let is_semaphore = lock == LOCKS - 1;
    let number = world.next_number();
    let request_id = format!("00000000-0000-4000-8000-{number:012x}");
    let call = AcquireCall {
        targets: vec![Target {
            lock: key.clone(),
            mode: if is_semaphore {
                semaphore
            } else {
                Mode::Exclusive
            },
        }],
        under: None,
        owner: Owner::default(),
        ttl: Ttl::from_stored(1_000),
        options: LeaseOptions::default(),
        // A hand-off to a waiter whose broker died undetected lapses after 3 s.
        wait_ms: 30_000,
        request_id: RequestId::parse(&request_id).expect("a UUID"),
        arguments: ArgumentsHash::of(&[]),
    };
    if is_semaphore {
        // Without a fixed limit the call must name one.
        let set = Arc::clone(world).unary(lock, |broker| async move {
            let result = broker.set_limit(&key, Some(1)).await;
            result.map_err(|error| error.for_lock(&key))
        });
        let _ = set.await;
    }
    let acquired = Arc::clone(world).unary(lock, |broker| async move {
        broker.acquire(&Arc::default(), call).await
    });
    let failure = acquired.await.err()?;
    Some(Violation {
        rule: Rule::FreedAfterExpiry,
        at_us: world.now_us(),
        description: format!("lock-{lock} after all leases had expired: {failure:?}"),
    })
}

/// Injects a fault at its time, and returns when it has ended.
async fn inject(world: &Arc<World>, fault: &Planned<FaultPlan>) {
    let at = world.instant(fault.at_ms * 1_000);
    if let FaultPlan::DataLoss { age_ms } = fault.what {
        let mut saved = SavedRecords::default();
        if let Some(age_ms) = age_ms {
            sleep_until(world.instant(fault.at_ms.saturating_sub(age_ms) * 1_000)).await;
            saved = world.store.save().records;
        }
        sleep_until(at).await;
        world.begin(&Fault::DataLoss);
        world.store.lose_data(saved);
        return end_later(world, Fault::DataLoss, AFTER_EFFECTS);
    }
    if let FaultPlan::Promotion { age_ms, clock_ms } = fault.what {
        sleep_until(world.instant(fault.at_ms.saturating_sub(age_ms) * 1_000)).await;
        let saved = world.store.save();
        sleep_until(at).await;
        world.begin(&Fault::DataLoss);
        let quarantine = world.store.promote(saved, clock_ms);
        return end_later(world, Fault::DataLoss, 2 * quarantine + AFTER_EFFECTS);
    }
    sleep_until(at).await;
    match fault.what {
        FaultPlan::DataLoss { .. } | FaultPlan::Promotion { .. } => {}
        FaultPlan::SpanLimit { limit_ms } => world.store.change_span_limit(limit_ms),
        FaultPlan::Stall { for_ms } => {
            world.begin(&Fault::StoreStalled);
            world.store.set_stalled(true);
            sleep(Duration::from_millis(for_ms)).await;
            world.store.set_stalled(false);
            end_later(world, Fault::StoreStalled, AFTER_EFFECTS);
        }
        FaultPlan::Lossy { for_ms, permille } => {
            world.begin(&Fault::MessagesLost);
            world.store.set_lossy(permille);
            sleep(Duration::from_millis(for_ms)).await;
            world.store.set_lossy(0);
            end_later(world, Fault::MessagesLost, AFTER_EFFECTS);
        }
        FaultPlan::Kill { broker, for_ms } => kill(world, broker, for_ms).await,
        FaultPlan::Pause { broker, for_ms } => {
            let Some(running) = world.broker(broker) else {
                return;
            };
            let broker = running.name;
            let fault = Fault::BrokerPaused { broker };
            world.begin(&fault);
            running.link.set_paused(true);
            sleep(Duration::from_millis(for_ms)).await;
            running.link.set_paused(false);
            end_later(world, fault, AFTER_EFFECTS);
        }
        FaultPlan::Drain { broker, for_ms } => {
            let Some(running) = world.broker(broker) else {
                return;
            };
            let name = running.name;
            let fault = Fault::BrokerDrained { broker: name };
            world.begin(&fault);
            running.broker.drain(Duration::from_millis(for_ms));
            sleep(Duration::from_millis(for_ms)).await;
            kill(world, broker, 0).await;
            world.end(&fault);
        }
    }
}

/// Kills the broker at an address, and starts another one after a time.
async fn kill(world: &Arc<World>, address: usize, for_ms: u64) {
    if let Some(running) = world.stop_broker(address) {
        let broker = running.name;
        world.begin(&Fault::BrokerKilled { broker });
        running.link.killed.cancel();
    }
    sleep(Duration::from_millis(for_ms)).await;
    world.start_broker(address);
}

fn end_later(world: &Arc<World>, fault: Fault, delay: Duration) {
    let world = Arc::clone(world);
    tokio::spawn(async move {
        sleep(delay).await;
        world.end(&fault);
    });
}
