//! The threads that the broker runs on.

use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

/// As many workers as half of the cores, at least one. The store beside the broker runs one script
/// at a time: more workers would mostly wake each other, and take the cores that Redis and the
/// network need.
///
/// # Panics
/// If the system refuses to start threads.
pub fn start() -> Runtime {
    let workers = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("the system starts threads")
}
