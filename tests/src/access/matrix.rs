//! The authorization matrix: every call of the API descriptor, every field that can name a lock,
//! and every kind of caller.

pub mod api_entries;
pub mod command_recorder;
pub mod connection;
pub mod field_rules;
pub mod fixture;
pub mod lease_stream;
pub mod raw_call;
pub mod request_builder;
pub mod requests;
pub mod required_permissions;
pub mod roles;
