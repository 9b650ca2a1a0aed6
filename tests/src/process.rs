//! Child processes and their environment.

pub mod binaries;
pub mod boottime_shim;
pub mod child;
pub mod leasehold_command;
pub mod log_capture;
pub mod ports;
pub mod preload_shim;
pub mod private_wall_clock;
pub mod temp_dir;
pub mod terminal;
pub mod worker_processes;
