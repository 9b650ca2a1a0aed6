//! Requests that are good in every way but for the one lock that they name.

use leasehold_proto::v1::{Lease, LockMode, LockRef};
use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, Value};
use prost_types::Duration;
use uuid::Uuid;

use super::{
    rules::{LIMIT, RELEASED_LOCK, Rule, rule, short},
    walk::{Entry, Step, Way, inner, is_lock},
};

/// What a request is made of.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The lock that enters.
    pub lock: LockRef,
    /// Whether it is held as a semaphore.
    pub is_semaphore: bool,
    /// Its token, unless the lease says it.
    pub fencing_token: i64,
    /// The locks in the other places, one after the other.
    pub others: Vec<LockRef>,
    /// What is shown where a lease is.
    pub lease: Lease,
    /// What stands where locks are found by a text.
    pub text: String,
    /// Where a call can, it shall change nothing.
    pub only_tells: bool,
    /// What is shown as a credential in a message.
    pub credential: String,
}

/// A request, and the locks of the lease in it.
#[derive(Debug)]
pub struct Filled {
    /// As it goes over the wire.
    pub bytes: Vec<u8>,
    /// In their order.
    pub leased: Vec<LockRef>,
}

struct Filling<'a> {
    sample: &'a Sample,
    way: &'a [Step],
    others: std::slice::Iter<'a, LockRef>,
    /// The first lock of the lease is the one that enters.
    mirrors: bool,
    leased: Vec<LockRef>,
    /// The lock that was placed last.
    last: LockRef,
}

/// A request of a call in which the lock of a sample enters by that way.
#[must_use]
pub fn fill(entry: &Entry, way: Option<&Way>, sample: &Sample) -> Filled {
    let steps = way.map_or(&[][..], |way| way.steps.as_slice());
    let first = steps.first().map(|step| match step {
        Step::Field(name) => format!("{}.{name}", entry.message.name()),
        Step::At { .. } => String::new(),
    });
    let mut filling = Filling {
        sample,
        way: steps,
        others: sample.others.iter(),
        mirrors: first.is_some_and(|first| first == RELEASED_LOCK),
        leased: Vec::new(),
        last: LockRef::default(),
    };
    let has_way = way.is_some();
    let message = filling.message(&entry.message, &mut Vec::new(), has_way);
    let (envelope, alternative) = entry.envelope();
    let message = match alternative {
        None => message,
        Some(field) => {
            let mut all = DynamicMessage::new(envelope);
            all.set_field(field, Value::Message(message));
            all
        }
    };
    Filled {
        bytes: message.encode_to_vec(),
        leased: filling.leased,
    }
}

impl Filling<'_> {
    /// `may_enter`: the way is through here, or this is the beginning of it.
    fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        at: &mut Vec<Step>,
        may_enter: bool,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        if is_lock(descriptor) {
            self.place(at, may_enter && self.way == at.as_slice());
        }
        for field in descriptor.fields() {
            at.push(Step::Field(field.name().to_owned()));
            let is_way = may_enter && self.way.starts_with(at);
            if let Some(value) = self.value(&field, at, is_way) {
                message.set_field(&field, value);
            }
            at.pop();
        }
        message
    }

    fn value(
        &mut self,
        field: &FieldDescriptor,
        at: &mut Vec<Step>,
        is_way: bool,
    ) -> Option<Value> {
        let sample = self.sample;
        let text = |text: &str| Some(Value::String(text.to_owned()));
        match rule(field) {
            Rule::Unset => None,
            Rule::OnWay if !is_way => None,
            Rule::Needed | Rule::OnWay => {
                Some(Value::Message(self.message(&inner(field), at, is_way)))
            }
            Rule::Several(counts) => Some(self.several(field, counts, at)),
            Rule::Number(number) => Some(number_of(field, number)),
            Rule::Text(of) => text(of),
            Rule::Seconds(seconds) => Some(seconds_of(field, seconds)),
            Rule::Uuid => text(&Uuid::new_v4().to_string()),
            Rule::Name if field.name() == "namespace" => text(&self.last.namespace),
            Rule::Name => text(&self.last.name),
            Rule::Mode => {
                let is_entering = sample.is_semaphore && self.last == sample.lock;
                let mode = LockMode::Semaphore;
                is_entering.then(|| Value::EnumNumber(mode.into()))
            }
            Rule::FencingToken => Some(Value::I64(self.token())),
            Rule::LeaseId => text(&sample.lease.lease_id),
            Rule::LeaseToken => text(&sample.lease.lease_token),
            Rule::Narrows | Rule::GoesOn => is_way.then(|| Value::String(sample.text.clone())),
            Rule::OnlyTells => Some(Value::Bool(sample.only_tells)),
            Rule::Credential => text(&sample.credential),
        }
    }

    fn several(&mut self, field: &FieldDescriptor, counts: &[usize], at: &mut Vec<Step>) -> Value {
        let count = match self.way.get(at.len()) {
            Some(Step::At { of, .. }) if self.way.starts_with(at) => *of,
            _ => counts[0],
        };
        let mut all = Vec::new();
        for index in 0..count {
            at.push(Step::At { index, of: count });
            let is_way = self.way.starts_with(at);
            all.push(Value::Message(self.message(&inner(field), at, is_way)));
            at.pop();
        }
        Value::List(all)
    }

    fn place(&mut self, at: &[Step], enters: bool) {
        let in_lease = at.contains(&Step::Field("grants".to_owned()));
        let mirrors = in_lease && std::mem::take(&mut self.mirrors);
        self.last = match enters || mirrors {
            true => self.sample.lock.clone(),
            false => {
                let other = self.others.next();
                other.expect("enough other locks").clone()
            }
        };
        if in_lease {
            self.leased.push(self.last.clone());
        }
    }

    fn token(&self) -> i64 {
        let grants = self.sample.lease.grants.iter();
        let of = |target: &leasehold_proto::v1::LockTarget| {
            target.namespace == self.last.namespace && target.name == self.last.name
        };
        let mut known = grants.filter(|grant| grant.target.as_ref().is_some_and(of));
        let known = known.next().map(|grant| grant.fencing_token);
        known.unwrap_or(self.sample.fencing_token.max(LIMIT))
    }
}

fn number_of(field: &FieldDescriptor, number: i64) -> Value {
    match i32::try_from(number) {
        Ok(small) if Value::I32(small).is_valid(&field.kind()) => Value::I32(small),
        Ok(_) | Err(_) => Value::I64(number),
    }
}

fn seconds_of(field: &FieldDescriptor, seconds: i64) -> Value {
    let duration = Duration { seconds, nanos: 0 };
    let mut message = DynamicMessage::new(inner(field));
    let name = short(field.full_name());
    message
        .transcode_from(&duration)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    Value::Message(message)
}
