//! From one broker to the next: after a break, when asked to, when nothing answers.
//!
//! A stream that still works is left only once another one is open.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rand::Rng as _;
use tracing::{debug, warn};

use super::{Keeper, Link};
use crate::{clock, endpoint::NotOpen};

/// Clients of a broker that dies don't all come to the next one at the same moment.
const JITTER: Duration = Duration::from_millis(50);
/// A stream that lived for so long was a success.
const SETTLED: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// On the way to another broker.
pub(super) struct Move {
    /// The endpoint of the present stream, or the one that was tried last.
    at: usize,
    /// When to open another stream.
    due: Option<Duration>,
    opening: Option<BoxFuture<'static, Result<Box<Link>, NotOpen>>>,
    /// Endpoints that were tried one after the other in vain.
    failures: u32,
    /// Endpoints that did not accept the credential, one after the other.
    denials: usize,
    /// When the present stream was opened.
    opened_at: Duration,
    why: String,
}

impl Move {
    pub(super) fn new(at: usize) -> Self {
        Self {
            at,
            due: None,
            opening: None,
            failures: 0,
            denials: 0,
            opened_at: clock::now(),
            why: "not connected yet".to_owned(),
        }
    }

    /// Whether nothing is planned.
    pub(super) fn is_settled(&self) -> bool {
        self.due.is_none()
    }

    /// Why there is no stream.
    pub(super) fn why_not(&self) -> String {
        format!("no broker can be reached: {}", self.why)
    }

    /// What failed before the present stream counts no more, if that was a success.
    fn begin(&mut self, now: Duration) {
        if now > self.opened_at + SETTLED {
            self.failures = 0;
        }
    }

    /// Another stream is open, or could not be opened. Cancel safe.
    pub(super) async fn opened(&mut self) -> Result<Box<Link>, NotOpen> {
        let Some(opening) = &mut self.opening else {
            return std::future::pending().await;
        };
        let opened = opening.await;
        self.opening = None;
        opened
    }
}

impl Keeper {
    /// Goes to another broker after a while.
    pub(super) fn leave(&mut self, delay: Duration) {
        let now = clock::now();
        if self.moving.is_settled() {
            self.moving.begin(now);
        }
        let at = now + delay;
        let due = self.moving.due.map_or(at, |due| due.min(at));
        self.moving.due = Some(due);
        self.open_if_due(now);
    }

    /// The stream is gone.
    pub(super) fn broken(&mut self) {
        debug!("the lease stream broke");
        self.link = None;
        "the stream broke".clone_into(&mut self.moving.why);
        self.off_stream();
        self.moving.begin(clock::now());
        self.moving.failures += 1;
        self.leave(jittered(JITTER).max(self.pause()));
    }

    pub(super) fn open_if_due(&mut self, now: Duration) {
        if self.moving.opening.is_some() || self.moving.due.is_none_or(|due| now < due) {
            return;
        }
        self.moving.at += 1;
        let (brokers, at) = (Arc::clone(&self.brokers), self.moving.at);
        let open = async move { Link::open(&brokers, at).await };
        self.moving.opening = Some(Box::pin(open));
    }

    pub(super) fn opened(&mut self, opened: Result<Box<Link>, NotOpen>) {
        match opened {
            Ok(link) => {
                self.moving.due = None;
                self.moving.denials = 0;
                self.moving.opened_at = clock::now();
                // What the old one would still say is said again here.
                self.link = Some(link);
                self.off_stream();
                self.take_up();
                self.look_at = Duration::ZERO;
            }
            Err(NotOpen { why, is_denied }) => {
                if is_denied {
                    warn!(why, "a broker does not accept the credential");
                    self.moving.denials += 1;
                } else {
                    warn!(why, "a broker does not answer");
                    self.moving.denials = 0;
                }
                self.moving.failures += 1;
                self.moving.why = why;
                if self.link.is_none() && self.moving.denials >= self.brokers.endpoints.len() {
                    self.deny_waits();
                }
                let pause = self.pause();
                self.moving.due = Some(clock::now() + pause);
            }
        }
    }

    /// Every endpoint is tried at once the first time, then all more and more slowly.
    fn pause(&self) -> Duration {
        let rounds = self.moving.failures as usize / self.brokers.endpoints.len();
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        match rounds {
            0 => Duration::ZERO,
            rounds => jittered((PAUSE_MIN * 2_u32.saturating_pow(rounds - 1)).min(PAUSE_MAX)),
        }
    }
}

/// Between half of it and all of it.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::thread_rng().gen_range(0.5..1.0))
}
