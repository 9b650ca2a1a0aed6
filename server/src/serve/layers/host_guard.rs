//! Checks the `Host` of requests to the admin listener (DNS rebinding). Without authentication, a
//! web page could otherwise read and change everything: its owner makes the page's name resolve to
//! this listener.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{StatusCode, uri::Authority},
    response::{IntoResponse as _, Response},
};

use crate::{
    access::AccessControl,
    browsers,
    metrics::{Metrics, RejectionReason},
};

/// Returns a check that rejects requests with any other host than the allowed `names`, which are in
/// lower case, unless callers must authenticate.
pub(super) fn host_guard(
    names: Arc<[String]>,
    access: AccessControl,
    metrics: Metrics,
) -> impl Fn(&mut Request) -> Option<Response> + Clone {
    move |request: &mut Request| {
        let is_allowed = |host: Authority| {
            let is_name = |name: &String| host.host().eq_ignore_ascii_case(name);
            browsers::is_address(&host) || names.iter().any(is_name)
        };
        if access.requires_authentication() || browsers::host(request).is_some_and(is_allowed) {
            return None;
        }
        metrics.request_rejected(RejectionReason::Host);
        let message = "Without authentication this listener accepts only IP addresses, localhost \
                   and the names in server.admin_hosts as the host: use its IP address, or add the \
                   name to server.admin_hosts.\n";
        Some((StatusCode::MISDIRECTED_REQUEST, message).into_response())
    }
}
