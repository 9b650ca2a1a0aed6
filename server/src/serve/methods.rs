//! Methods of the offered gRPC services, read from their descriptors.

use std::{collections::HashMap, sync::LazyLock};

use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

use crate::metrics::{Kind, Method};

/// All methods, keyed by their request path.
pub(super) static METHODS: LazyLock<HashMap<String, MethodInfo>> = LazyLock::new(methods);

/// A method with its name in metrics and traces.
pub(super) struct MethodInfo {
    pub(super) metrics: Method,
    /// Name of the method's spans. `None` for health checks, which are not traced.
    pub(super) span: Option<&'static str>,
}

impl MethodInfo {
    /// Returns true if a client sends exactly one message in a call.
    pub(super) fn takes_one_message(&self) -> bool {
        matches!(self.metrics.kind, Kind::Unary | Kind::ServerStream)
    }
}

fn methods() -> HashMap<String, MethodInfo> {
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
                    let metrics = Method {
                        service: of.clone(),
                        name: method.name().to_owned(),
                        kind: kind(method),
                    };
                    // Spans need a static name. It is leaked once in the lifetime of the process.
                    let span = is_traced.then(|| &*name.leak());
                    methods.insert(path, MethodInfo { metrics, span });
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
