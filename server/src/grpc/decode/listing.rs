//! Decoding of list and watch requests, and the page tokens of lists. Clients
//! treat tokens as opaque.

use data_encoding::BASE64URL_NOPAD;
use leasehold_proto::v1::{ListLocksRequest, WatchLocksRequest};

use crate::{
    lock::{ArgumentsHash, Filter, LockName, Namespace},
    request::{FieldValidator, OWNER_ID_MAX_BYTES, RequestError, Violation},
    store::Cursor,
};

const PAGE_DEFAULT: i32 = 100;
const PAGE_MAX: i32 = 1_000;
const PAGE_TOKEN: &str = "page_token";

/// A request for one page of a list.
pub(in crate::grpc) struct ListCall {
    pub(in crate::grpc) filter: Filter,
    pub(in crate::grpc) cursor: Option<Cursor>,
    /// Maximum number of locks on the page.
    pub(in crate::grpc) page_size: usize,
}

pub(in crate::grpc) fn list_locks(request: ListLocksRequest) -> Result<ListCall, RequestError> {
    let mut fields = FieldValidator::default();
    let filter = filter(
        &mut fields,
        request.namespace,
        request.name_prefix,
        request.owner_id,
    );
    let size = match request.page_size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    let page_size = usize::try_from(size).ok();
    if page_size.is_none() {
        fields.violation("page_size", "must not be negative");
    }
    let mut start_cursor = None;
    if let (Some(filter), false) = (&filter, request.page_token.is_empty()) {
        start_cursor = cursor(filter, &request.page_token);
        if start_cursor.is_none() {
            let description = "must be the next_page_token of the previous call, with all other \
                               fields unchanged: start again with the first page";
            fields.violation(PAGE_TOKEN, description);
        }
    }
    let (filter, page_size) = fields.finish(filter.zip(page_size))?;
    Ok(ListCall {
        filter,
        cursor: start_cursor,
        page_size,
    })
}

/// Decodes the filter of a watch. The boolean is true if the watch resumes an earlier one.
pub(in crate::grpc) fn watch_locks(
    request: WatchLocksRequest,
) -> Result<(Filter, bool), RequestError> {
    let mut fields = FieldValidator::default();
    let (namespace, prefix) = (request.namespace, request.name_prefix);
    let filter = filter(&mut fields, namespace, prefix, String::new());
    Ok((fields.finish(filter)?, !request.resume_token.is_empty()))
}

fn filter(
    fields: &mut FieldValidator,
    namespace: String,
    name_prefix: String,
    owner_id: String,
) -> Option<Filter> {
    let mut filter = Filter {
        namespace: None,
        name_prefix,
        owner_id,
    };
    let mut is_legal = true;
    let mut reject = |field: &str, problem| {
        fields.violation(field, problem);
        is_legal = false;
    };
    if !namespace.is_empty() {
        match Namespace::parse(&namespace) {
            Ok(namespace) => filter.namespace = Some(namespace),
            Err(problem) => reject("namespace", problem),
        }
    }
    if let (false, Err(problem)) = (
        filter.name_prefix.is_empty(),
        LockName::parse(&filter.name_prefix),
    ) {
        reject("name_prefix", problem);
    }
    if filter.owner_id.len() > OWNER_ID_MAX_BYTES {
        reject("owner_id", "must be at most 256 bytes");
    }
    is_legal.then_some(filter)
}

/// Returns the error for a page token that is well-formed, but no longer refers to a position.
pub(in crate::grpc) fn stale_token() -> RequestError {
    RequestError::Invalid(vec![Violation {
        field: PAGE_TOKEN.to_owned(),
        description: "belongs to a server that was removed or replaced: start again with the first \
                      page",
    }])
}

/// Returns the token by which a list with `filter` continues at `cursor`.
pub(in crate::grpc) fn page_token(filter: &Filter, cursor: &Cursor) -> String {
    let text = cursor.to_text();
    let encoded = BASE64URL_NOPAD.encode(text.as_bytes());
    format!("{}{encoded}", digest(filter, &text))
}

fn cursor(filter: &Filter, token: &str) -> Option<Cursor> {
    let (digits, encoded) = token.split_at_checked(ArgumentsHash::LEN)?;
    let text = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
    let text = String::from_utf8(text).ok()?;
    let is_digest_valid = digits == digest(filter, &text).as_str();
    Cursor::parse(&text).filter(|_| is_digest_valid)
}

fn digest(filter: &Filter, cursor: &str) -> ArgumentsHash {
    let namespace = filter.namespace.as_ref().map_or("", Namespace::as_str);
    let fields = [namespace, &filter.name_prefix, &filter.owner_id, cursor];
    ArgumentsHash::of(&fields.map(str::as_bytes))
}
