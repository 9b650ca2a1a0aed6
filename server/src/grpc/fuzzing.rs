//! What the fuzz targets of requests call.

use std::sync::{Arc, LazyLock};

use leasehold_proto::v1::{HoldRequest, ListLocksRequest};
use prost::Message;
use tokio::sync::watch;
use tonic::{
    Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{
    admit::{Asking, authenticate},
    decode::{self, listing},
    hold,
    status::Refused,
    timeout,
};
use crate::{
    access::{Gate, Rules},
    lock::{Filter, Limits, TraceParent},
    metrics::Metrics,
    store::Cursor,
    trace::Traced,
};

static ASKING: LazyLock<Asking> = LazyLock::new(|| {
    let (_, rules) = watch::channel(Arc::new(Rules::open()));
    let gate = Gate::new(rules, Metrics::off());
    let admitted = authenticate(&gate, None, None)
        .and_then(|caller| Asking::admitted(&gate, Limits::default(), caller, None));
    match admitted {
        Ok(asking) => asking,
        Err(status) => unreachable!("the rules admit all callers: {status}"),
    }
});

/// Every message that a client may send, and the headers whose text the broker reads.
const REQUESTS: [fn(&[u8]); 12] = [
    |bytes| check(bytes, |request| decode::acquire(request, &ASKING)),
    |bytes| check(bytes, |request| decode::acquire_all(request, &ASKING)),
    |bytes| check(bytes, |request| decode::release(request, &ASKING)),
    |bytes| check(bytes, |request| decode::renew(request, &ASKING)),
    |bytes| {
        check(bytes, |request| {
            decode::check_fencing_token(request, &ASKING)
        })
    },
    |bytes| check(bytes, |request| decode::get_lock(request, &ASKING)),
    |bytes| check(bytes, listing::list_locks),
    |bytes| check(bytes, listing::watch_locks),
    |bytes| check(bytes, |request| decode::set_lock_limit(request, &ASKING)),
    |bytes| check(bytes, |request| decode::force_release(request, &ASKING)),
    hold_message,
    header_value,
];

/// Decodes and checks a message. The first byte says which: `a` is the first of `REQUESTS`.
pub fn grpc_request(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let index = usize::from(kind.wrapping_sub(b'a'));
    REQUESTS[index % REQUESTS.len()](bytes);
}

fn check<M: Message + Default, T>(bytes: &[u8], read: impl FnOnce(M) -> Result<T, Refused>) {
    if let Ok(message) = M::decode(bytes)
        && let Err(refused) = read(message)
    {
        drop(Status::from(refused));
    }
}

fn hold_message(bytes: &[u8]) {
    let mut asking = ASKING.clone();
    if let Ok(request) = HoldRequest::decode(bytes)
        && let Some(message) = request.message
    {
        drop(hold::asked(message, &mut asking, Traced::current()));
    }
}

fn header_value(bytes: &[u8]) {
    let Ok(value) = MetadataValue::try_from(bytes) else {
        return;
    };
    if let Some(parent) = value.to_str().ok().and_then(TraceParent::parse) {
        assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
    }
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-timeout", value);
    timeout::wait_max_ms(&metadata);
}

/// Reads the text as a page token, and as the cursor in one: a token that the broker has issued leads
/// to its cursor, and only in a list with the same filter.
pub fn page_token(text: &str) {
    let request = |filter: &Filter, page_token: String| ListLocksRequest {
        owner_id: filter.owner_id.clone(),
        page_token,
        ..ListLocksRequest::default()
    };
    let everything = Filter {
        namespace: None,
        name_prefix: String::new(),
        owner_id: String::new(),
    };
    drop(listing::list_locks(request(&everything, text.to_owned())));
    let Some(cursor) = Cursor::parse(text) else {
        return;
    };
    let token = listing::page_token(&everything, &cursor);
    let other = Filter {
        owner_id: "another".to_owned(),
        ..everything.clone()
    };
    assert!(listing::list_locks(request(&other, token.clone())).is_err());
    match listing::list_locks(request(&everything, token)) {
        Ok(call) => assert_eq!(call.from, Some(cursor)),
        Err(_) => panic!("the broker refuses its own token of {cursor:?}"),
    }
}
