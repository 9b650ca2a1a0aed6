//! The Rust client of Leasehold, a lock broker.
//!
//! A lock is held while its [`Guard`] exists. The guard reports the loss of the lock when the
//! broker reports it, or when the client's own clock passes the end of the validity while no broker
//! responds.
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
//!     reason = guard.lost() => return Err(reason.into()),
//! }
//! guard.release().await?;
//!
//! // The same, without the chance to forget `select!`: on loss the work is dropped.
//! client.lock("orders/42").run(|held| async move { write(held.fencing_token()).await }).await??;
//!
//! // Or only if no other caller has it.
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
//! * [`Held::is_valid`] returns false, permanently, before another caller can acquire the lock.
//!   This also holds after a pause of this process or its machine: validity counts from the
//!   *sending* of the last confirmed heartbeat, on a clock that runs through a suspend, and ends a
//!   safety margin earlier.
//! * The validity alone does not protect data, because the process may pause between the check and
//!   the write. Send [`Held::fencing_token`] with every write, and reject smaller tokens at the
//!   resource.
//! * When a broker is stopped, killed or disconnected, the client renews its leases over another
//!   broker. Waiting calls keep their queue positions.
//! * The client never acquires a lost lock again: a lost lock stays lost.
//!
//! Tests of code that acquires locks need no broker: see [`fake`] (feature `fake`).

mod client;
mod clock;
mod command;
mod election;
mod endpoint;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod guard;
mod lock;
mod queue_position;
mod runtime;
mod session;
mod target;
mod telemetry;
mod validity;

/// TLS types for https endpoints, used with [`Builder::tls`].
#[cfg(feature = "tls")]
pub use tonic::transport::{Certificate, ClientTlsConfig, Identity};

pub use self::{
    client::{Builder, Client},
    election::{Election, Observer},
    error::{
        Closure, ClosureCause, ConnectError, Contention, Error, ErrorDetail, Holder, LostReason,
        ReleaseError, RunError,
    },
    guard::{Guard, Held},
    lock::Lock,
    queue_position::{QueuePosition, StoreRecovery},
    target::Target,
};
