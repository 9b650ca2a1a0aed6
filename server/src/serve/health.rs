//! `grpc.health.v1` on both listeners.

use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

/// Both names that a probe may ask for.
const NAMES: [&str; 2] = ["", "leasehold.v1.LockService"];

/// What both listeners say.
pub(super) struct Health {
    api: HealthReporter,
    admin: HealthReporter,
}

impl Health {
    /// Not serving: the store has not answered yet.
    pub(super) async fn starting() -> Self {
        let health = Self {
            api: HealthReporter::new(),
            admin: HealthReporter::new(),
        };
        health.set(ServingStatus::NotServing).await;
        health
    }

    /// Serving, from now on.
    pub(super) async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// Not serving any more. Watches on the API listener end with that: they would hold up the end
    /// of their connections.
    pub(super) async fn stopping(&self) {
        self.set(ServingStatus::NotServing).await;
        for name in NAMES {
            self.api.clone().clear_service_status(name).await;
        }
    }

    /// For the API listener.
    pub(super) fn api(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.api.clone()))
    }

    /// For the admin listener.
    pub(super) fn admin(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.admin.clone()))
    }

    async fn set(&self, status: ServingStatus) {
        for name in NAMES {
            self.api.set_service_status(name, status).await;
            self.admin.set_service_status(name, status).await;
        }
    }
}
