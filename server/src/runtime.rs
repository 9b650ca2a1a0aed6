//! The threads that the broker runs on.

use std::thread::available_parallelism;

use tokio::runtime::Builder;

/// Runs `main` to its end on as many workers as half of the cores, at least one. The store beside the
/// broker runs one script at a time: more workers would mostly wake each other, and take the cores
/// that Redis and the network need.
///
/// What still runs then is not waited for: a look-up of a name may take half a minute.
///
/// # Panics
/// If the system refuses to start threads.
pub fn run<T>(main: impl Future<Output = T>) -> T {
    let workers = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("the system starts threads");
    let result = runtime.block_on(main);
    runtime.shutdown_background();
    result
}
