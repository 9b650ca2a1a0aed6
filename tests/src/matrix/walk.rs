//! The API as its description has it: every call, every message of a stream, and every place in them
//! where the name of a lock can stand.

use std::{collections::BTreeSet, fmt};

use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};

use super::{
    rules::{Rule, rule, short, unused},
    wire::Listens,
};

/// Requests are not deeper: a message that has itself in it ends here.
const DEPTH_MOST: usize = 16;

/// A call, or a message of a stream.
#[derive(Debug, Clone)]
pub struct Entry {
    /// `LockService.Acquire`, `LockService.Hold/acquire`.
    pub name: String,
    /// What is asked.
    pub message: MessageDescriptor,
    method: MethodDescriptor,
    alternative: Option<FieldDescriptor>,
}

/// From a message to a field of it, or from a list to one of so many in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To this field.
    Field(String),
    /// To this one.
    At {
        /// From 0 on.
        index: usize,
        /// Of so many.
        of: usize,
    },
}

/// Where the name of a lock can enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The place.
    pub steps: Vec<Step>,
    /// What can stand there.
    pub enters: Enters,
}

/// What names a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enters {
    /// A namespace and a name.
    Lock,
    /// A text by which locks are found.
    Text(Rule),
}

impl Entry {
    /// Of which service.
    #[must_use]
    pub fn service(&self) -> String {
        self.method.parent_service().name().to_owned()
    }

    /// As in the path of a request.
    #[must_use]
    pub fn path(&self) -> String {
        let service = self.method.parent_service();
        format!("/{}/{}", service.full_name(), self.method.name())
    }

    /// How long its answer is listened to.
    #[must_use]
    pub fn listens(&self) -> Listens {
        let method = &self.method;
        match (method.is_client_streaming(), method.is_server_streaming()) {
            (true, _) => Listens::ToTheFirst,
            (false, true) => Listens::UntilAccepted,
            (false, false) => Listens::ToTheEnd,
        }
    }

    /// The message that goes over the wire, and the field of it that is this one, if it is not all.
    #[must_use]
    pub fn envelope(&self) -> (MessageDescriptor, Option<&FieldDescriptor>) {
        (self.method.input(), self.alternative.as_ref())
    }

    /// Whether a lease, or its id, stands in it.
    #[must_use]
    pub fn shows_a_lease(&self) -> bool {
        has_lease_id(&self.message)
    }

    /// Where the name of a lock can stand.
    #[must_use]
    pub fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        find(&self.message, &mut Vec::new(), &mut ways);
        ways
    }
}

impl Way {
    /// The field that it ends at.
    #[must_use]
    pub fn field(&self) -> &str {
        match self.steps.last() {
            Some(Step::Field(name)) => name,
            Some(Step::At { .. }) | None => "",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Step::Field(name) if number == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::At { index, of } => write!(f, "[{index} of {of}]")?,
            }
        }
        Ok(())
    }
}

/// The one of that name.
#[must_use]
pub fn entry(name: &str) -> Entry {
    let mut entries = entries().into_iter();
    let entry = entries.find(|entry| entry.name == name);
    entry.expect("it is in the API")
}

/// Every call, and every message of a stream of requests.
#[must_use]
pub fn entries() -> Vec<Entry> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the description of the API");
    let services: Vec<_> = pool.services().collect();
    let methods = services.iter().flat_map(|service| service.methods());
    let entries: Vec<_> = methods.flat_map(|method| of(&method)).collect();
    let mut used = BTreeSet::new();
    for entry in &entries {
        used_by(&entry.message, &mut used);
    }
    let unused = unused(|name| used.contains(name));
    assert!(
        unused.is_empty(),
        "rules for fields that are no more: {unused:?}"
    );
    entries
}

fn of(method: &MethodDescriptor) -> Vec<Entry> {
    let name = format!("{}.{}", method.parent_service().name(), method.name());
    if !method.is_client_streaming() {
        return vec![Entry {
            name,
            message: method.input(),
            method: method.clone(),
            alternative: None,
        }];
    }
    let input = method.input();
    let fields: Vec<_> = input.fields().collect();
    let alternative = |field: FieldDescriptor| {
        let known = field.containing_oneof().is_some();
        let Kind::Message(message) = field.kind() else {
            panic!("{}: a stream's messages are messages", field.full_name());
        };
        assert!(known, "{}: beside the message", field.full_name());
        Entry {
            name: format!("{name}/{}", field.name()),
            message,
            method: method.clone(),
            alternative: Some(field),
        }
    };
    fields.into_iter().map(alternative).collect()
}

/// Whether a message names one lock.
#[must_use]
pub fn is_lock(message: &MessageDescriptor) -> bool {
    let has = |name| {
        let field = message.get_field_by_name(name);
        field.is_some_and(|field| rule(&field) == Rule::Name)
    };
    has("namespace") && has("name")
}

/// The message in a field that is gone into.
#[must_use]
pub fn inner(field: &FieldDescriptor) -> MessageDescriptor {
    let kind = field.kind();
    let message = kind.as_message();
    message.expect("rules go into messages only").clone()
}

fn find(message: &MessageDescriptor, at: &mut Vec<Step>, ways: &mut Vec<Way>) {
    assert!(
        at.len() < DEPTH_MOST,
        "{}: deeper and deeper",
        message.name()
    );
    let way = |at: &[Step], enters| Way {
        steps: at.to_vec(),
        enters,
    };
    let mut names = 0;
    for field in message.fields() {
        at.push(Step::Field(field.name().to_owned()));
        let rule = rule(&field);
        if let Rule::Several(counts) = rule {
            for &of in counts {
                for index in BTreeSet::from([0, of - 1]) {
                    at.push(Step::At { index, of });
                    find(&inner(&field), at, ways);
                    at.pop();
                }
            }
        } else if rule.is_gone_into() {
            find(&inner(&field), at, ways);
        } else if rule.finds() {
            ways.push(way(at, Enters::Text(rule)));
        }
        names += usize::from(rule == Rule::Name);
        at.pop();
    }
    assert_eq!(
        names > 0,
        is_lock(message),
        "{}: half a name",
        message.name()
    );
    if names > 0 {
        ways.push(way(at, Enters::Lock));
    }
}

fn has_lease_id(message: &MessageDescriptor) -> bool {
    message.fields().any(|field| {
        let rule = rule(&field);
        rule == Rule::LeaseId || rule.is_gone_into() && has_lease_id(&inner(&field))
    })
}

fn used_by(message: &MessageDescriptor, used: &mut BTreeSet<String>) {
    for field in message.fields() {
        used.insert(short(field.full_name()).to_owned());
        if rule(&field).is_gone_into() {
            used_by(&inner(&field), used);
        }
    }
}
