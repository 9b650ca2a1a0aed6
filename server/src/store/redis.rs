//! The Redis store.

pub mod connection;
pub mod decide;
pub mod era;
pub mod init;
pub mod node;
mod open;
mod probe;
pub mod script;
mod settle;
pub mod supervisor;
mod verify;
