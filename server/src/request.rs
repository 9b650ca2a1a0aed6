//! Requests of callers in plain types, for `grpc` and `console`: authenticates and authorizes their
//! callers, validates their fields, and has the errors that they fail with.

mod context;
mod error;
mod fields;

pub use self::{
    context::{RequestContext, bearer_token},
    error::{RequestError, VIOLATIONS_MAX, Violation, truncate},
    fields::{FieldValidator, OWNER_ID_MAX_BYTES, REASON_MAX_BYTES},
};
