//! Failover to another broker: after the stream broke, on request of the broker, or without
//! responses.
//!
//! A working stream is replaced only after another one was opened.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rand::Rng as _;
use tracing::{debug, warn};

use super::{Session, StreamConnection};
use crate::{clock, endpoint::OpenError};

/// Upper bound of a random delay, so that clients of a failed broker do not reconnect all at once.
const JITTER_MAX: Duration = Duration::from_millis(50);
/// Time after which a stream counts as successful and resets the number of failures.
const STABLE_AFTER: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// State of a failover.
pub(super) struct Failover {
    /// Index of the endpoint of the current stream, or of the endpoint that was tried last.
    endpoint_index: usize,
    /// Time at which to open another stream.
    open_at: Option<Duration>,
    opening: Option<BoxFuture<'static, Result<Box<StreamConnection>, OpenError>>>,
    /// Number of consecutive failures to open a stream or to keep it open.
    failures: u32,
    /// Number of consecutive endpoints that rejected the credential.
    credential_rejections: usize,
    /// Time at which the current stream was opened.
    opened_at: Duration,
    reason: String,
}

impl Failover {
    pub(super) fn new(endpoint_index: usize) -> Self {
        Self {
            endpoint_index,
            open_at: None,
            opening: None,
            failures: 0,
            credential_rejections: 0,
            opened_at: clock::now(),
            reason: "not connected yet".to_owned(),
        }
    }

    /// Returns true if no failover is planned.
    pub(super) fn is_idle(&self) -> bool {
        self.open_at.is_none()
    }

    /// Returns the reason for which there is no stream.
    pub(super) fn unavailable_reason(&self) -> String {
        format!("no broker can be reached: {}", self.reason)
    }

    /// Resets the number of failures if the current stream was successful.
    fn reset_failures_if_stable(&mut self, now: Duration) {
        if now > self.opened_at + STABLE_AFTER {
            self.failures = 0;
        }
    }

    /// Waits until another stream was opened or could not be opened. Cancel safe.
    pub(super) async fn next_stream(&mut self) -> Result<Box<StreamConnection>, OpenError> {
        let Some(opening) = &mut self.opening else {
            return std::future::pending().await;
        };
        let result = opening.await;
        self.opening = None;
        result
    }
}

impl Session {
    /// Moves to another broker after `delay`.
    pub(super) fn start_failover(&mut self, delay: Duration) {
        let now = clock::now();
        if self.failover.is_idle() {
            self.failover.reset_failures_if_stable(now);
        }
        let at = now + delay;
        let open_at = self.failover.open_at.map_or(at, |open_at| open_at.min(at));
        self.failover.open_at = Some(open_at);
        self.poll_connect(now);
    }

    /// Handles the end of the stream.
    pub(super) fn on_disconnect(&mut self) {
        debug!("the lease stream broke");
        self.stream = None;
        "the stream broke".clone_into(&mut self.failover.reason);
        self.on_stream_lost();
        self.failover.reset_failures_if_stable(clock::now());
        self.failover.failures += 1;
        self.start_failover(jittered(JITTER_MAX).max(self.backoff()));
    }

    pub(super) fn poll_connect(&mut self, now: Duration) {
        if self.failover.opening.is_some()
            || self.failover.open_at.is_none_or(|open_at| now < open_at)
        {
            return;
        }
        self.failover.endpoint_index += 1;
        let (brokers, at) = (Arc::clone(&self.endpoints), self.failover.endpoint_index);
        let open = async move { StreamConnection::open(&brokers, at).await };
        self.failover.opening = Some(Box::pin(open));
    }

    pub(super) fn on_stream_opened(&mut self, result: Result<Box<StreamConnection>, OpenError>) {
        match result {
            Ok(stream) => {
                self.failover.open_at = None;
                self.failover.credential_rejections = 0;
                self.failover.opened_at = clock::now();
                // The new stream repeats what the old one would still report.
                self.stream = Some(stream);
                self.on_stream_lost();
                self.resume_all();
                self.next_deadline = Duration::ZERO;
            }
            Err(OpenError { reason, is_denied }) => {
                if is_denied {
                    warn!(why = reason, "a broker rejected the credential");
                    self.failover.credential_rejections += 1;
                } else {
                    warn!(why = reason, "a broker does not answer");
                    self.failover.credential_rejections = 0;
                }
                self.failover.failures += 1;
                self.failover.reason = reason;
                if self.stream.is_none()
                    && self.failover.credential_rejections >= self.endpoints.list.len()
                {
                    self.fail_all_unauthenticated();
                }
                let pause = self.backoff();
                self.failover.open_at = Some(clock::now() + pause);
            }
        }
    }

    /// Returns the backoff before the next endpoint. In the first round each endpoint is tried at
    /// once, in later rounds after a time that grows exponentially up to [`BACKOFF_MAX`].
    fn backoff(&self) -> Duration {
        let rounds = self.failover.failures as usize / self.endpoints.list.len();
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        match rounds {
            0 => Duration::ZERO,
            rounds => jittered((BACKOFF_MIN * 2_u32.saturating_pow(rounds - 1)).min(BACKOFF_MAX)),
        }
    }
}

/// Returns a random time between half of `time` and `time`.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::thread_rng().gen_range(0.5..1.0))
}
