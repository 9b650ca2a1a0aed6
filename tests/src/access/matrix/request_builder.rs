//! Requests that are valid in every field except the one lock that they name.

use leasehold_proto::v1::{Lease, LockMode, LockRef};
use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, Value};
use prost_types::Duration;
use uuid::Uuid;

use super::{
    api_entries::{ApiEntry, LockPath, Step, is_lock, message_type},
    field_rules::{FieldRule, LIMIT, RELEASED_LOCK, field_rule, short_name},
};

/// Values for the fields of a request.
#[derive(Debug, Clone, Default)]
pub struct FieldValues {
    /// The lock under test, which is put into the field under test.
    pub lock: LockRef,
    /// True if the lock under test is requested as a semaphore.
    pub is_semaphore: bool,
    /// Fencing token of the lock under test, unless the lease has it.
    pub fencing_token: i64,
    /// The locks for all other fields, in order.
    pub other_locks: Vec<LockRef>,
    /// The lease that the request presents.
    pub lease: Lease,
    /// Text of the filter or cursor under test.
    pub text: String,
    /// True if the call must be a dry run, where the call has one.
    pub is_dry_run: bool,
    /// The credential in a message.
    pub credential: String,
}

/// An encoded request, and the locks of the lease in it.
#[derive(Debug)]
pub struct BuiltRequest {
    pub bytes: Vec<u8>,
    /// The locks of the lease, in order.
    pub lease_locks: Vec<LockRef>,
}

struct RequestBuilder<'a> {
    sample: &'a FieldValues,
    path: &'a [Step],
    other_locks: std::slice::Iter<'a, LockRef>,
    /// True if the first lock of the lease must be the lock under test.
    is_lease_lock_pending: bool,
    lease_locks: Vec<LockRef>,
    /// The lock that was placed last.
    last_lock: LockRef,
}

/// Returns a request of a call in which the lock of a sample is put into the field at `way`.
#[must_use]
pub fn build_request(
    entry: &ApiEntry,
    way: Option<&LockPath>,
    sample: &FieldValues,
) -> BuiltRequest {
    let steps = way.map_or(&[][..], |way| way.steps.as_slice());
    let first = steps.first().map(|step| match step {
        Step::Field(name) => format!("{}.{name}", entry.message.name()),
        Step::Element { .. } => String::new(),
    });
    let mut filling = RequestBuilder {
        sample,
        path: steps,
        other_locks: sample.other_locks.iter(),
        is_lease_lock_pending: first.is_some_and(|first| first == RELEASED_LOCK),
        lease_locks: Vec::new(),
        last_lock: LockRef::default(),
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
    BuiltRequest {
        bytes: message.encode_to_vec(),
        lease_locks: filling.lease_locks,
    }
}

impl RequestBuilder<'_> {
    /// Builds a message. `may_enter` is true if `at` is on the path to the field under test.
    fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        at: &mut Vec<Step>,
        may_enter: bool,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        if is_lock(descriptor) {
            self.place_lock(at, may_enter && self.path == at.as_slice());
        }
        for field in descriptor.fields() {
            at.push(Step::Field(field.name().to_owned()));
            let is_way = may_enter && self.path.starts_with(at);
            if let Some(value) = self.field_value(&field, at, is_way) {
                message.set_field(&field, value);
            }
            at.pop();
        }
        message
    }

    fn field_value(
        &mut self,
        field: &FieldDescriptor,
        at: &mut Vec<Step>,
        is_way: bool,
    ) -> Option<Value> {
        let sample = self.sample;
        let text = |text: &str| Some(Value::String(text.to_owned()));
        match field_rule(field) {
            FieldRule::Unset => None,
            FieldRule::MessageOnPath if !is_way => None,
            FieldRule::RequiredMessage | FieldRule::MessageOnPath => Some(Value::Message(
                self.message(&message_type(field), at, is_way),
            )),
            FieldRule::Repeated(counts) => Some(self.repeated_value(field, counts, at)),
            FieldRule::Number(number) => Some(number_value(field, number)),
            FieldRule::Text(of) => text(of),
            FieldRule::Seconds(seconds) => Some(duration_value(field, seconds)),
            FieldRule::Uuid => text(&Uuid::new_v4().to_string()),
            FieldRule::Name if field.name() == "namespace" => text(&self.last_lock.namespace),
            FieldRule::Name => text(&self.last_lock.name),
            FieldRule::Mode => {
                let is_entering = sample.is_semaphore && self.last_lock == sample.lock;
                let mode = LockMode::Semaphore;
                is_entering.then(|| Value::EnumNumber(mode.into()))
            }
            FieldRule::FencingToken => Some(Value::I64(self.fencing_token())),
            FieldRule::LeaseId => text(&sample.lease.lease_id),
            FieldRule::LeaseToken => text(&sample.lease.lease_token),
            FieldRule::Filter | FieldRule::Cursor => {
                is_way.then(|| Value::String(sample.text.clone()))
            }
            FieldRule::DryRun => Some(Value::Bool(sample.is_dry_run)),
            FieldRule::Credential => text(&sample.credential),
        }
    }

    fn repeated_value(
        &mut self,
        field: &FieldDescriptor,
        counts: &[usize],
        at: &mut Vec<Step>,
    ) -> Value {
        let count = match self.path.get(at.len()) {
            Some(Step::Element { length: of, .. }) if self.path.starts_with(at) => *of,
            _ => counts[0],
        };
        let mut all = Vec::new();
        for index in 0..count {
            at.push(Step::Element {
                index,
                length: count,
            });
            let is_way = self.path.starts_with(at);
            all.push(Value::Message(self.message(
                &message_type(field),
                at,
                is_way,
            )));
            at.pop();
        }
        Value::List(all)
    }

    fn place_lock(&mut self, at: &[Step], enters: bool) {
        let in_lease = at.contains(&Step::Field("grants".to_owned()));
        let mirrors = in_lease && std::mem::take(&mut self.is_lease_lock_pending);
        self.last_lock = match enters || mirrors {
            true => self.sample.lock.clone(),
            false => {
                let other = self.other_locks.next();
                other.expect("enough other locks").clone()
            }
        };
        if in_lease {
            self.lease_locks.push(self.last_lock.clone());
        }
    }

    fn fencing_token(&self) -> i64 {
        let grants = self.sample.lease.grants.iter();
        let of = |target: &leasehold_proto::v1::LockTarget| {
            target.namespace == self.last_lock.namespace && target.name == self.last_lock.name
        };
        let mut known = grants.filter(|grant| grant.target.as_ref().is_some_and(of));
        let known = known.next().map(|grant| grant.fencing_token);
        known.unwrap_or(self.sample.fencing_token.max(LIMIT))
    }
}

fn number_value(field: &FieldDescriptor, number: i64) -> Value {
    match i32::try_from(number) {
        Ok(small) if Value::I32(small).is_valid(&field.kind()) => Value::I32(small),
        Ok(_) | Err(_) => Value::I64(number),
    }
}

fn duration_value(field: &FieldDescriptor, seconds: i64) -> Value {
    let duration = Duration { seconds, nanos: 0 };
    let mut message = DynamicMessage::new(message_type(field));
    let name = short_name(field.full_name());
    message
        .transcode_from(&duration)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    Value::Message(message)
}
