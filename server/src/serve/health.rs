//! Whether the broker lives, and whether it serves: one state for `grpc.health.v1` on both listeners
//! and for plain HTTP.

use std::{sync::Arc, time::Duration};

use futures::stream::{self, BoxStream, StreamExt as _};
use tokio::{
    sync::watch,
    time::{Instant, interval},
};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{self, HealthServer},
};

const TICK: Duration = Duration::from_secs(1);
/// A runtime that has run no task for so long does not come back by itself.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// How far a broker's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The store has not answered yet.
    Starting,
    /// Whatever becomes of the store: another broker would do no better.
    Serving,
    /// Its clients move to others.
    Draining,
    /// They have moved. Watches end: they would hold up the end of their connections.
    Over,
}

/// What a probe asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// Whether new clients should come here.
    Ready,
    /// Whether the process is of any use still.
    Live,
}

impl Probe {
    fn named(service: &str) -> Option<Self> {
        match service {
            "" | "readiness" | "leasehold.v1.LockService" => Some(Self::Ready),
            "liveness" => Some(Self::Live),
            _ => None,
        }
    }
}

/// What every probe is answered from.
#[derive(Debug)]
pub(super) struct Health {
    phase: watch::Sender<Phase>,
    ticked: watch::Sender<Instant>,
}

impl Health {
    pub(super) fn starting() -> Arc<Self> {
        Arc::new(Self {
            phase: watch::Sender::new(Phase::Starting),
            ticked: watch::Sender::new(Instant::now()),
        })
    }

    pub(super) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits until the broker drains.
    pub(super) async fn draining(&self) {
        let is_draining = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Over);
        let _ = self.phase.subscribe().wait_for(is_draining).await;
    }

    /// Shows that the runtime runs tasks, for as long as it does. Never ends.
    pub(super) async fn tick(self: Arc<Self>) {
        let mut ticks = interval(TICK);
        loop {
            ticks.tick().await;
            self.ticked.send_replace(Instant::now());
        }
    }

    /// `None`: all is well.
    pub(super) fn why_not(&self, probe: Probe) -> Option<&'static str> {
        if self.ticked.borrow().elapsed() > SILENT_MAX {
            return Some("the runtime does not tick");
        }
        match (probe, *self.phase.borrow()) {
            (Probe::Live, _) | (Probe::Ready, Phase::Serving) => None,
            (Probe::Ready, Phase::Starting) => Some("starting"),
            (Probe::Ready, Phase::Draining | Phase::Over) => Some("draining"),
        }
    }

    pub(super) fn service(self: &Arc<Self>) -> HealthServer<impl health_server::Health> {
        HealthServer::new(Service(Arc::clone(self)))
    }

    fn status(&self, probe: Probe) -> ServingStatus {
        match self.why_not(probe) {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        }
    }

    /// The status now, and each other one that a new phase brings, until it is over.
    async fn next(
        self: Arc<Self>,
        probe: Probe,
        (mut phase, last): (watch::Receiver<Phase>, Option<ServingStatus>),
    ) -> Option<(ServingStatus, watch::Receiver<Phase>)> {
        loop {
            let is_over = *phase.borrow_and_update() == Phase::Over;
            let status = self.status(probe);
            if last != Some(status) {
                return Some((status, phase));
            }
            if is_over {
                return None;
            }
            phase.changed().await.ok()?;
        }
    }
}

struct Service(Arc<Health>);

#[tonic::async_trait]
impl health_server::Health for Service {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let probe = asked(&request)?;
        Ok(Response::new(response(self.0.status(probe))))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let probe = asked(&request)?;
        let health = Arc::clone(&self.0);
        let seen = (health.phase.subscribe(), None);
        let statuses = stream::unfold(seen, move |seen| {
            let health = Arc::clone(&health);
            async move {
                let (status, phase) = health.next(probe, seen).await?;
                Some((Ok(response(status)), (phase, Some(status))))
            }
        });
        Ok(Response::new(statuses.boxed()))
    }
}

fn asked(request: &Request<HealthCheckRequest>) -> Result<Probe, Status> {
    let named = Probe::named(&request.get_ref().service);
    named.ok_or_else(|| Status::not_found("no such service here; try readiness or liveness"))
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "a task of the test")]
    async fn a_runtime_that_does_not_tick_is_neither_live_nor_ready() {
        let health = Health::starting();
        health.set(Phase::Serving);
        advance(SILENT_MAX).await;
        for probe in [Probe::Live, Probe::Ready] {
            assert_eq!(health.why_not(probe), None);
        }
        advance(Duration::from_millis(1)).await;
        for probe in [Probe::Live, Probe::Ready] {
            assert_eq!(health.why_not(probe), Some("the runtime does not tick"));
            assert_eq!(health.status(probe), ServingStatus::NotServing);
        }
        let ticks = tokio::spawn(Arc::clone(&health).tick());
        for _ in 0..10 {
            advance(TICK).await;
            tokio::task::yield_now().await;
            assert_eq!(health.why_not(Probe::Live), None);
        }
        ticks.abort();
    }
}
