//! Harness.
#![expect(
    clippy::disallowed_types,
    reason = "the harness waits for real processes outside of any runtime"
)]

pub mod redis_server;
