//! Entry points of the fuzz targets for requests.

use std::sync::{Arc, LazyLock};

use leasehold_proto::v1::HoldRequest;
use prost::Message;
use tokio::sync::watch;
use tonic::{
    Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{deadline, decode, hold};
use crate::{
    access::{AccessControl, AccessRules},
    inspection::{self, ListRequest},
    lock::{Filter, Limits, TraceParent},
    metrics::Metrics,
    request::{RequestContext, RequestError},
    store::Cursor,
    trace::Span,
};

static CONTEXT: LazyLock<RequestContext> = LazyLock::new(|| {
    let (_, rules) = watch::channel(Arc::new(AccessRules::allow_all()));
    let access = AccessControl::new(rules, Metrics::off());
    match RequestContext::authenticate(&access, Limits::default(), None, None) {
        Ok(context) => context,
        Err(error) => unreachable!("the rules accept all callers: {error}"),
    }
});

/// Decoders of every message that a client may send, and of the headers whose text
/// the broker parses.
const DECODERS: [fn(&[u8]); 12] = [
    |bytes| check(bytes, |request| decode::acquire(request, &CONTEXT.limits)),
    |bytes| {
        check(bytes, |request| {
            decode::acquire_all(request, &CONTEXT.limits)
        })
    },
    |bytes| check(bytes, |request| decode::release(request, &CONTEXT.limits)),
    |bytes| check(bytes, |request| decode::renew(request, &CONTEXT.limits)),
    |bytes| check(bytes, decode::check_fencing_token),
    |bytes| check(bytes, |request| decode::get_lock(&request)),
    |bytes| check(bytes, |request| decode::list_locks(request).validate()),
    |bytes| check(bytes, |request| decode::watch_locks(request).validate()),
    |bytes| check(bytes, decode::set_lock_limit),
    |bytes| {
        check(bytes, |request| {
            decode::force_release(request, &CONTEXT.limits)
        })
    },
    hold_message,
    header_value,
];

/// Decodes and checks a message. The first byte selects the decoder: `a` is the
/// first of `DECODERS`.
pub fn grpc_request(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let index = usize::from(kind.wrapping_sub(b'a'));
    DECODERS[index % DECODERS.len()](bytes);
}

fn check<M: Message + Default, T>(bytes: &[u8], decode: impl FnOnce(M) -> Result<T, RequestError>) {
    if let Ok(message) = M::decode(bytes)
        && let Err(error) = decode(message)
    {
        drop(Status::from(error));
    }
}

fn hold_message(bytes: &[u8]) {
    let mut context = CONTEXT.clone();
    if let Ok(request) = HoldRequest::decode(bytes)
        && let Some(message) = request.message
    {
        drop(hold::decode(message, &mut context, Span::current()));
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
    deadline::wait_max_ms(&metadata);
}

/// Parses the text as a page token, and as the cursor in one. A token that the broker has issued
/// must decode to its cursor, and only in a list with the same filter.
pub fn page_token(text: &str) {
    let validate = |filter: &Filter, page_token: String| {
        let request = ListRequest {
            owner_id: filter.owner_id.clone(),
            page_token,
            ..ListRequest::default()
        };
        request.validate()
    };
    let unfiltered = Filter::default();
    drop(validate(&unfiltered, text.to_owned()));
    let Some(cursor) = Cursor::parse(text) else {
        return;
    };
    let token = inspection::page_token(&unfiltered, &cursor);
    let other_filter = Filter {
        owner_id: "another".to_owned(),
        ..Filter::default()
    };
    assert!(validate(&other_filter, token.clone()).is_err());
    match validate(&unfiltered, token) {
        Ok(query) => assert_eq!(query.cursor, Some(cursor)),
        Err(_) => panic!("the broker rejects its own token of {cursor:?}"),
    }
}
