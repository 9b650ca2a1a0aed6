//! Harness of the black-box tests: real brokers, real Redis, real sockets, and a referee.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

pub mod ahead;
pub mod beats;
pub mod binary;
pub mod broker_process;
pub mod certificates;
pub mod cli;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod cluster_course;
pub mod cluster_site;
pub mod cluster_store;
pub mod cluster_work;
pub mod conformance;
pub mod crowd;
pub mod deployment;
pub mod differential;
pub mod fault_report;
pub mod faults;
pub mod gate;
pub mod golden;
pub mod holder;
pub mod in_process;
pub mod load;
pub mod log_capture;
pub mod operator;
pub mod port;
pub mod printed_rights;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod redis_connection;
pub mod redis_copies;
pub mod redis_node;
pub mod redis_proxy;
pub mod redis_server;
pub mod redlock;
pub mod redlock_broker;
pub mod refusing;
pub mod resource;
pub mod scale;
pub mod sdk_broker;
pub mod sdk_callers;
pub mod sdk_cut;
pub mod sdk_dropper;
pub mod sdk_line;
pub mod sdk_site;
pub mod sdk_stay;
pub mod sentinel;
pub mod setup;
pub mod shared_cluster;
pub mod shared_redis;
pub mod shared_sentinel;
pub mod shim;
pub mod status;
pub mod store_clock;
pub mod stream_client;
pub mod subscriptions;
pub mod suite;
pub mod tap;
pub mod temp_dir;
pub mod terminal;
pub mod time_left;
pub mod tls_files;
pub mod tls_relay;
pub mod trust_log;
pub mod turns;
pub mod until;
pub mod witness;
pub mod world;
