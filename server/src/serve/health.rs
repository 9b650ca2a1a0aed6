//! Health state of the broker, for `grpc.health.v1` on both listeners and for plain HTTP probes.

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

const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a tick after which the runtime counts as hung.
const TICK_TIMEOUT: Duration = Duration::from_secs(5);

/// Phase of the broker's lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The store has not answered yet.
    Starting,
    /// The store has answered once. A later failure of the store does not change the phase: another
    /// broker could not reach the store either.
    Serving,
    /// Clients are asked to reconnect to other brokers.
    Draining,
    /// All clients have left. Health watches end, because they would keep their connections open.
    Stopped,
}

/// Kinds of health probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// Readiness: new clients may connect.
    Ready,
    /// Liveness: the process works and need not be restarted.
    Live,
}

impl Probe {
    fn from_name(service: &str) -> Option<Self> {
        match service {
            "" | "readiness" | "leasehold.v1.LockService" => Some(Self::Ready),
            "liveness" => Some(Self::Live),
            _ => None,
        }
    }
}

/// Health state from which all probes are answered.
#[derive(Debug)]
pub(super) struct Health {
    phase: watch::Sender<Phase>,
    last_tick: watch::Sender<Instant>,
}

impl Health {
    pub(super) fn starting() -> Arc<Self> {
        Arc::new(Self {
            phase: watch::Sender::new(Phase::Starting),
            last_tick: watch::Sender::new(Instant::now()),
        })
    }

    pub(super) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits until the broker starts to drain.
    pub(super) async fn draining(&self) {
        let is_draining = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Stopped);
        let _ = self.phase.subscribe().wait_for(is_draining).await;
    }

    /// Records a tick every second, which proves that the runtime runs tasks. Never returns.
    pub(super) async fn tick(self: Arc<Self>) {
        let mut ticks = interval(TICK_INTERVAL);
        loop {
            ticks.tick().await;
            self.last_tick.send_replace(Instant::now());
        }
    }

    /// Returns the reason why the probe fails, or `None` if the broker is healthy.
    pub(super) fn failure(&self, probe: Probe) -> Option<&'static str> {
        if self.last_tick.borrow().elapsed() > TICK_TIMEOUT {
            return Some("the runtime is stalled");
        }
        match (probe, *self.phase.borrow()) {
            (Probe::Live, _) | (Probe::Ready, Phase::Serving) => None,
            (Probe::Ready, Phase::Starting) => Some("starting"),
            (Probe::Ready, Phase::Draining | Phase::Stopped) => Some("draining"),
        }
    }

    pub(super) fn service(self: &Arc<Self>) -> HealthServer<impl health_server::Health> {
        HealthServer::new(Service(Arc::clone(self)))
    }

    fn status(&self, probe: Probe) -> ServingStatus {
        match self.failure(probe) {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        }
    }

    /// Waits for the next status that differs from the last one sent. Returns `None` once the phase
    /// is [`Phase::Over`] and its status was sent.
    async fn next(
        self: Arc<Self>,
        probe: Probe,
        mut phase: watch::Receiver<Phase>,
        last: Option<ServingStatus>,
    ) -> Option<(ServingStatus, watch::Receiver<Phase>)> {
        loop {
            let is_stopped = *phase.borrow_and_update() == Phase::Stopped;
            let status = self.status(probe);
            if last != Some(status) {
                return Some((status, phase));
            }
            if is_stopped {
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
        let probe = probe_of(&request)?;
        Ok(Response::new(response(self.0.status(probe))))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let probe = probe_of(&request)?;
        let health = Arc::clone(&self.0);
        let seen = (health.phase.subscribe(), None);
        let statuses = stream::unfold(seen, move |(phase, last)| {
            let health = Arc::clone(&health);
            async move {
                let (status, phase) = health.next(probe, phase, last).await?;
                Some((Ok(response(status)), (phase, Some(status))))
            }
        });
        Ok(Response::new(statuses.boxed()))
    }
}

fn probe_of(request: &Request<HealthCheckRequest>) -> Result<Probe, Status> {
    let named = Probe::from_name(&request.get_ref().service);
    named.ok_or_else(|| Status::not_found("unknown service; use readiness or liveness"))
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
        advance(TICK_TIMEOUT).await;
        for probe in [Probe::Live, Probe::Ready] {
            assert_eq!(health.failure(probe), None);
        }
        advance(Duration::from_millis(1)).await;
        for probe in [Probe::Live, Probe::Ready] {
            assert_eq!(health.failure(probe), Some("the runtime is stalled"));
            assert_eq!(health.status(probe), ServingStatus::NotServing);
        }
        let ticks = tokio::spawn(Arc::clone(&health).tick());
        for _ in 0..10 {
            advance(TICK_INTERVAL).await;
            tokio::task::yield_now().await;
            assert_eq!(health.failure(Probe::Live), None);
        }
        ticks.abort();
    }
}
