//! Authentication and authorization: who may connect, who may do what, and credentials that change.

mod canary;
mod changes;
mod credential_ends;
mod credentials;
mod key_set;
mod leases;
mod lists;
mod matrix;
mod names;
mod page_tokens;
mod policy;
mod rotation;
mod streams;
mod transport;
mod watches;
