//! The operator console.

pub mod browser;
pub mod client;
pub mod fixture;
