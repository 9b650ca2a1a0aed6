//! A reply to a call of a lease that arrives after its lock was released, added again and released
//! again.

use leasehold_server::lock::Mode;
use leasehold_tests::model::{
    ModelWorld as _,
    action::{Action, CallArguments, ReleasePart, Target},
    keys::{AttemptKey, CallKey, MessageKey, TaskKey},
    random::LOW_BOUNDS,
    world::{World, WorldSize},
};

/// A client with the slowest clock that assumption A2 allows.
const CLIENT: u8 = 1;

fn call(number: u8) -> CallKey {
    CallKey {
        client: CLIENT,
        number,
    }
}

fn acquire(number: u8, broker: u8) -> Action {
    Action::Acquire(Box::new(CallArguments {
        call: call(number),
        broker,
        targets: vec![Target {
            lock: 0,
            mode: Mode::Exclusive,
        }],
        under: (number > 0).then(|| call(0)),
        ttl_ms: 2_000,
        wait_ms: 5_000,
        lock_delay_ms: 0,
        at_least_ms: 0,
        is_on_stream: false,
        disconnect_grace_ms: None,
        max_hold_ms: None,
    }))
}

fn release(operation: u8) -> Action {
    Action::Release {
        client: CLIENT,
        operation,
        lease: call(0),
        part: ReleasePart::Lock(0),
        broker: 0,
    }
}

fn deliver(task: TaskKey, numbers: std::ops::RangeInclusive<u16>) -> impl Iterator<Item = Action> {
    numbers.map(move |number| Action::Deliver(MessageKey { task, number }))
}

fn deliver_acquire(
    number: u8,
    messages: std::ops::RangeInclusive<u16>,
) -> impl Iterator<Item = Action> {
    let attempt = AttemptKey {
        call: call(number),
        number: 0,
    };
    deliver(TaskKey::Acquire(attempt), messages)
}

#[test]
fn a_late_grant_of_an_earlier_hold_is_ignored() {
    let mut history = vec![acquire(0, 0)];
    history.extend(deliver_acquire(0, 1..=4));
    history.push(acquire(1, 1));
    history.extend(deliver_acquire(1, 1..=4));
    history.push(release(2));
    history.extend(deliver(TaskKey::Operation(CLIENT, 2), 1..=2));
    history.push(Action::Advance(2_399));
    history.push(acquire(2, 1));
    history.extend(deliver_acquire(2, 1..=4));
    history.push(release(1));
    history.extend(deliver_acquire(1, 5..=6));
    let mut world = World::new(WorldSize {
        clients: 2,
        brokers: 2,
        locks: 1,
        bounds: LOW_BOUNDS,
        has_journal: false,
    });
    for action in history {
        let applied = world.apply(&action);
        let applied = applied.unwrap_or_else(|violation| panic!("{action}: {violation}"));
        assert!(applied, "{action}");
    }
}
