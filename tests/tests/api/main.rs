//! The gRPC API on one or several brokers: requests, replies, rejections, quotas, listing and
//! watching.

mod alone {
    mod stalled_store;
}
mod loads {
    mod connections;
    mod idempotence;
    mod streams;
}
mod waits {
    mod force_release_states;
    mod quotas;
    mod watching;
}

mod all_or_none;
mod beside_the_api;
mod closures;
mod edge;
mod force_release;
mod listing;
mod modes;
mod raw_grpcurl;
mod reentry;
mod refusals;
mod undelivered;
