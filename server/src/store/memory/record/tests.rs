//! Rules of the specification, each as the replies to a sequence of commands.

use std::{collections::BTreeMap, fmt::Debug};

use super::*;
use crate::{
    lock::{ArgumentsHash, CloseCommand, FencingToken, Owner, StreamId},
    store::{
        NotifyMode,
        memory::context::{Bounds, SpanLimit},
        stub,
    },
};

const START_US: u64 = 1_000_000_000_000;

/// A lock, the context of the next command, and the calls and their tokens by the names of the
/// calls.
struct Lock {
    record: Record,
    context: Context,
    calls: BTreeMap<&'static str, AcquireCommand>,
    tokens: BTreeMap<&'static str, FencingToken>,
}

impl Lock {
    fn new() -> Self {
        let bounds = Bounds {
            waiters_max: 3,
            entries_max: 2,
            attempts_max: 2,
            tombstones_max: 1,
            ..Bounds::default()
        };
        Self {
            record: Record::default(),
            context: Context {
                now_us: START_US,
                broker: broker("a"),
                not_after_ms: u64::MAX,
                grants: Grants::NotBefore(0),
                span_limit: SpanLimit::None,
                token_floor: None,
                bounds,
            },
            calls: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    /// Runs a command. Returns its reply, with the names of the calls that it granted the lock.
    fn run(&mut self, command: &'static str) -> String {
        let context = self.context;
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["after", ms] => self.context.now_us += 1_000 * number::<u64>(ms),
            ["clock", us] => self.context.now_us = number(us),
            ["broker", id] => self.context.broker = broker(id),
            ["era", "none"] => self.context.grants = Grants::Never,
            ["era", ms] => self.context.grants = Grants::NotBefore(number(ms)),
            ["limit", "none"] => self.context.span_limit = SpanLimit::None,
            ["limit", "min"] => self.context.span_limit = SpanLimit::Min,
            ["limit", limits, at_ms] => {
                let (before_ms, after_ms) = numbers(limits);
                let at_ms = number(at_ms);
                self.context.span_limit = SpanLimit::Changing {
                    before_ms,
                    after_ms,
                    at_ms,
                };
            }
            ["floor", token] => self.context.token_floor = FencingToken::new(number(token)),
            ["acquire", name, ref options @ ..] => {
                let call = self.call(name, options);
                let acquired = self.record.acquire(&context, &call);
                return self.describe(acquired);
            }
            ["renew", name, ref options @ ..] => {
                let (ttl, via) = match *options {
                    ["on", to] => (None, ExpectedAttachment::Stream(attachment(to).stream)),
                    [ttl_ms] => (Some(Ttl::from_stored(number(ttl_ms))), Default::default()),
                    _ => Default::default(),
                };
                let renewed = self.record.renew(&context, &self.lease(name), ttl, via);
                return self.describe(renewed.map(Outcome::reply_only));
            }
            ["release", name, ref scope @ ..] => {
                let (lease, any) = (self.lease(name), ExpectedAttachment::Any);
                let scope = match *scope {
                    ["now"] => ReleaseScope::ExpireNow,
                    [entry] => ReleaseScope::Entry(self.calls[entry].request),
                    _ => ReleaseScope::All,
                };
                let released = self.record.release(&context, &lease, scope, any);
                return self.describe(Ok(released));
            }
            ["cancel", name] => {
                let call = self.call(name, &[]);
                let cancelled = self.record.cancel(&context, call.request, call.attempt);
                return self.describe(Ok(cancelled));
            }
            ["attach", name, to] => {
                let lease = self.lease(name);
                let attached = self.record.attach(&context, &lease, attachment(to));
                return self.describe(attached);
            }
            ["vote", name, token, ref raise @ ..] => {
                let vote = Vote {
                    token: FencingToken::new(number(token)),
                    max_clock_skew_ms: 10,
                    raises: !raise.is_empty(),
                    notify: NotifyMode::IfHeld,
                };
                let call = self.call(name, &["wait=0"]);
                let voted = self.record.vote(&context, &call, &vote);
                return self.describe(voted);
            }
            ["release_subscribers"] => return format!("{:?}", self.record.release_subscribers()),
            ["close", until_ms] => {
                let close = CloseCommand {
                    lock: stub::lock("a"),
                    until_ms: number(until_ms),
                    operator: Owner::default(),
                };
                let closed = self.record.close(&context, &close);
                return self.describe(closed);
            }
            ["open"] => {
                let opened = self.record.open(&context);
                return self.describe(opened);
            }
            ["get"] => return format!("{:?}", self.record.get(context.now_us)),
            ["touch"] => {
                let touched = self.record.touch(&context, 1);
                return self.describe(touched);
            }
            ["ends"] => return format!("{:?}", self.record.end_events),
            _ => panic!("unknown command: {command}"),
        }
        String::new()
    }

    /// Returns the call of this name. A new one waits for the exclusive lock, with a ttl of 1 s.
    fn call(&mut self, name: &'static str, options: &[&str]) -> AcquireCommand {
        let mut call = stub::acquire(&stub::lock("a"), self.calls.len());
        call.mode = Mode::Exclusive;
        for option in options {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            match key {
                "shared" => call.mode = Mode::Shared,
                "permits" => {
                    let (permits, limit) = numbers(value);
                    call.mode = Mode::Semaphore { permits, limit };
                }
                "repeats" => {
                    let attempt = call.attempt;
                    call = self.calls[value].clone();
                    call.attempt = attempt;
                }
                "enters" => {
                    call.lease_id = self.calls[value].lease_id;
                    call.binding = LeaseBinding::Reentry(self.tokens[value]);
                }
                "other" => call.arguments = ArgumentsHash::of(&[b"other"]),
                "rejoin" => call.rejoin = true,
                "stream" => call.stream = Some(attachment(value)),
                "ttl" => call.ttl = Ttl::from_stored(number(value)),
                "wait" => call.wait_ms = number(value),
                "max_hold" => call.options.max_hold_ms = Some(number(value)),
                "lock_delay" => call.options.lock_delay_ms = number(value),
                "at_least" => call.options.at_least_ms = number(value),
                "grace" => call.options.disconnect_grace_ms = Some(number(value)),
                _ => panic!("unknown option: {option}"),
            }
        }
        self.calls.entry(name).or_insert(call).clone()
    }

    fn lease(&self, name: &str) -> LeaseRef {
        let call = &self.calls[name];
        LeaseRef {
            lock: call.lock.clone(),
            lease_id: call.lease_id,
            fencing_token: self.tokens[name],
        }
    }

    /// Records the tokens of all calls, and returns the outcome as text.
    fn describe<T: Debug>(&mut self, result: Result<Outcome<T>, Rejected>) -> String {
        for (name, call) in &self.calls {
            let held = self.record.holders.by_request(call.request);
            let token = held.map(|held| (*name, held.fencing_token));
            self.tokens.extend(token);
        }
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(rejected) => return format!("{rejected:?}"),
        };
        let name = |hand_off: &HandOff| {
            let mut calls = self.calls.iter();
            let call = calls.find(|(_, call)| call.request == hand_off.request);
            call.map(|(name, _)| *name).expect("the call of a hand-off")
        };
        let names: Vec<_> = outcome.hand_offs.iter().map(name).collect();
        let Outcome { reply, moved, .. } = outcome;
        format!("{reply:?} granted to: {} moved: {moved:?}", names.join(" "))
    }
}

fn number<T: TryFrom<u64, Error: Debug>>(text: &str) -> T {
    let number: u64 = text.parse().expect("a number");
    number.try_into().expect("a small number")
}

fn numbers<T: TryFrom<u64, Error: Debug>, U: TryFrom<u64, Error: Debug>>(text: &str) -> (T, U) {
    let (left, right) = text.split_once('/').expect("two numbers");
    (number(left), number(right))
}

fn broker(digit: &str) -> BrokerId {
    BrokerId::parse(&digit.repeat(BrokerId::LEN)).expect("a legal id")
}

/// Parses the number of a stream and that of an attachment.
fn attachment(text: &str) -> Attachment {
    let (broker, (epoch, number)) = (broker("a"), numbers(text));
    let stream = StreamId { broker, epoch };
    Attachment { stream, number }
}

/// Runs the commands of a rule. The text after `=>` must occur in the reply.
#[track_caller]
fn check(rule: &'static str) {
    let mut lock = Lock::new();
    for line in rule.lines().flat_map(|line| line.split(';')) {
        let (command, expected) = line.split_once("=>").unwrap_or((line, ""));
        if !command.trim().is_empty() {
            let reply = lock.run(command);
            assert!(reply.contains(expected.trim()), "{line}: {reply}");
        }
    }
}

/// Defines a test for each rule.
macro_rules! rules {
    ($($name:ident: $rule:literal)*) => {
        $(
            #[test]
            fn $name() {
                check($rule);
            }
        )*
    };
}

// A lease with a ttl of 1 s expires after 1,450 ms.
rules! {
    an_exclusive_holder_excludes_all_others: "
        acquire a => Granted
        acquire b wait=0 => Held
        acquire c wait=0 shared => Held
    "
    shared_holders_exclude_an_exclusive_one: "
        acquire a shared; acquire b shared => Granted
        acquire c wait=0 => Held
        acquire d permits=1/3 => LimitMismatch { limit: Some(1073741824) }
    "
    the_permits_of_a_semaphore_never_exceed_its_limit: "
        acquire a permits=1/0 => LimitMismatch { limit: None }
        acquire b permits=2/3 => Granted
        acquire c permits=2/3 wait=0 => Held
        acquire d permits=1/4 => LimitMismatch { limit: Some(3) }
        acquire e permits=1/0 => Granted
    "
    tokens_rise_even_if_the_clock_is_set_back: "
        acquire a => FencingToken(1000000000000)
        release a; clock 999999000000
        acquire b => FencingToken(1000000000001)
    "
    waiters_are_granted_the_lock_in_the_order_of_the_queue: "
        acquire a; acquire b shared; acquire c; acquire d shared => Queued
        acquire e => QueueFull
        release a => to: b moved
        acquire f shared => Queued
        release b => to: c moved
        release c => to: d f moved
    "
    a_waiter_is_dropped_when_its_wait_has_ended_by_any_clock: "
        acquire a ttl=9000; acquire b wait=1000; acquire c wait=1001
        after 1450
        release a => to: c moved
    "
    a_hand_off_to_another_broker_is_claimed_with_a_renewal: "
        acquire a; broker b; acquire b ttl=9000; broker a
        release a => to: b
        after 2999
        renew b => Ok
        after 1
        acquire c wait=0 => Held(Contention { holders: [Holder
    "
    a_hand_off_that_is_not_claimed_lapses_until_its_broker_is_alive: "
        acquire a; broker b; acquire b ttl=9000; broker a
        release a => to: b
        after 3000
        acquire c => Granted
        renew b => NotFound
        broker b; touch; broker a
        release c => to: b
    "
    waiters_of_a_silent_broker_are_passed_over: "
        acquire a ttl=30000; broker b; acquire b; broker a; acquire c
        after 3000; touch; after 3000; touch; after 1
        release a => to: c
        broker b; touch => rejoin: true
    "
    a_lease_that_is_not_renewed_expires: "
        acquire a; acquire b
        after 1449
        renew a => Ok
        after 1450
        touch => to: b
        ends => kind: Expired
        renew a => Err(Expired)
        after 60000
        renew a => Err(NotFound)
    "
    a_renewal_never_shortens_a_lease: "
        acquire a ttl=5000
        renew a 1000 => ttl: Ttl(1000)
        after 6249
        acquire b wait=0 => remaining_ms: 1 }
    "
    max_hold_bounds_the_renewals: "
        acquire a max_hold=1500; acquire b
        after 1000
        renew a => ttl: Ttl(500)
        after 500
        renew a => Err(MaxHold)
        after 350
        touch => to: b
        ends => kind: MaxHold
    "
    the_lock_delay_follows_an_expiry_but_no_release: "
        acquire a lock_delay=700; release a
        acquire b lock_delay=700 => Granted
        after 2149
        acquire c wait=0 => cause: LockDelay, until_ms: 1000002150
        acquire c2 wait=0 => remaining_ms: 1
        after 1
        acquire c => Granted
    "
    a_lock_stays_closed_until_its_at_least_however_the_lease_ends: "
        acquire a at_least=5000; acquire b wait=9000; after 1
        release a => granted to:  moved
        acquire c wait=0 => cause: AtLeast, until_ms: 1000005000
        get => closure: Some(ActiveClosure { closure: Closure { cause: AtLeast
        after 4998; touch => granted to:  moved
        after 1; touch => granted to: b
        get => closure: None
    "
    a_lock_is_closed_after_an_expiry_and_a_kill_too: "
        acquire a at_least=5000 grace=5
        release a now; acquire b wait=0 => remaining_ms: 5000
        open => cause: AtLeast
        acquire c at_least=5000 => Granted
        after 1450
        get => remaining_ms: 3550
        acquire d wait=0 => remaining_ms: 3550
        after 3550
        acquire e => Granted
    "
    a_grant_that_its_caller_did_not_receive_closes_nothing: "
        acquire a at_least=5000; acquire b
        cancel a => Freed granted to: b
        get => closure: None
        broker b; acquire c wait=9000 at_least=5000; broker a; acquire d wait=9000
        release b => to: c
        after 3000; touch => to: d
        get => closure: None
    "
    a_lock_is_closed_until_the_latest_of_all_ends: "
        acquire a shared at_least=3000; acquire b shared at_least=5000
        acquire c shared at_least=4000 lock_delay=100
        release b; after 1; release a
        get => until_ms: 1000005000
        acquire d wait=0 shared => holders: [Holder
        release c
        get => until_ms: 1000005000
        after 4999
        acquire e => Granted
    "
    an_operator_closes_a_lock_behind_its_holder: "
        acquire a; acquire b
        close 1000000000 => None granted
        close 1000005000 => cause: Operator, until_ms: 1000005000
        close 1000004000 => until_ms: 1000005000
        renew a => Ok
        acquire a2 enters=a => hold_count: 2
        release a => granted to:  moved
        get => queue_length: 1, closure: Some
        open => remaining_ms: 5000 }) granted to: b
        open => None granted
        era none
        close 1000009000 => NoEra
        open => NoEra
    "
    a_lock_that_was_never_used_can_be_closed: "
        close 1000005000 => cause: Operator
        after 4999
        acquire a wait=0 => Held(Contention { holders: [], queue_length: 0, closure: Some
        after 1
        acquire a3 => Granted
    "
    a_lease_ends_after_its_disconnect_grace: "
        acquire a grace=5; acquire b
        era 999999999999; attach a 1/1 => Recovering
        era 0
        release a now => to: b
        renew a => Err(Expired)
    "
    an_older_attachment_is_stale: "
        acquire a stream=1/2
        attach a 2/2 => Err(Elsewhere)
        attach a 1/1 => moved: None
        attach a 2/3 => moved: Some
        attach a 1/3 => Err(Elsewhere)
        acquire again repeats=a => StaleAttach
        renew a on 1/9 => Err(Elsewhere)
        renew a on 2/9 => Ok
    "
    an_attempt_that_was_cancelled_before_it_arrived_is_rejected: "
        cancel a; cancel b => Unknown
        after 1999
        acquire a => Granted
        acquire b => Cancelled
        release a; after 1
        acquire b => Granted
    "
    the_cancel_of_the_last_attempt_ends_a_request: "
        acquire a; acquire a2 repeats=a => Granted
        acquire b; acquire b2 repeats=b => Queued
        acquire b3 repeats=b => TooManyAttempts
        acquire c => Queued
        cancel a => Kept; cancel b => Kept
        cancel b2 => Dequeued
        cancel a2 => Freed granted to: c
    "
    a_repeated_request_returns_its_grant_until_it_has_ended: "
        acquire a; acquire a2 repeats=a => FencingToken(1000000000000)
        acquire a3 repeats=a other => RequestIdReused
        release a => already_released: false
        release a => already_released: true
        acquire a4 repeats=a => Ended
    "
    a_lease_enters_its_lock_again_and_releases_each_entry: "
        acquire a permits=2/3; acquire b permits=2/3
        acquire a2 permits=3/3 enters=a => UpgradeDenied
        acquire a3 permits=1/3 enters=a => hold_count: 2
        acquire a4 permits=1/3 enters=a => TooManyEntries
        release a a => hold_count: 1 }) granted to: b
        release a a => already_released: true, hold_count: 1
        acquire a5 permits=1/3 enters=a => hold_count: 2
        release a a5 => hold_count: 1
        acquire a6 repeats=a5 => Ended
        release a a3 => hold_count: 0
    "
    nothing_is_granted_without_the_permission_of_the_era: "
        acquire a; era 1000000005
        acquire b => Recovering { retry_after_ms: 5 }
        acquire c rejoin => Queued
        renew a => Ok
        release a => granted to:  moved
        era none
        acquire d rejoin => NoEra
    "
    a_node_votes_for_a_token_near_its_clock_and_above_its_last_one: "
        vote a 999999989999 => Behind { min_token: 999999995000 }
        vote a 1000000010001 => Ahead
        vote a 999999990000 => FencingToken(999999990000)
        release a
        vote b 999999990000 => Behind { min_token: 999999995000 }
        vote b 1000000010000 => FencingToken(1000000010000)
        release b
        vote c 1000000010000 => Behind { min_token: 1000000010001 }
    "
    a_repeated_vote_raises_the_token_of_its_grant: "
        vote a 1000000000000 => Granted
        vote a 1000000000001 => FencingToken(1000000000000)
        vote a 1000000000001 raise => FencingToken(1000000000001)
        vote b 1000000000002 raise => Held
        release_subscribers => [aaaaaaaaaaaaaaaa]
    "
}

// A span of 12,250 ms is always allowed; with a ttl of at most 1 s that leaves a lock_delay of
// 10,800 ms.
rules! {
    a_validity_is_cut_to_the_limit_of_spans: "
        limit 20000/72250 1000030000
        acquire a ttl=60000 lock_delay=2000 => ttl: Ttl(14792)
        acquire a repeats=a ttl=60000 => span_ms: 74250
        acquire b wait=0 => remaining_ms: 18000
        after 29999
        limit 20000/74250 1000030000
        acquire c ttl=60000 lock_delay=2000 => ttl: Ttl(14792)
        after 1
        renew c => ttl: Ttl(60000)
        renew c 61000 => ttl: Ttl(60000)
        limit none
        renew c => ttl: Ttl(61000)
    "
    a_limit_of_spans_never_shortens_an_expiry: "
        acquire a ttl=60000
        limit min
        renew a => ttl: Ttl(10000)
        acquire b wait=0 => remaining_ms: 72250
        after 65000
        renew a => ttl: Ttl(10000)
        acquire c wait=0 => remaining_ms: 12250
    "
    a_token_is_larger_than_the_floor: "
        floor 1000000000500
        acquire a => fencing_token: FencingToken(1000000000501)
        acquire b
        release a => to: b
        get => last_fencing_token: 1000000000502
        after 1
        release b
        acquire c => fencing_token: FencingToken(1000000001000)
    "
    a_proposed_token_does_not_depend_on_the_floor: "
        floor 1000000000500
        vote a 1000000000400 => fencing_token: FencingToken(1000000000400)
    "
    a_short_span_is_not_cut: "
        limit 0/0 0
        acquire a ttl=10000 => ttl: Ttl(10000)
        release a
        acquire b ttl=10001 => ttl: Ttl(10000)
        release b
        acquire c ttl=1000 lock_delay=10800 => ttl: Ttl(1000)
        release c
        acquire d ttl=60000 lock_delay=10800 max_hold=700 => ttl: Ttl(700)
    "
    an_acquire_with_a_long_lock_delay_is_rejected_until_the_limit_is_raised: "
        limit 0/13000 1000000050
        acquire a lock_delay=10801 => SpanLimit { retry_after_ms: 50 }
        get => last_fencing_token: 0
        after 50
        acquire a lock_delay=10801 => Granted
        acquire b lock_delay=11551 => SpanLimit { retry_after_ms: 1000 }
        get => queue_length: 0
        acquire c lock_delay=11551 ttl=999 => Queued
        limit min
        acquire d ttl=500 lock_delay=11400 => Queued
        acquire e ttl=500 lock_delay=11401 => SpanLimit { retry_after_ms: 1000 }
    "
    a_lease_over_the_limit_of_spans_is_not_renewed_and_keeps_its_expiry: "
        acquire a ttl=2000 lock_delay=11000
        limit min
        renew a => SpanLimit { retry_after_ms: 1000 }
        renew a 800 => Ok
        acquire a2 enters=a => Granted
        limit none
        renew a 2000 => Ok
        limit min
        acquire a repeats=a => SpanLimit
        acquire a3 enters=a => SpanLimit
        attach a 1/1 => ttl: Ttl(1000)
        release a a2 => hold_count: 1
        get => remaining_ms: 2650
        after 2650
        renew a => Err(Expired)
    "
    a_lease_past_its_max_hold_reports_that_before_the_limit_of_spans: "
        acquire a ttl=2000 lock_delay=11000 max_hold=100
        limit min
        after 100
        renew a => Err(MaxHold)
        acquire a repeats=a => Ended
    "
    a_waiter_over_the_limit_of_spans_is_passed_over_and_rejected_when_it_repeats: "
        acquire a; acquire b lock_delay=11000 wait=9000; acquire c
        limit min
        release a => to: c moved
        touch => rejoin: false
        release c => to:  moved
        touch => rejoin: true
        acquire b repeats=b => SpanLimit { retry_after_ms: 1000 }
        acquire d => Granted
        get => queue_length: 1
    "
    a_hand_off_over_the_limit_of_spans_is_not_claimed: "
        acquire a; broker b; acquire b ttl=60000 lock_delay=11000; broker a
        release a => to: b
        limit min
        renew b => SpanLimit
        after 3000
        acquire c => Granted
        broker b; release c => to:  moved
        limit 0/13000 0
        touch => to: b
        renew b => ttl: Ttl(1459)
    "
    a_waiter_joins_a_recovering_store_only_within_the_limit_of_spans: "
        era 1000000005; limit min
        acquire a rejoin lock_delay=11000 => SpanLimit
        acquire b rejoin ttl=60000 => Queued
        after 5; touch => to: b
        renew b => ttl: Ttl(10000)
    "
    a_vote_over_the_limit_of_spans_is_rejected: "
        limit min
        acquire a wait=0 lock_delay=11000 => SpanLimit
        vote a 1000000000000 => SpanLimit
        limit none
        vote a 1000000000000 => Granted
    "
}
