//! The methods of the services that a broker offers, read from their descriptions.

use std::{collections::HashMap, sync::LazyLock};

use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

use crate::metrics::{Kind, Method};

/// All methods by the paths of their calls.
pub(super) static METHODS: LazyLock<HashMap<String, Described>> = LazyLock::new(methods);

/// A method, as it is counted and traced.
pub(super) struct Described {
    pub(super) counted: Method,
    /// The name of its spans. Health checks have none.
    pub(super) span: Option<&'static str>,
}

impl Described {
    /// Returns whether a call has exactly one message of the client.
    pub(super) fn takes_one_message(&self) -> bool {
        matches!(self.counted.kind, Kind::Unary | Kind::ServerStream)
    }
}

fn methods() -> HashMap<String, Described> {
    let health = tonic_health::pb::FILE_DESCRIPTOR_SET;
    let mut methods = HashMap::new();
    for (set, is_traced) in [(FILE_DESCRIPTOR_SET, true), (health, false)] {
        let set = FileDescriptorSet::decode(set).unwrap_or_default();
        for file in &set.file {
            for service in &file.service {
                let of = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let name = format!("{of}/{}", method.name());
                    let path = format!("/{name}");
                    let counted = Method {
                        service: of.clone(),
                        name: method.name().to_owned(),
                        kind: kind(method),
                    };
                    // Spans keep the name; it is made once in the life of the process.
                    let span = is_traced.then(|| &*name.leak());
                    methods.insert(path, Described { counted, span });
                }
            }
        }
    }
    methods
}

fn kind(method: &MethodDescriptorProto) -> Kind {
    match (method.client_streaming(), method.server_streaming()) {
        (false, false) => Kind::Unary,
        (true, false) => Kind::ClientStream,
        (false, true) => Kind::ServerStream,
        (true, true) => Kind::BidiStream,
    }
}
