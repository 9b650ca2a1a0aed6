//! What a broker says of itself to probes that speak gRPC.

use std::net::SocketAddr;

use tonic::{Status, Streaming};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use crate::client::channel;

/// The names of what new clients should know.
pub const READINESS: [&str; 3] = ["", "readiness", "leasehold.v1.LockService"];
/// The name of what decides about a restart.
pub const LIVENESS: &str = "liveness";

/// What is said under a name now.
pub async fn check(listener: SocketAddr, name: &str) -> Result<ServingStatus, Status> {
    let mut health = HealthClient::new(channel(listener));
    let answer = health.check(asked(name)).await?;
    Ok(answer.into_inner().status())
}

/// What is said under a name, from now on.
pub async fn watch(listener: SocketAddr, name: &str) -> Streaming<HealthCheckResponse> {
    let watch = HealthClient::new(channel(listener))
        .watch(asked(name))
        .await;
    watch.expect("health answers").into_inner()
}

/// Returns after a broker has read what came before: it answers for health without its store.
pub async fn has_read(listener: SocketAddr) {
    for _ in 0..3 {
        check(listener, "").await.expect("it answers");
    }
}

/// Waits until health says `wanted`.
pub async fn awaits(listener: SocketAddr, name: &str, wanted: ServingStatus) {
    let mut watch = watch(listener, name).await;
    loop {
        let now = watch.message().await.expect("the watch lives");
        if now.expect("a status").status() == wanted {
            return;
        }
    }
}

fn asked(name: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: name.to_owned(),
    }
}
