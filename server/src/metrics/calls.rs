//! Metrics of gRPC calls, under the names that common dashboards for gRPC servers use.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

use super::{Counters, Histograms, Metrics, Registrar, buckets, labels::Labels};

/// Names of the gRPC status codes, in numerical order, as in go-grpc-prometheus.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const CANCELLED: usize = 1;
const UNKNOWN: usize = 2;

/// Kind of method, by the sides that may send several messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Unary,
    ClientStream,
    ServerStream,
    BidiStream,
}

/// A method whose calls are counted.
#[derive(Debug, Clone)]
pub struct Method {
    /// Service name, including the package.
    pub service: String,
    /// Method name without the service.
    pub name: String,
    pub kind: Kind,
}

pub(super) struct GrpcFamilies {
    started: Counters,
    handled: Counters,
    handling: Histograms,
}

/// Counters of all methods by request path. Calls of other paths are not counted, because clients
/// can send any path. Cheap to clone.
#[derive(Clone, Default)]
pub struct Calls(Option<Arc<HashMap<String, Arc<MethodCounters>>>>);

struct MethodCounters {
    labels: Labels,
    started: Counter,
    handled: [OnceLock<Counter>; CODES.len()],
    handling: OnceLock<Histogram>,
    counters: Counters,
    histograms: Histograms,
}

/// Recorder of a call in progress. If it is dropped before the end, the call counts as cancelled.
pub struct CallInProgress {
    method: Arc<MethodCounters>,
    started_at: Instant,
    has_ended: bool,
}

impl GrpcFamilies {
    pub(super) fn new(registrar: &mut Registrar<'_>) -> Self {
        let families = Self {
            started: Family::default(),
            handled: Family::default(),
            handling: Family::new_with_constructor(|| Histogram::new(buckets::CALL)),
        };
        let help = "Calls that have started";
        registrar.plain("grpc_server_started", help, &families.started);
        let help = "Calls that have ended, by status code";
        registrar.plain("grpc_server_handled", help, &families.handled);
        let help = "Time from the start of a call to its end, including waits";
        registrar.seconds("grpc_server_handling", help, &families.handling);
        families
    }
}

impl Metrics {
    /// Creates the counters of these methods.
    #[must_use]
    pub fn calls(&self, methods: impl IntoIterator<Item = Method>) -> Calls {
        let Some(inner) = &self.0 else {
            return Calls(None);
        };
        let counters = methods.into_iter().map(|method| {
            let path = format!("/{}/{}", method.service, method.name);
            (path, Arc::new(MethodCounters::new(&inner.grpc, method)))
        });
        Calls(Some(Arc::new(counters.collect())))
    }
}

impl Calls {
    /// Counts the start of a call. Returns `None` if calls of this path are not counted.
    #[must_use]
    pub fn start(&self, path: &str) -> Option<CallInProgress> {
        let method = Arc::clone(self.0.as_ref()?.get(path)?);
        method.started.inc();
        Some(CallInProgress {
            method,
            started_at: Instant::now(),
            has_ended: false,
        })
    }
}

impl CallInProgress {
    /// Records the end of the call with this status code. `None` is an unreadable status.
    pub fn end(&mut self, code: Option<usize>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let code = code.filter(|code| *code < CODES.len()).unwrap_or(UNKNOWN);
            self.method.handled(code).inc();
            let elapsed = self.started_at.elapsed().as_secs_f64();
            self.method.handling().observe(elapsed);
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.end(Some(CANCELLED));
    }
}

impl MethodCounters {
    fn new(families: &GrpcFamilies, method: Method) -> Self {
        let kind = match method.kind {
            Kind::Unary => "unary",
            Kind::ClientStream => "client_stream",
            Kind::ServerStream => "server_stream",
            Kind::BidiStream => "bidi_stream",
        };
        let labels = vec![
            ("grpc_service", method.service),
            ("grpc_method", method.name),
            ("grpc_type", kind.to_owned()),
        ];
        Self {
            started: families.started.get_or_create_owned(&labels),
            handling: OnceLock::new(),
            handled: Default::default(),
            counters: families.handled.clone(),
            histograms: families.handling.clone(),
            labels,
        }
    }

    fn handled(&self, code: usize) -> &Counter {
        self.handled[code].get_or_init(|| {
            let mut labels = self.labels.clone();
            labels.push(("grpc_code", CODES[code].to_owned()));
            self.counters.get_or_create_owned(&labels)
        })
    }

    fn handling(&self) -> &Histogram {
        let create = || self.histograms.get_or_create_owned(&self.labels);
        self.handling.get_or_init(create)
    }
}
