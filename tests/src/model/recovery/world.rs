//! The state of the model, and the effects of its actions.

use std::collections::BTreeMap;

use super::{
    BROKERS, FORMER_MASTER_MAX, Rule, TRUSTED,
    action::{RecoveryAction, Source},
    data::{Data, Holder, Writer},
    early_end::{self, Member, Progress, Report},
    limit::{LimitRecord, Rules},
};
use crate::model::ModelWorld;

/// Time for which copies are kept.
const COPIES_MAX: u64 = 60;

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// One server, which restarts with its data or with older data.
    Single,
    /// A master with replicas, one of which replaces it while it may still execute commands.
    Replicated,
}

/// Brokers and the masters of a store.
#[derive(Debug, Clone)]
pub struct RecoveryWorld {
    deployment: Deployment,
    rules: Rules,
    /// True if the time without grants may end early.
    ends_early: bool,
    now: u64,
    processes: Vec<Process>,
    brokers: [Broker; BROKERS],
    /// Number of eras.
    eras: u32,
    /// Number of registrations.
    members: u32,
    /// The time until which each client relies on its lease.
    relied_until: BTreeMap<u32, u64>,
    /// Number of leases.
    leases: u32,
    /// Counts of events.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A process that is or was a master.
#[derive(Debug, Clone)]
struct Process {
    data: Data,
    /// The data at past times, in their order.
    copies: Vec<(u64, Data)>,
    /// Difference of its clock.
    offset: i64,
    /// Time from which the process executes nothing.
    ends_at: Option<u64>,
    has_replaced_a_master: bool,
}

#[derive(Debug, Clone, Default)]
struct Broker {
    connection: Option<Connection>,
    record: Option<BrokerRecord>,
    query: Option<Query>,
    membership: Membership,
}

/// Knowledge of a broker for an early end of the time without grants.
#[derive(Debug, Clone, Copy, Default)]
struct Membership {
    member: Option<u32>,
    /// The last progress that the broker has seen, and when.
    seen: Option<(Progress, u64)>,
    report: Option<Report>,
}

/// The process with which a broker is connected, and its era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    process: usize,
    era: u32,
}

#[derive(Debug, Clone, Copy)]
struct BrokerRecord {
    limit: LimitRecord,
    at: u64,
}

#[derive(Debug, Clone, Copy)]
struct Query {
    sent_at: u64,
    connection: Connection,
    reply: Option<LimitRecord>,
}

impl RecoveryWorld {
    /// Creates a store with one process that was never used, and brokers without a connection.
    /// `removed` is the rule that does not hold.
    #[must_use]
    pub fn new(deployment: Deployment, removed: Option<Rule>) -> Self {
        Self {
            deployment,
            rules: Rules { removed },
            ends_early: false,
            now: 100,
            processes: vec![Process {
                data: Data::default(),
                copies: Vec::new(),
                offset: 0,
                ends_at: None,
                has_replaced_a_master: false,
            }],
            brokers: Default::default(),
            eras: 0,
            members: 0,
            relied_until: BTreeMap::new(),
            leases: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Creates the same, but the time without grants may end early.
    #[must_use]
    pub fn ending_early(deployment: Deployment, removed: Option<Rule>) -> Self {
        Self {
            ends_early: true,
            ..Self::new(deployment, removed)
        }
    }

    /// Returns the deployment of the world.
    #[must_use]
    pub fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// Returns true if the time without grants may end early.
    #[must_use]
    pub fn ends_early(&self) -> bool {
        self.ends_early
    }

    /// Returns the number of processes so far.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.processes.len()
    }

    /// Returns the leases on which clients rely.
    pub fn leases(&self) -> impl Iterator<Item = u32> + '_ {
        let relied = self.relied_until.iter();
        relied.filter_map(|(lease, until)| (*until > self.now).then_some(*lease))
    }

    fn last(&self) -> usize {
        self.processes.len() - 1
    }

    fn is_running(&self, process: usize) -> bool {
        self.processes[process]
            .ends_at
            .is_none_or(|at| self.now < at)
    }

    fn time_of(&self, process: usize) -> i64 {
        self.now.cast_signed() + self.processes[process].offset
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    /// Returns the connection of a broker if its process executes commands.
    fn connection(&self, broker: usize) -> Option<Connection> {
        let connection = self.brokers[broker].connection?;
        self.is_running(connection.process).then_some(connection)
    }

    /// Changes the data of a process.
    fn write<T>(&mut self, process: usize, change: impl FnOnce(&mut Data) -> T) -> T {
        let now = self.now;
        let process = &mut self.processes[process];
        let result = change(&mut process.data);
        process.copies.push((now, process.data.clone()));
        process.copies.retain(|(at, _)| at + COPIES_MAX >= now);
        result
    }

    fn start(&mut self, from: Source, offset: i64) -> bool {
        let last = self.last();
        let is_replaced = self.is_running(last);
        let is_single = self.deployment == Deployment::Single;
        if is_single && (is_replaced || offset != self.processes[last].offset) {
            return false;
        }
        let data = match from {
            Source::Empty => Data::default(),
            Source::Copy { process, age } if process <= last && !(is_single && process < last) => {
                let end = self.processes[process]
                    .ends_at
                    .unwrap_or(self.now)
                    .min(self.now);
                let at = end.saturating_sub(age);
                let copies = self.processes[process].copies.iter();
                let copy = copies.rev().find(|(written, _)| *written <= at);
                copy.map(|(_, data)| data.clone()).unwrap_or_default()
            }
            Source::Copy { .. } => return false,
        };
        self.processes.push(Process {
            copies: vec![(self.now, data.clone())],
            data,
            offset,
            ends_at: None,
            has_replaced_a_master: !is_single,
        });
        self.count(match from {
            Source::Empty => "emptied",
            Source::Copy { .. } => "a copy",
        });
        true
    }

    fn connect(&mut self, broker: usize) -> bool {
        let process = self.last();
        if !self.is_running(process) {
            return false;
        }
        let found = self.processes[process].data.era.as_ref();
        let era = match found.filter(|era| era.process == process) {
            Some(era) => era.id,
            None => self.write_era(broker, process),
        };
        let connection = Some(Connection { process, era });
        let is_new = self.brokers[broker].connection != connection;
        self.brokers[broker].connection = connection;
        if is_new {
            self.report(broker, era);
        }
        is_new
    }

    /// Records what a broker has seen before it connected to a master with this era.
    fn report(&mut self, broker: usize, era: u32) {
        let now = self.now;
        let membership = &mut self.brokers[broker].membership;
        membership.report = membership.seen.map(|(seen, at)| Report {
            era,
            seen,
            is_fresh: now - at <= early_end::FRESH,
        });
    }

    /// Registers a broker under a new number.
    fn register(&mut self, broker: usize) -> bool {
        let (id, now) = (self.members + 1, self.now);
        let former = self.brokers[broker].membership.member;
        let registered = self.in_era(broker, |data, _, _| {
            if former.is_some_and(|former| data.members.contains_key(&former)) {
                return None;
            }
            data.count += 1;
            let member = Member {
                registered_at: now,
                number: data.count,
                last_contact: now,
                seen: data.count,
                is_acknowledged: false,
            };
            data.members.insert(id, member);
            Some(())
        });
        if registered.is_some() {
            self.members = id;
            self.brokers[broker].membership.member = Some(id);
            self.see(broker);
        }
        registered.is_some()
    }

    fn acknowledge(&mut self, broker: usize) -> bool {
        let Some(by) = self.brokers[broker].membership.member else {
            return false;
        };
        self.see(broker);
        let now = self.now;
        let acknowledged = self.in_era(broker, |data, _, rules| {
            early_end::acknowledge(data, by, now, rules)
        });
        acknowledged.is_some()
    }

    /// Records the contact of a broker with its master, and the number that it sees.
    fn see(&mut self, broker: usize) {
        let (now, member) = (self.now, self.brokers[broker].membership.member);
        let seen = self.in_era(broker, |data, time, _| {
            let count = data.count;
            if let Some(member) = member.and_then(|id| data.members.get_mut(&id)) {
                (member.last_contact, member.seen) = (now, count);
            }
            let era = data.era.as_ref()?;
            Some(Progress {
                era: era.id,
                count,
                is_open: era.is_open(time),
                offset: time - now.cast_signed(),
            })
        });
        if let Some(progress) = seen {
            self.brokers[broker].membership.seen = Some((progress, now));
        }
    }

    /// Returns true if a broker may grant and renew at its master.
    fn may_grant(&self, broker: usize) -> bool {
        if !self.ends_early || !self.rules.has(Rule::BrokersAreAcknowledged) {
            return true;
        }
        let Some(Connection { process, .. }) = self.connection(broker) else {
            return false;
        };
        let members = &self.processes[process].data.members;
        let id = self.brokers[broker].membership.member;
        id.and_then(|id| members.get(&id))
            .is_some_and(|member| member.is_acknowledged)
    }

    /// Ends the time without grants if no broker has confirmed anything that the copy lacks.
    fn end(&mut self, broker: usize) -> bool {
        let Some(Connection { era, .. }) = self.connection(broker) else {
            return false;
        };
        let memberships = self.brokers.iter().map(|broker| broker.membership);
        let reports = memberships.filter_map(|membership| {
            let report = membership.report.filter(|report| report.era == era)?;
            Some((membership.member?, report))
        });
        let reports = reports.collect();
        let true_now = self.now.cast_signed();
        let ended = self.in_era(broker, |data, now, rules| {
            let era = data.era.as_mut()?;
            if era.is_open(now)
                || !early_end::is_complete(&era.copied, &reports, now - true_now, rules)
            {
                return None;
            }
            (era.no_grants_before, era.no_renewals_before) = (now, now);
            Some(())
        });
        if ended.is_some() {
            self.count("an early end");
        }
        ended.is_some()
    }

    fn write_era(&mut self, broker: usize, process: usize) -> u32 {
        self.eras += 1;
        let (id, rules) = (self.eras, self.rules);
        let record = self.brokers[broker].record;
        let is_trusted = |record: &BrokerRecord| {
            self.now - record.at <= TRUSTED || !rules.has(Rule::RecordsExpire)
        };
        let record = record.filter(is_trusted);
        self.count(match record {
            Some(_) => "an era by a record",
            None => "an era without a record",
        });
        let writer = Writer {
            record: record.map(|record| record.limit),
            has_replaced_a_master: self.processes[process].has_replaced_a_master,
            now: self.time_of(process),
        };
        self.write(process, |data| {
            data.era = Some(data.new_era(id, process, writer, rules));
        });
        let ends_at = self.now + FORMER_MASTER_MAX;
        for former in &mut self.processes[..process] {
            former.ends_at = Some(former.ends_at.unwrap_or(ends_at).min(ends_at));
        }
        id
    }

    fn execute(&mut self, broker: usize, wanted: u64) -> bool {
        let Some(query) = self.brokers[broker].query else {
            return false;
        };
        let Connection { process, era } = query.connection;
        if query.reply.is_some() || !self.is_running(process) {
            return false;
        }
        let (now, rules) = (self.time_of(process), self.rules);
        let (reply, is_raised) = self.write(process, |data| {
            let stored = data.era.as_mut().filter(|stored| stored.id == era);
            let Some(stored) = stored else {
                return (None, false);
            };
            let is_raised = stored.limit.raise(wanted, now, rules);
            data.stamp = now;
            (Some(stored.limit.record(now, rules)), is_raised)
        });
        if is_raised {
            self.count("raised");
        }
        self.brokers[broker].query = Some(Query { reply, ..query });
        true
    }

    fn receive(&mut self, broker: usize) -> bool {
        let state = &mut self.brokers[broker];
        let Some(query) = state.query else {
            return false;
        };
        let Some(limit) = query.reply else {
            return false;
        };
        state.query = None;
        let at = match self.rules.has(Rule::RecordHasTimeOfQuery) {
            true => query.sent_at,
            false => self.now,
        };
        state.record = Some(BrokerRecord { limit, at });
        true
    }

    /// Changes the data of the process with which a broker is connected, in its era. Returns `None`
    /// if that does not apply.
    fn in_era<T>(
        &mut self,
        broker: usize,
        change: impl FnOnce(&mut Data, i64, Rules) -> Option<T>,
    ) -> Option<T> {
        let Connection { process, era } = self.connection(broker)?;
        let (now, rules) = (self.time_of(process), self.rules);
        self.write(process, |data| {
            let is_same = data.era.as_ref().is_some_and(|stored| stored.id == era);
            is_same.then(|| change(data, now, rules)).flatten()
        })
    }

    fn acquire(&mut self, broker: usize, span: u64) -> Result<bool, String> {
        if !self.may_grant(broker) {
            return Ok(false);
        }
        let lease = self.leases + 1;
        let granted = self.in_era(broker, |data, now, rules| {
            let era = data.era.as_ref()?;
            let is_free = data
                .holder
                .as_ref()
                .is_none_or(|holder| holder.expires <= now);
            if now < era.no_grants_before || !is_free {
                return None;
            }
            let usable = match rules.has(Rule::GrantsAreLimited) {
                true => era.limit.usable(now),
                false => span,
            };
            let span = span.min(usable);
            let expires = now + span.cast_signed();
            data.holder = Some(Holder { lease, expires });
            data.count += 1;
            Some(span)
        });
        let Some(granted) = granted else {
            return Ok(false);
        };
        self.see(broker);
        self.leases = lease;
        self.rely(lease, granted)?;
        self.count(match granted > super::SPAN_MIN {
            true => "a large grant",
            false => "a grant",
        });
        Ok(true)
    }

    fn renew(&mut self, broker: usize, lease: u32, span: u64) -> Result<bool, String> {
        if self.leases().all(|relied| relied != lease) || !self.may_grant(broker) {
            return Ok(false);
        }
        let granted = self.in_era(broker, |data, now, rules| {
            let era = data.era.as_ref()?;
            let usable = match rules.has(Rule::RenewalsAreLimited) {
                true => era.limit.usable(now),
                false => span,
            };
            let holder = data.holder.as_mut()?;
            let lives = holder.lease == lease && holder.expires > now;
            if now < era.no_renewals_before || !lives {
                return None;
            }
            let span = span.min(usable);
            holder.expires = holder.expires.max(now + span.cast_signed());
            data.count += 1;
            Some(span)
        });
        let Some(granted) = granted else {
            return Ok(false);
        };
        self.see(broker);
        self.rely(lease, granted)?;
        self.count("a renewal");
        Ok(true)
    }

    fn release(&mut self, broker: usize, lease: u32) -> bool {
        let released = self.in_era(broker, |data, _, _| {
            let holder = data.holder.as_ref()?;
            (holder.lease == lease).then(|| data.holder = None)
        });
        if released.is_some() {
            self.relied_until.remove(&lease);
        }
        released.is_some()
    }

    /// Records that a client relies on its lease, which no other client may do.
    fn rely(&mut self, lease: u32, span: u64) -> Result<(), String> {
        if let Some(other) = self.leases().find(|other| *other != lease) {
            return Err(format!(
                "lease {lease} is confirmed while a client relies on lease {other} until {}",
                self.relied_until[&other]
            ));
        }
        let until = self.relied_until.entry(lease).or_default();
        *until = (*until).max(self.now + span);
        Ok(())
    }
}

impl ModelWorld for RecoveryWorld {
    type Action = RecoveryAction;

    fn apply(&mut self, action: &RecoveryAction) -> Result<bool, String> {
        Ok(match *action {
            RecoveryAction::Tick => {
                self.now += 1;
                true
            }
            RecoveryAction::Crash => {
                let last = self.last();
                let runs = self.is_running(last);
                if runs {
                    self.processes[last].ends_at = Some(self.now);
                }
                runs
            }
            RecoveryAction::Start { from, offset } => self.start(from, offset),
            RecoveryAction::Connect { broker } => self.connect(broker),
            RecoveryAction::Restart { broker } => {
                self.brokers[broker] = Broker::default();
                true
            }
            RecoveryAction::Query { broker } => {
                let connection = self.connection(broker);
                let pending = self.brokers[broker].query;
                if pending.is_some_and(|query| Some(query.connection) == connection) {
                    return Ok(false);
                }
                let query = connection.map(|connection| Query {
                    sent_at: self.now,
                    connection,
                    reply: None,
                });
                self.brokers[broker].query = query;
                query.is_some()
            }
            RecoveryAction::Execute { broker, wanted } => self.execute(broker, wanted),
            RecoveryAction::Receive { broker } => self.receive(broker),
            RecoveryAction::Lower { broker, to } => {
                let lowered = self.in_era(broker, |data, now, rules| {
                    let era = data.era.as_mut()?;
                    era.limit.lower(to, now, rules).then_some(())
                });
                if lowered.is_some() {
                    self.count("lowered");
                }
                lowered.is_some()
            }
            RecoveryAction::Acquire { broker, span } => return self.acquire(broker, span),
            RecoveryAction::Renew {
                broker,
                lease,
                span,
            } => return self.renew(broker, lease, span),
            RecoveryAction::Release { broker, lease } => self.release(broker, lease),
            RecoveryAction::Register { broker } => self.register(broker),
            RecoveryAction::Acknowledge { broker } => self.acknowledge(broker),
            RecoveryAction::End { broker } => self.end(broker),
        })
    }
}
