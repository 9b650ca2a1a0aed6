//! Callers, oracle, fault reports.

pub mod background_load;
pub mod caller;
pub mod callers;
pub mod control_clients;
pub mod fault_report;
pub mod faults;
pub mod grant_rate;
pub mod lease_use;
pub mod losses;
pub mod lost_writes;
pub mod mutual_exclusion_oracle;
pub mod store_expiry;
