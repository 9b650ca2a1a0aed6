//! Authentication and authorization: connections, rights of callers, and changing credentials.

mod loads {
    mod web_pages;
}
mod waits {
    mod credential_ends;
    mod credentials;
    mod key_set;
    mod late_messages;
    mod outlive;
    mod rotation;
    mod transport;
}

mod admission;
mod browsers;
mod canary;
mod certificates;
mod changes;
mod hosts;
mod leases;
mod lists;
mod matrix;
mod names;
mod page_tokens;
mod policy;
mod streams;
mod watches;
