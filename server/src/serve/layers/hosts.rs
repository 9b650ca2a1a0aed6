//! Keeps names of others away from the admin listener where nothing else does: without authentication, a page under a
//! name that its owner has made to resolve to this listener could read and do everything.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{StatusCode, uri::Authority},
    response::{IntoResponse as _, Response},
};

use super::small::Check;
use crate::{
    access::Gate,
    browsers,
    metrics::{Metrics, Refusal},
};

/// The names by which the listener may be called. Cheap to clone.
#[derive(Clone)]
pub(super) struct Hosts {
    /// In lower case.
    names: Arc<[String]>,
    gate: Gate,
    metrics: Metrics,
}

impl Hosts {
    /// Creates the guard of a listener with these names of its own.
    pub(super) fn new(names: &[String], gate: Gate, metrics: Metrics) -> Self {
        Self {
            names: names.into(),
            gate,
            metrics,
        }
    }

    fn include(&self, host: &Authority) -> bool {
        let is_name = |name: &String| host.host().eq_ignore_ascii_case(name);
        browsers::is_address(host) || self.names.iter().any(is_name)
    }
}

/// Refuses requests under any other name, unless callers must show who they are.
impl Check for Hosts {
    fn refusal(&self, request: &mut Request) -> Option<Response> {
        let host = browsers::host(request);
        if self.gate.asks() || host.is_some_and(|host| self.include(&host)) {
            return None;
        }
        self.metrics.refused(Refusal::Host);
        let why = "Without authentication this listener answers to IP addresses, localhost and the names in \
               server.admin_hosts only: call it by its address, or add the name there.\n";
        Some((StatusCode::MISDIRECTED_REQUEST, why).into_response())
    }
}
