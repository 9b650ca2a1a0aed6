//! A walk over the API descriptor: every call, every message of a stream, and every field of them
//! that can name a lock.

use std::{collections::BTreeSet, fmt};

use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};

use super::{
    field_rules::{FieldRule, field_rule, short_name, unused_rules},
    raw_call::ReplyMode,
};

/// Maximum depth of a request, which stops recursive messages.
const DEPTH_MAX: usize = 16;

/// A call, or a message of a stream.
#[derive(Debug, Clone)]
pub struct ApiEntry {
    /// Name such as `LockService.Acquire` or `LockService.Hold/acquire`.
    pub name: String,
    /// Descriptor of the request.
    pub message: MessageDescriptor,
    method: MethodDescriptor,
    oneof_field: Option<FieldDescriptor>,
}

/// A step from a message to one of its fields, or from a list to one of its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The name of the field.
    Field(String),
    /// An element of the list.
    Element {
        /// Index, from 0.
        index: usize,
        /// Length of the list.
        length: usize,
    },
}

/// The path to a field that can name a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockPath {
    pub steps: Vec<Step>,
    /// Kind of the value at the path.
    pub kind: PathKind,
}

/// A way to name a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// A namespace and a name.
    Lock,
    /// A filter or cursor that selects locks.
    Text(FieldRule),
}

impl ApiEntry {
    #[must_use]
    pub fn service(&self) -> String {
        self.method.parent_service().name().to_owned()
    }

    /// Returns the path of the HTTP/2 request.
    #[must_use]
    pub fn path(&self) -> String {
        let service = self.method.parent_service();
        format!("/{}/{}", service.full_name(), self.method.name())
    }

    /// Returns how long a client reads replies of the call.
    #[must_use]
    pub fn reply_mode(&self) -> ReplyMode {
        let method = &self.method;
        match (method.is_client_streaming(), method.is_server_streaming()) {
            (true, _) => ReplyMode::UntilFirstMessage,
            (false, true) => ReplyMode::UntilHeaders,
            (false, false) => ReplyMode::UntilEnd,
        }
    }

    /// Returns the message that is sent, and its field that contains this message, if the message
    /// is nested.
    #[must_use]
    pub fn envelope(&self) -> (MessageDescriptor, Option<&FieldDescriptor>) {
        (self.method.input(), self.oneof_field.as_ref())
    }

    /// Returns true if the message contains a lease or the id of a lease.
    #[must_use]
    pub fn contains_lease(&self) -> bool {
        has_lease_id(&self.message)
    }

    /// Returns the paths to all fields that can name a lock.
    #[must_use]
    pub fn lock_paths(&self) -> Vec<LockPath> {
        let mut ways = Vec::new();
        find_lock_paths(&self.message, &mut Vec::new(), &mut ways);
        ways
    }
}

impl LockPath {
    /// Returns the name of the last field of the path.
    #[must_use]
    pub fn last_field(&self) -> &str {
        match self.steps.last() {
            Some(Step::Field(name)) => name,
            Some(Step::Element { .. }) | None => "",
        }
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Step::Field(name) if number == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Element { index, length: of } => write!(f, "[{index} of {of}]")?,
            }
        }
        Ok(())
    }
}

/// Returns the entry with this name.
#[must_use]
pub fn entry(name: &str) -> ApiEntry {
    let mut entries = entries().into_iter();
    let entry = entries.find(|entry| entry.name == name);
    entry.expect("it is in the API")
}

/// Returns every call, and every message of a stream of requests.
#[must_use]
pub fn entries() -> Vec<ApiEntry> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the description of the API");
    let services: Vec<_> = pool.services().collect();
    let methods = services.iter().flat_map(|service| service.methods());
    let entries: Vec<_> = methods
        .flat_map(|method| entries_of_method(&method))
        .collect();
    let mut used = BTreeSet::new();
    for entry in &entries {
        collect_fields(&entry.message, &mut used);
    }
    let unused = unused_rules(|name| used.contains(name));
    assert!(
        unused.is_empty(),
        "rules for fields that are no more: {unused:?}"
    );
    entries
}

fn entries_of_method(method: &MethodDescriptor) -> Vec<ApiEntry> {
    let name = format!("{}.{}", method.parent_service().name(), method.name());
    if !method.is_client_streaming() {
        return vec![ApiEntry {
            name,
            message: method.input(),
            method: method.clone(),
            oneof_field: None,
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
        ApiEntry {
            name: format!("{name}/{}", field.name()),
            message,
            method: method.clone(),
            oneof_field: Some(field),
        }
    };
    fields.into_iter().map(alternative).collect()
}

/// Returns true if a message names one lock.
#[must_use]
pub fn is_lock(message: &MessageDescriptor) -> bool {
    let has = |name| {
        let field = message.get_field_by_name(name);
        field.is_some_and(|field| field_rule(&field) == FieldRule::Name)
    };
    has("namespace") && has("name")
}

/// Returns the message type of a field that may contain locks.
#[must_use]
pub fn message_type(field: &FieldDescriptor) -> MessageDescriptor {
    let kind = field.kind();
    let message = kind.as_message();
    message.expect("rules go into messages only").clone()
}

fn find_lock_paths(message: &MessageDescriptor, at: &mut Vec<Step>, ways: &mut Vec<LockPath>) {
    assert!(
        at.len() < DEPTH_MAX,
        "{}: deeper and deeper",
        message.name()
    );
    let way = |at: &[Step], enters| LockPath {
        steps: at.to_vec(),
        kind: enters,
    };
    let mut names = 0;
    for field in message.fields() {
        at.push(Step::Field(field.name().to_owned()));
        let rule = field_rule(&field);
        if let FieldRule::Repeated(counts) = rule {
            for &of in counts {
                for index in BTreeSet::from([0, of - 1]) {
                    at.push(Step::Element { index, length: of });
                    find_lock_paths(&message_type(&field), at, ways);
                    at.pop();
                }
            }
        } else if rule.may_contain_locks() {
            find_lock_paths(&message_type(&field), at, ways);
        } else if rule.selects_results() {
            ways.push(way(at, PathKind::Text(rule)));
        }
        names += usize::from(rule == FieldRule::Name);
        at.pop();
    }
    assert_eq!(
        names > 0,
        is_lock(message),
        "{}: half a name",
        message.name()
    );
    if names > 0 {
        ways.push(way(at, PathKind::Lock));
    }
}

fn has_lease_id(message: &MessageDescriptor) -> bool {
    message.fields().any(|field| {
        let rule = field_rule(&field);
        rule == FieldRule::LeaseId
            || rule.may_contain_locks() && has_lease_id(&message_type(&field))
    })
}

fn collect_fields(message: &MessageDescriptor, used: &mut BTreeSet<String>) {
    for field in message.fields() {
        used.insert(short_name(field.full_name()).to_owned());
        if field_rule(&field).may_contain_locks() {
            collect_fields(&message_type(&field), used);
        }
    }
}
