//! Index of a history by calls, attempts, streams and faults.

use std::collections::BTreeMap;

use super::leases::LeaseState;
use crate::history::{CallRequest, Event, EventKind, Fault};

/// A history with its calls, streams and faults.
pub(super) struct HistoryIndex<'a> {
    pub(super) events: &'a [Event],
    attempts: BTreeMap<u64, Attempt<'a>>,
    /// Attempts of each call, in the order in which they were sent.
    calls: BTreeMap<u64, Vec<u64>>,
    /// Broker of each stream.
    streams_opened: BTreeMap<u64, &'a str>,
    streams_closed: BTreeMap<u64, u64>,
    /// Times at which each client has stopped.
    clients_stopped: BTreeMap<&'a str, Vec<u64>>,
    faults: Vec<FaultInterval<'a>>,
}

/// One transmission of a call.
pub(super) struct Attempt<'a> {
    pub(super) invoked_at_us: u64,
    pub(super) client: &'a str,
    pub(super) request: &'a CallRequest,
    /// Time at which the attempt ended without a lease: rejected or cancelled.
    pub(super) failed_at_us: Option<u64>,
    /// True if the attempt failed because the client cancelled it.
    was_cancelled: bool,
    /// Time at which the lease was delivered.
    pub(super) granted_at_us: Option<u64>,
}

/// Time after which a unary attempt of a live broker is in the queue: the deadline of the command
/// and the way to the broker. Unary calls receive no queue position.
const UNARY_QUEUED_US: u64 = 2_000_000;

impl<'a> Attempt<'a> {
    /// Returns the lock in whose queue a waiting unary attempt certainly is from a time on, unless
    /// it has ended or a fault has delayed it. The first lock of a call for several locks may have
    /// been granted to it long before the reply.
    pub(super) fn unary_queue_entry(&self) -> Option<(&'a str, u64)> {
        let request = self.request;
        match &request.locks[..] {
            [only] if request.stream.is_none() && request.wait_ms > 0 => {
                Some((&only.lock, self.invoked_at_us + UNARY_QUEUED_US))
            }
            _ => None,
        }
    }
}

/// End of an attempt, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AttemptEnd {
    Granted,
    Rejected,
    Cancelled,
    /// The stream of the attempt was closed, or its client has stopped.
    Abandoned,
}

/// A fault with the time for which it was in effect.
pub(super) struct FaultInterval<'a> {
    pub(super) fault: &'a Fault,
    pub(super) from_us: u64,
    /// End of the fault; `u64::MAX` if the fault does not end in the history.
    pub(super) to_us: u64,
}

impl<'a> HistoryIndex<'a> {
    pub(super) fn new(events: &'a [Event]) -> Self {
        let mut index = Self {
            events,
            attempts: BTreeMap::new(),
            calls: BTreeMap::new(),
            streams_opened: BTreeMap::new(),
            streams_closed: BTreeMap::new(),
            clients_stopped: BTreeMap::new(),
            faults: Vec::new(),
        };
        for event in events {
            index.add(event);
        }
        index
    }

    fn add(&mut self, event: &'a Event) {
        let at_us = event.at_us;
        match &event.kind {
            EventKind::Invoked(request) => {
                let attempts = self.calls.entry(request.call).or_default();
                attempts.push(request.attempt);
                let attempt = Attempt {
                    invoked_at_us: at_us,
                    client: &event.client,
                    request,
                    failed_at_us: None,
                    was_cancelled: false,
                    granted_at_us: None,
                };
                self.attempts.insert(request.attempt, attempt);
            }
            EventKind::Granted { attempt, .. } => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.granted_at_us.get_or_insert(at_us);
                }
            }
            EventKind::Rejected { attempt, .. } | EventKind::Cancelled { attempt } => {
                let was_cancelled = matches!(event.kind, EventKind::Cancelled { .. });
                if let Some(attempt) = self.attempts.get_mut(attempt)
                    && attempt.failed_at_us.is_none()
                {
                    attempt.failed_at_us = Some(at_us);
                    attempt.was_cancelled = was_cancelled;
                }
            }
            EventKind::ClientStopped => {
                let stopped = self.clients_stopped.entry(&event.client).or_default();
                stopped.push(at_us);
            }
            EventKind::StreamOpened { stream, broker } => {
                self.streams_opened.insert(*stream, broker);
            }
            EventKind::StreamClosed { stream } => {
                self.streams_closed.entry(*stream).or_insert(at_us);
            }
            EventKind::FaultBegan { fault } => self.faults.push(FaultInterval {
                fault,
                from_us: at_us,
                to_us: u64::MAX,
            }),
            EventKind::FaultEnded { fault } => {
                let mut open = self.faults.iter_mut().rev();
                if let Some(open) = open.find(|open| open.fault == fault && open.to_us == u64::MAX)
                {
                    open.to_us = at_us;
                }
            }
            _ => {}
        }
    }

    pub(super) fn attempt(&self, attempt: u64) -> Option<&Attempt<'a>> {
        self.attempts.get(&attempt)
    }

    pub(super) fn attempts(&self) -> impl Iterator<Item = &Attempt<'a>> {
        self.attempts.values()
    }

    /// Returns the attempts of a call, in the order in which they were sent.
    pub(super) fn attempts_of(&self, call: u64) -> impl Iterator<Item = &Attempt<'a>> {
        let attempts = self.calls.get(&call).into_iter().flatten();
        attempts.filter_map(|attempt| self.attempt(*attempt))
    }

    /// Returns the time at which the first attempt of a call was sent.
    pub(super) fn first_invocation(&self, call: u64) -> u64 {
        let first = self.attempts_of(call).next();
        first.map_or(0, |attempt| attempt.invoked_at_us)
    }

    /// Returns the broker at which the stream was opened.
    pub(super) fn broker_of(&self, stream: u64) -> Option<&'a str> {
        self.streams_opened.get(&stream).copied()
    }

    pub(super) fn stream_closed_at(&self, stream: u64) -> Option<u64> {
        self.streams_closed.get(&stream).copied()
    }

    /// Returns the first time from `since_us` at which the client stopped.
    pub(super) fn client_stopped_at(&self, client: &str, since_us: u64) -> Option<u64> {
        let stopped = self.clients_stopped.get(client)?;
        stopped.iter().copied().find(|at_us| *at_us >= since_us)
    }

    /// Returns how an attempt ended first, with the time; `None` if it did not end in the history.
    pub(super) fn end_of(&self, attempt: &Attempt<'_>) -> Option<(u64, AttemptEnd)> {
        let failure = match attempt.was_cancelled {
            true => AttemptEnd::Cancelled,
            false => AttemptEnd::Rejected,
        };
        let closed_at_us = attempt
            .request
            .stream
            .and_then(|stream| self.stream_closed_at(stream));
        let stopped_at_us = self.client_stopped_at(attempt.client, attempt.invoked_at_us);
        let ends = [
            (attempt.granted_at_us, AttemptEnd::Granted),
            (attempt.failed_at_us, failure),
            (closed_at_us, AttemptEnd::Abandoned),
            (stopped_at_us, AttemptEnd::Abandoned),
        ];
        let ends = ends
            .into_iter()
            .filter_map(|(at_us, end)| Some((at_us?, end)));
        ends.min()
    }

    pub(super) fn faults(&self) -> &[FaultInterval<'a>] {
        &self.faults
    }

    /// Returns the number of attempts of the calls of a lease that were sent until the given time on
    /// streams that the lease has not been on.
    pub(super) fn repeats(&self, state: &LeaseState<'_>, until_us: u64) -> usize {
        let attempts = self.attempts.values();
        let repeats = attempts.filter(|attempt| {
            let stream = attempt.request.stream;
            attempt.invoked_at_us <= until_us
                && state.calls.contains(&attempt.request.call)
                && stream.is_some_and(|stream| !state.streams.contains_key(&stream))
        });
        repeats.count()
    }

    /// Returns true if such a fault began in the interval.
    pub(super) fn has_begun(
        &self,
        (from_us, to_us): (u64, u64),
        is_such: impl Fn(&Fault) -> bool,
    ) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|interval| {
            (from_us..=to_us).contains(&interval.from_us) && is_such(interval.fault)
        })
    }

    /// Returns true if such a fault was in effect at some time of the interval.
    pub(super) fn overlaps(
        &self,
        (from_us, to_us): (u64, u64),
        is_such: impl Fn(&Fault) -> bool,
    ) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|interval| {
            interval.from_us <= to_us && from_us <= interval.to_us && is_such(interval.fault)
        })
    }
}
