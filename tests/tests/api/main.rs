//! The gRPC API on one broker or several: requests, replies, refusals, quotas, listing and watching.

mod loads {
    mod connections;
    mod idempotence;
    mod refusals;
}

mod all_or_none;
mod beside_the_api;
mod edge;
mod force_release;
mod force_release_states;
mod listing;
mod modes;
mod quotas;
mod raw_grpcurl;
mod reentry;
mod watching;
