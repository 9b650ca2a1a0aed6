//! Checks the `Host` of requests to the admin listener (DNS rebinding). Without authentication, a
//! web page could otherwise read and change everything: its owner makes the page's name resolve to
//! this listener.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{StatusCode, uri::Authority},
    response::{IntoResponse as _, Response},
};

use super::generic::Check;
use crate::{
    access::AccessControl,
    browsers,
    metrics::{Metrics, RejectionReason},
};

/// Layer that checks host names. Cheap to clone.
#[derive(Clone)]
pub(super) struct Hosts {
    /// Allowed names in lower case.
    names: Arc<[String]>,
    access: AccessControl,
    metrics: Metrics,
}

impl Hosts {
    /// Creates the check with the allowed names.
    pub(super) fn new(names: &[String], access: AccessControl, metrics: Metrics) -> Self {
        Self {
            names: names.into(),
            access,
            metrics,
        }
    }

    fn contains(&self, host: &Authority) -> bool {
        let is_name = |name: &String| host.host().eq_ignore_ascii_case(name);
        browsers::is_address(host) || self.names.iter().any(is_name)
    }
}

/// Rejects requests with any other host, unless callers must authenticate.
impl Check for Hosts {
    fn reject(&self, request: &mut Request) -> Option<Response> {
        let host = browsers::host(request);
        if self.access.requires_authentication() || host.is_some_and(|host| self.contains(&host)) {
            return None;
        }
        self.metrics.request_rejected(RejectionReason::Host);
        let message = "Without authentication this listener accepts only IP addresses, localhost \
                   and the names in server.admin_hosts as the host: use its IP address, or add the \
                   name to server.admin_hosts.\n";
        Some((StatusCode::MISDIRECTED_REQUEST, message).into_response())
    }
}
