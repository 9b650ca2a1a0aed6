//! Authentication and authorization.

pub mod files_and_callers;
pub mod fixture;
pub mod jwks_server;
pub mod matrix;
pub mod mutual_tls_fixture;
