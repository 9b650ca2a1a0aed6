//! The calls whose cost is counted: one lock each, no waiter, and the default ttl.

use leasehold_server::lock::{AcquireCommand, Attachment, BrokerId, Owner, StreamId};
use leasehold_tests::store_fixture::{lock_key, new_call};

/// Number of calls of each verb, one for each lock.
pub(crate) const CALLS: usize = 256;

/// Returns an acquire of each lock. All names and ids have equal lengths.
pub(crate) fn acquires() -> Vec<AcquireCommand> {
    let acquire = |number: usize| AcquireCommand {
        owner: Owner {
            id: "counts".to_owned(),
            ..Owner::default()
        },
        ..new_call(&lock_key("default", &format!("orders/{number:05}")))
    };
    (0..CALLS).map(acquire).collect()
}

/// Returns an attachment to the first stream of a broker.
pub(crate) fn attachment(broker: BrokerId) -> Attachment {
    let stream = StreamId { broker, epoch: 1 };
    Attachment { stream, number: 1 }
}
