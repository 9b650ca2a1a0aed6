//! Authentication and authorization: who may connect, who may do what, and credentials that change.

mod waits {
    mod credential_ends;
    mod credentials;
    mod key_set;
    mod rotation;
    mod transport;
}

mod canary;
mod changes;
mod leases;
mod lists;
mod matrix;
mod names;
mod page_tokens;
mod policy;
mod streams;
mod watches;
