//! Tokio runtime of the broker.

use std::thread::available_parallelism;

use tokio::runtime::Builder;

/// Runs `main` to completion on one worker thread for every two cores, at least one. The store
/// beside the broker runs one script at a time: more workers would mostly wake each other, and use
/// the cores that Redis and the network need.
///
/// Does not wait for tasks that still run after `main`, because a DNS lookup may take half a
/// minute.
///
/// # Panics
/// If the system refuses to start threads.
pub fn run<T>(main: impl Future<Output = T>) -> T {
    let workers = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("the operating system can start threads");
    let result = runtime.block_on(main);
    runtime.shutdown_background();
    result
}
