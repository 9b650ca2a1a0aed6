//! Health checks of a broker over gRPC.

use std::net::SocketAddr;

use tonic::{Status, Streaming};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use crate::client::unary::channel;

/// Service names whose status says whether new clients should use the broker.
pub const READINESS: [&str; 3] = ["", "readiness", "leasehold.v1.LockService"];
/// Service name whose status says whether the broker must be restarted.
pub const LIVENESS: &str = "liveness";

/// Returns the current status of a service.
pub async fn check(listener: SocketAddr, name: &str) -> Result<ServingStatus, Status> {
    let mut health = HealthClient::new(channel(listener));
    let answer = health.check(check_request(name)).await?;
    Ok(answer.into_inner().status())
}

/// Watches the status of a service.
pub async fn watch(listener: SocketAddr, name: &str) -> Streaming<HealthCheckResponse> {
    let watch = HealthClient::new(channel(listener))
        .watch(check_request(name))
        .await;
    watch.expect("health answers").into_inner()
}

/// Returns after the broker has read what was sent to it before: health checks need no store.
pub async fn wait_until_read(listener: SocketAddr) {
    for _ in 0..3 {
        check(listener, "").await.expect("it answers");
    }
}

/// Waits until the status of a service is `wanted`.
pub async fn wait_for_status(listener: SocketAddr, name: &str, wanted: ServingStatus) {
    let mut watch = watch(listener, name).await;
    loop {
        let now = watch.message().await.expect("the watch lives");
        if now.expect("a status").status() == wanted {
            return;
        }
    }
}

fn check_request(name: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: name.to_owned(),
    }
}
