//! A hedged call at a RedLock store, one of whose attempts is rolled back after the other one was
//! delivered.

use leasehold_server::lock::Mode;
use leasehold_tests::model::{
    ModelWorld as _,
    action::{CallArguments, Target},
    keys::{AttemptKey, CallKey, MessageKey, TaskKey},
    redlock::{RedlockAction as A, RedlockWorld, world::RedlockSize},
};

const CALL: CallKey = CallKey {
    client: 0,
    number: 4,
};
const OTHER: CallKey = CallKey {
    client: 1,
    number: 0,
};
const FIRST: TaskKey = TaskKey::Acquire(AttemptKey {
    call: CALL,
    number: 0,
});
const HEDGED: AttemptKey = AttemptKey {
    call: CALL,
    number: 1,
};
const SECOND: TaskKey = TaskKey::Acquire(HEDGED);
const ROLLBACK: TaskKey = TaskKey::Rollback(HEDGED, 0);
const ABANDON: TaskKey = TaskKey::Operation(0, 1);
const RENEWAL: TaskKey = TaskKey::Operation(0, 2);
const LATER: TaskKey = TaskKey::Acquire(AttemptKey {
    call: OTHER,
    number: 0,
});

fn acquire(call: CallKey, broker: u8) -> A {
    A::Acquire(Box::new(CallArguments {
        call,
        broker,
        targets: vec![Target {
            lock: 0,
            mode: Mode::Exclusive,
        }],
        under: None,
        ttl_ms: 2_000,
        wait_ms: 0,
        lock_delay_ms: 0,
        at_least_ms: 0,
        is_on_stream: false,
        disconnect_grace_ms: None,
        max_hold_ms: None,
    }))
}

fn deliver(task: TaskKey, numbers: &[u16]) -> impl Iterator<Item = A> {
    let message = move |number: &u16| {
        let number = *number;
        A::Deliver(MessageKey { task, number })
    };
    numbers.iter().map(message)
}

fn drop(task: TaskKey, number: u16) -> A {
    A::Drop(MessageKey { task, number })
}

/// Node 2 does not receive the vote of the first attempt, node 1 not that of the second one, which
/// raises the token of node 2 to that of the lease. A renewal then reaches nodes 0 and 2.
fn history() -> Vec<A> {
    let mut history = vec![
        acquire(CALL, 0),
        A::Retry {
            attempt: HEDGED,
            broker: 1,
        },
    ];
    history.extend(deliver(FIRST, &[1]));
    history.extend(deliver(SECOND, &[1]));
    history.extend(deliver(FIRST, &[2, 3]));
    history.push(drop(FIRST, 4));
    history.extend(deliver(SECOND, &[4, 2]));
    history.push(drop(SECOND, 3));
    history.extend(deliver(FIRST, &[5, 6, 7]));
    history.extend(deliver(SECOND, &[5, 6]));
    history.push(A::GiveUp(MessageKey {
        task: SECOND,
        number: 3,
    }));
    history.extend(deliver(SECOND, &[7, 9]));
    history.push(drop(SECOND, 8));
    history.push(A::Abandon {
        attempt: HEDGED,
        operation: 1,
    });
    history.extend(deliver(ABANDON, &[1]));
    history.extend(deliver(SECOND, &[10, 11]));
    history.push(A::Advance(1_000));
    history.push(A::Renew {
        client: 0,
        operation: 2,
        lease: CALL,
        broker: 0,
    });
    history.extend(deliver(RENEWAL, &[1, 2, 4]));
    history.push(drop(RENEWAL, 3));
    history.extend(deliver(RENEWAL, &[5, 6, 7]));
    history.push(A::Cancel(ROLLBACK));
    history.extend(deliver(ROLLBACK, &[1, 2, 3]));
    history.push(A::Advance(1_651));
    history.push(acquire(OTHER, 1));
    history.extend(deliver(LATER, &[1, 2, 3, 4, 5, 6, 7, 8, 9]));
    history
}

#[test]
fn a_rollback_keeps_a_lease_that_its_client_has_renewed() {
    let mut world = RedlockWorld::new(RedlockSize {
        clients: 2,
        clock_offsets: [0; 3],
        has_journal: false,
    });
    for action in history() {
        let applied = world.apply(&action);
        applied.unwrap_or_else(|violation| panic!("{action}: {violation}"));
    }
    let trusts = |client: usize, call: CallKey| {
        let lease = world.clients[client].leases.get(&call);
        let held = lease.and_then(|lease| lease.locks.get(&0));
        held.is_some_and(|held| world.now_us < held.trusted_until_us)
    };
    assert!(trusts(0, CALL), "the renewal was confirmed");
    assert!(!trusts(1, OTHER), "the lock is held");
}
