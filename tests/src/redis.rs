//! One Redis server, its connections, and stores shared by a run.

pub mod callgrind;
pub mod command_counts;
pub mod connection;
pub mod documented_acl_rules;
pub mod former_master;
pub mod node_fixture;
pub mod rejecting_fixture;
pub mod replica_and_backup;
pub mod reply_dropping_proxy;
pub mod server;
pub mod shared_server;
pub mod shared_stores;
pub mod subscriptions;
pub mod tls_files;
