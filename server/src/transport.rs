//! Client connections: connection limits, TLS, and protection against HTTP/2 floods and memory use.

mod acceptor;
mod backlog;
mod budget;
mod bursts;
mod connection;
mod connection_limit;
mod connection_load;
mod control;
mod frame_monitor;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod read_permits;
mod tls;

pub use self::{
    acceptor::{Acceptor, Incoming, ListenerSettings},
    budget::Budget,
    connection::{Connection, Peer},
    connection_limit::ConnectionLimits,
    connection_load::{
        ConnectionLoad, ExpensiveCall, ExpensiveCallLimits, IncomingCall, Paused, UnreadBytes,
        UnreadResponse,
    },
    frame_monitor::AllowedProtocol,
    tls::{Tls, TlsFiles},
};
