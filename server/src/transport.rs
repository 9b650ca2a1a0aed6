//! Connections of clients: accepted within limits, encrypted, and watched for what no caller does.

mod acceptor;
mod backlog;
mod budget;
mod bursts;
mod connection;
mod control;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod load;
mod seats;
mod tls;
mod turns;

pub use self::{
    acceptor::{Accepted, Acceptor, Setup},
    budget::Budget,
    connection::{Connection, Peer},
    frames::Speaks,
    load::{Answer, Costly, Load, Partial, Paused, Places, Unread, WaitsForPlace},
    seats::{ConnectionLimits, Connections},
    tls::{Tls, TlsFiles},
};
