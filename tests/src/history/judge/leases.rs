//! Leases as their clients see them.

use std::collections::{BTreeMap, BTreeSet};

use super::index::HistoryIndex;
use crate::history::{Event, EventKind, Fault, GrantedLock, LossReason, ReleaseScope, Validity};

/// All leases of the history so far.
#[derive(Default)]
pub(super) struct LeaseTable<'a>(BTreeMap<&'a str, LeaseState<'a>>);

/// A lease, as seen by its client.
pub(super) struct LeaseState<'a> {
    pub(super) client: &'a str,
    /// Time at which the first attempt of the first call was sent.
    pub(super) invoked_at_us: u64,
    /// Calls that were granted with this lease.
    pub(super) calls: BTreeSet<u64>,
    pub(super) locks: BTreeMap<&'a str, HeldShare>,
    /// End of the validity.
    pub(super) until_us: u64,
    /// Time of the last message that confirmed that the client has the lease.
    confirmed_at_us: u64,
    /// Longest ttl and longest lock delay of the lease.
    pub(super) ttl_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) max_hold_ms: Option<u64>,
    pub(super) disconnect_grace_ms: Option<u64>,
    /// Streams on which the client acquired or attached the lease, with the time of the message.
    pub(super) streams: BTreeMap<u64, u64>,
    pub(super) is_released: bool,
    pub(super) was_revoked: bool,
    /// True if an operator has freed the lock although the client may rely on the lease.
    pub(super) was_freed_by_operator: bool,
    /// Last share of each lock that the client has released or lost.
    ended: BTreeMap<&'a str, EndedShare>,
    /// Entries that the client has released, by lock and call.
    released_entries: BTreeMap<(&'a str, u64), EndedShare>,
}

/// Share of a lock, or entry of a share, that the client has released or lost.
struct EndedShare {
    token: u64,
    /// Release that ended the share; `None` if the client has lost it.
    release: Option<u64>,
    /// Time at which the client received the reply to the release, or the loss.
    known_at_us: Option<u64>,
}

impl EndedShare {
    fn new(token: u64, end: ShareEnd) -> Self {
        let (release, known_at_us) = match end {
            ShareEnd::Released { release } => (Some(release), None),
            ShareEnd::Lost { at_us } => (None, Some(at_us)),
        };
        Self {
            token,
            release,
            known_at_us,
        }
    }

    /// Returns true if the grant of the token to an attempt was on its way when the share ended. An
    /// attempt that was sent after the client had received the end grants the share again.
    fn covers(&self, token: u64, invoked_at_us: u64) -> bool {
        let was_sent_before = |known_at_us| invoked_at_us <= known_at_us;
        token <= self.token && self.known_at_us.is_none_or(was_sent_before)
    }
}

/// End of a share.
#[derive(Clone, Copy)]
enum ShareEnd {
    Released { release: u64 },
    Lost { at_us: u64 },
}

/// Share of a lock.
pub(super) struct HeldShare {
    pub(super) token: u64,
    pub(super) limit: u32,
    /// True if the limit may have been changed between the grant and its reply.
    pub(super) may_predate_limit: bool,
    /// Weight of each entry, by call.
    entries: BTreeMap<u64, u32>,
    /// Weight in the last reply. An entry whose call this client did not make counts here.
    replied_weight: u32,
}

impl HeldShare {
    pub(super) fn weight(&self) -> u32 {
        self.entries
            .values()
            .copied()
            .max()
            .unwrap_or(self.replied_weight)
    }
}

impl<'a> LeaseTable<'a> {
    pub(super) fn get(&self, lease: &str) -> Option<&LeaseState<'a>> {
        self.0.get(lease)
    }

    pub(super) fn of_client<'t>(
        &'t self,
        client: &'t str,
    ) -> impl Iterator<Item = (&'a str, &'t LeaseState<'a>)> {
        let leases = self
            .0
            .iter()
            .filter(move |(_, state)| state.client == client);
        leases.map(|(lease, state)| (*lease, state))
    }

    /// Returns the leases that hold the lock according to their clients.
    pub(super) fn holders<'t>(
        &'t self,
        lock: &'t str,
    ) -> impl Iterator<Item = (&'a str, &'t LeaseState<'a>, &'t HeldShare)> {
        self.0
            .iter()
            .filter_map(move |(lease, state)| Some((*lease, state, state.locks.get(lock)?)))
    }

    pub(super) fn apply(&mut self, index: &HistoryIndex<'a>, event: &'a Event) {
        match &event.kind {
            EventKind::Granted {
                attempt,
                lease,
                locks,
                validity,
            } => {
                self.granted(index, *attempt, (lease, locks), *validity);
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.confirmed_at_us = event.at_us;
                }
            }
            EventKind::Renewed { lease, validity } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.until_us = validity.until_us;
                    state.confirmed_at_us = event.at_us;
                }
            }
            EventKind::Attached { lease, .. } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.confirmed_at_us = event.at_us;
                }
            }
            EventKind::AttachInvoked { lease, stream } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.streams.entry(*stream).or_insert(event.at_us);
                }
            }
            EventKind::ReleaseInvoked {
                release,
                lease,
                scope,
            } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.release(scope, ShareEnd::Released { release: *release });
                }
            }
            EventKind::ReleaseAnswered {
                release,
                lease,
                is_ok: true,
            } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    let entries = state.released_entries.values_mut();
                    let ended = state.ended.values_mut().chain(entries);
                    for share in ended.filter(|share| share.release == Some(*release)) {
                        share.known_at_us.get_or_insert(event.at_us);
                    }
                }
            }
            EventKind::Lost { lease, reason } => {
                if let Some(state) = self.0.get_mut(lease.as_str())
                    && *reason != LossReason::Moved
                {
                    state.end_all(ShareEnd::Lost { at_us: event.at_us });
                }
            }
            EventKind::RevokeInvoked { lease, unsafe_now } => {
                if let Some(state) = self.0.get_mut(lease.as_str()) {
                    state.was_revoked = true;
                    state.was_freed_by_operator |= unsafe_now;
                }
            }
            EventKind::ClientStopped => {
                let states = self.0.values_mut();
                for state in states.filter(|state| state.client == event.client) {
                    state.end_all(ShareEnd::Lost { at_us: event.at_us });
                }
            }
            _ => {}
        }
    }

    fn granted(
        &mut self,
        index: &HistoryIndex<'a>,
        attempt: u64,
        (lease, locks): (&'a str, &'a [GrantedLock]),
        validity: Validity,
    ) {
        let Some(attempt) = index.attempt(attempt) else {
            return;
        };
        let request = attempt.request;
        let first_invoked_at_us = index.first_invocation(request.call);
        let state = self.0.entry(lease).or_insert_with(|| LeaseState {
            client: attempt.client,
            invoked_at_us: first_invoked_at_us,
            calls: BTreeSet::new(),
            locks: BTreeMap::new(),
            until_us: 0,
            confirmed_at_us: 0,
            ttl_ms: 0,
            lock_delay_ms: 0,
            max_hold_ms: None,
            disconnect_grace_ms: None,
            streams: BTreeMap::new(),
            is_released: false,
            was_revoked: false,
            was_freed_by_operator: false,
            ended: BTreeMap::new(),
            released_entries: BTreeMap::new(),
        });
        // The reply to a repeat, and that to a waiting call which is handed the lock, has the limit
        // at the time of the reply.
        let may_predate_limit = attempt.invoked_at_us > first_invoked_at_us || request.wait_ms > 0;
        for granted in locks {
            let entry = (granted.lock.as_str(), request.call);
            let ended = state.ended.get(granted.lock.as_str()).into_iter();
            let mut ended = ended.chain(state.released_entries.get(&entry));
            if ended.any(|ended| ended.covers(granted.token, attempt.invoked_at_us)) {
                continue;
            }
            let share = state.locks.entry(&granted.lock);
            let share = share.or_insert_with(|| HeldShare {
                token: granted.token,
                limit: granted.limit,
                may_predate_limit,
                entries: BTreeMap::new(),
                replied_weight: granted.weight,
            });
            // A holder may keep more than a limit that was lowered since its grant.
            if share.token == granted.token {
                share.limit = share.limit.max(granted.limit);
            } else {
                (share.limit, share.may_predate_limit) = (granted.limit, may_predate_limit);
            }
            share.token = granted.token;
            let requested = request.locks.iter().find(|lock| lock.lock == granted.lock);
            if let Some(requested) = requested {
                share.entries.insert(request.call, requested.weight);
            }
            state.is_released = false;
        }
        state.calls.insert(request.call);
        state.until_us = validity.until_us;
        // The validity of several locks is the shortest of them, but each is held until its own end.
        let longest_ms = match state.locks.len() {
            ..2 => validity.ttl_ms,
            _ => validity.ttl_ms.max(request.ttl_ms),
        };
        state.ttl_ms = state.ttl_ms.max(longest_ms);
        state.lock_delay_ms = state.lock_delay_ms.max(request.lock_delay_ms);
        let limits = [state.max_hold_ms, request.max_hold_ms];
        state.max_hold_ms = limits.into_iter().flatten().min();
        let graces = [state.disconnect_grace_ms, request.disconnect_grace_ms];
        state.disconnect_grace_ms = graces.into_iter().flatten().min();
        if let Some(stream) = request.stream {
            state.streams.entry(stream).or_insert(attempt.invoked_at_us);
        }
    }
}

impl<'a> LeaseState<'a> {
    /// Returns true if the fault keeps the broker from hearing the client of the lease.
    pub(super) fn is_silenced_by(&self, index: &HistoryIndex<'_>, fault: &Fault) -> bool {
        match fault {
            Fault::ClientSilent { client } => client == self.client,
            Fault::BrokerPaused { broker } => {
                let mut streams = self.streams.keys();
                streams.any(|stream| index.broker_of(*stream) == Some(broker))
            }
            _ => false,
        }
    }

    /// Returns true if a stream of the lease has been closed for the `disconnect_grace`, or its broker
    /// did not hear the client, and the lease was not confirmed since. Its lock may then be free.
    pub(super) fn may_have_lapsed(&self, index: &HistoryIndex<'_>, at_us: u64) -> bool {
        let Some(grace_ms) = self.disconnect_grace_ms else {
            return false;
        };
        let streams = self.streams.keys();
        let mut closed = streams.filter_map(|stream| index.stream_closed_at(*stream));
        let is_silent = |fault: &Fault| self.is_silenced_by(index, fault);
        index.overlaps((self.confirmed_at_us, at_us), is_silent)
            || closed.any(|closed_at_us| {
                closed_at_us >= self.confirmed_at_us && closed_at_us + grace_ms * 1_000 <= at_us
            })
    }

    fn release(&mut self, scope: &'a ReleaseScope, end: ShareEnd) {
        match scope {
            ReleaseScope::Lease => self.end_all(end),
            ReleaseScope::Lock { lock } => self.end_lock(lock, end),
            ReleaseScope::Entry { lock, call } => {
                if let Some(share) = self.locks.get_mut(lock.as_str()) {
                    share.entries.remove(call);
                    let released = EndedShare::new(share.token, end);
                    self.released_entries.insert((lock, *call), released);
                    if share.entries.is_empty() {
                        self.end_lock(lock, end);
                    }
                }
            }
        }
        self.is_released = self.locks.is_empty();
    }

    /// Ends the share of a lock. A share that has ended before ends again: a reply after the earlier
    /// end may have granted it again, although it is not counted as held.
    fn end_lock(&mut self, lock: &'a str, end: ShareEnd) {
        let held = self.locks.remove(lock).map(|share| share.token);
        let ended = self.ended.get(lock).map(|share| share.token);
        let Some(token) = held.max(ended) else {
            return;
        };
        self.ended.insert(lock, EndedShare::new(token, end));
    }

    fn end_all(&mut self, end: ShareEnd) {
        let locks = self.locks.keys().chain(self.ended.keys()).copied();
        let locks: BTreeSet<_> = locks.collect();
        for lock in locks {
            self.end_lock(lock, end);
        }
    }
}
