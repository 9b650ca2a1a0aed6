//! The Rust client of Leasehold, a lock broker.
//!
//! A lock is held while its [`Guard`] lives, and the guard knows when it is not any more: the broker
//! says so, or the client's own clock does when the broker cannot be heard.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::Client;
//!
//! # async fn write(fencing_token: i64) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7070").await?;
//! let guard = client
//!     .lock("orders/42")
//!     .wait(Duration::from_secs(10))
//!     .reason("nightly reconcile")
//!     .on_queue(|place| println!("{} of {}", place.position, place.queue_length))
//!     .acquire()
//!     .await?;
//! tokio::select! {
//!     result = write(guard.fencing_token()) => result?,
//!     why = guard.lost() => return Err(why.into()),
//! }
//! guard.release().await?;
//!
//! // The same, without the chance to forget `select!`: on loss the work is dropped.
//! client.lock("orders/42").run(|held| async move { write(held.fencing_token()).await }).await??;
//!
//! // Or only if nobody else has it.
//! if let Some(guard) = client.lock("orders/42").try_acquire().await? {
//!     guard.release().await?;
//! }
//! client.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What can be relied on
//!
//! * [`Held::is_valid`] is false, and stays false, before anybody else can get the lock, also after
//!   this process or its machine stood still: validity counts from the *sending* of the last confirmed
//!   heartbeat, on a clock that runs through a suspend, and ends a margin earlier.
//! * That is not enough to protect data: between the check and the write the process may stand still.
//!   Send [`Held::fencing_token`] with every write, and refuse smaller ones there.
//! * A guard goes on over another broker when its broker is stopped, killed or cut off. The waits
//!   keep their places in line.
//! * Nothing is taken again silently: a lost lock stays lost.
//!
//! Tests of code that takes locks need no broker: see [`fake`] (feature `fake`).

mod client;
mod clock;
mod core;
mod election;
mod endpoint;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod guard;
mod keeper;
mod lock;
mod order;
mod queue;
mod target;
mod telemetry;
mod trust;

/// Transport security of https endpoints, as [`Builder::tls`] takes it.
#[cfg(feature = "tls")]
pub use tonic::transport::{Certificate, ClientTlsConfig, Identity};

pub use self::{
    client::{Builder, Client},
    election::{Election, Observer},
    error::{Busy, ConnectError, Error, Holder, LostReason, Refusal, ReleaseError, RunError},
    guard::{Guard, Held},
    lock::Lock,
    queue::Place,
    target::Target,
};
