//! Proxies, raw protocols, certificates.

pub mod balancer;
pub mod capturing_proxy;
pub mod certificates;
pub mod credential_recorder;
pub mod flood;
pub mod health;
pub mod http2_proxy;
pub mod incomplete_call;
pub mod partition_proxy;
pub mod plain_http;
pub mod raw_http2;
pub mod tls_relay;
pub mod web_site;
