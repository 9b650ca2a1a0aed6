//! What a list or a watch is asked for, and the tokens by which it goes on: opaque to clients.

use data_encoding::BASE64URL_NOPAD;
use leasehold_proto::v1::{ListLocksRequest, WatchLocksRequest};

use super::fields::{Fields, OWNER_ID_MAX_BYTES};
use crate::{
    grpc::status::{Refused, Violation},
    lock::{ArgumentsHash, Filter, LockName, Namespace},
    store::Cursor,
};

const PAGE_DEFAULT: i32 = 100;
const PAGE_MOST: i32 = 1_000;
const PAGE_TOKEN: &str = "page_token";

/// One page of a list.
pub(in crate::grpc) struct ListCall {
    pub(in crate::grpc) filter: Filter,
    pub(in crate::grpc) from: Option<Cursor>,
    /// How many locks at most.
    pub(in crate::grpc) most: usize,
}

pub(in crate::grpc) fn list_locks(request: ListLocksRequest) -> Result<ListCall, Refused> {
    let mut fields = Fields::default();
    let filter = filter(
        &mut fields,
        request.namespace,
        request.name_prefix,
        request.owner_id,
    );
    let size = match request.page_size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MOST),
    };
    let most = usize::try_from(size).ok();
    if most.is_none() {
        fields.violation("page_size", "must not be negative");
    }
    let mut from = None;
    if let (Some(filter), false) = (&filter, request.page_token.is_empty()) {
        from = cursor(filter, &request.page_token);
        if from.is_none() {
            let what = "must be the next_page_token of the call before, whose other fields were the \
                same: begin again with the first page";
            fields.violation(PAGE_TOKEN, what);
        }
    }
    let (filter, most) = fields.accept(filter.zip(most))?;
    Ok(ListCall { filter, from, most })
}

/// Which locks to watch, and whether the watch goes on after a break.
pub(in crate::grpc) fn watch_locks(request: WatchLocksRequest) -> Result<(Filter, bool), Refused> {
    let mut fields = Fields::default();
    let (namespace, prefix) = (request.namespace, request.name_prefix);
    let filter = filter(&mut fields, namespace, prefix, String::new());
    Ok((fields.accept(filter)?, !request.resume_token.is_empty()))
}

fn filter(
    fields: &mut Fields,
    namespace: String,
    name_prefix: String,
    owner_id: String,
) -> Option<Filter> {
    let mut read = Filter {
        namespace: None,
        name_prefix,
        owner_id,
    };
    let mut is_legal = true;
    let mut wrong = |field: &str, why| {
        fields.violation(field, why);
        is_legal = false;
    };
    if !namespace.is_empty() {
        match Namespace::parse(&namespace) {
            Ok(namespace) => read.namespace = Some(namespace),
            Err(why) => wrong("namespace", why),
        }
    }
    if let (false, Err(why)) = (
        read.name_prefix.is_empty(),
        LockName::parse(&read.name_prefix),
    ) {
        wrong("name_prefix", why);
    }
    if read.owner_id.len() > OWNER_ID_MAX_BYTES {
        wrong("owner_id", "must be at most 256 bytes");
    }
    is_legal.then_some(read)
}

/// A token that was given out can be read, but leads nowhere now.
pub(in crate::grpc) fn stale_token() -> Refused {
    Refused::Invalid(vec![Violation {
        field: PAGE_TOKEN.to_owned(),
        description: "is of a server that is gone or was replaced: begin again with the first page",
    }])
}

/// By which a list of these locks goes on there.
pub(in crate::grpc) fn page_token(filter: &Filter, cursor: &Cursor) -> String {
    let text = cursor.to_text();
    let encoded = BASE64URL_NOPAD.encode(text.as_bytes());
    format!("{}{encoded}", digest(filter, &text))
}

fn cursor(filter: &Filter, token: &str) -> Option<Cursor> {
    let (digits, encoded) = token.split_at_checked(ArgumentsHash::LEN)?;
    let text = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
    let text = String::from_utf8(text).ok()?;
    let is_ours = digits == digest(filter, &text).as_str();
    Cursor::parse(&text).filter(|_| is_ours)
}

fn digest(filter: &Filter, cursor: &str) -> ArgumentsHash {
    let namespace = filter.namespace.as_ref().map_or("", Namespace::as_str);
    let fields = [namespace, &filter.name_prefix, &filter.owner_id, cursor];
    ArgumentsHash::of(&fields.map(str::as_bytes))
}
