//! Calls of every gRPC method, under the names that dashboards for gRPC servers know.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

use super::{Counters, Histograms, Metrics, Names, buckets, labels::Labels, seconds};

/// The codes of gRPC, in the order of their numbers, as go-grpc-prometheus calls them.
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

/// Which side of a method sends more than one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Neither.
    Unary,
    /// The client.
    ClientStream,
    /// The server.
    ServerStream,
    /// Both.
    BidiStream,
}

/// A method that is counted.
#[derive(Debug, Clone)]
pub struct Method {
    /// With its package.
    pub service: String,
    /// Without.
    pub name: String,
    /// Who sends more.
    pub kind: Kind,
}

pub(super) struct GrpcFamilies {
    started: Counters,
    handled: Counters,
    handling: Histograms,
}

/// All methods by their paths. Others are not counted: anybody can make up a path. Cheap to clone.
#[derive(Clone, Default)]
pub struct Calls(Option<Arc<HashMap<String, Arc<Counted>>>>);

struct Counted {
    labels: Labels,
    started: Counter,
    handled: [OnceLock<Counter>; CODES.len()],
    handling: OnceLock<Histogram>,
    counters: Counters,
    histograms: Histograms,
}

/// A call under way. One that is dropped was given up by its client.
pub struct Counting {
    method: Arc<Counted>,
    begun: Instant,
    is_over: bool,
}

impl GrpcFamilies {
    pub(super) fn new(names: &mut Names<'_>) -> Self {
        let families = Self {
            started: Family::default(),
            handled: Family::default(),
            handling: Family::new_with_constructor(|| Histogram::new(buckets::CALL)),
        };
        let about = "Calls that have begun";
        names.plain("grpc_server_started", about, families.started.clone());
        let about = "Calls that have ended, by their status";
        names.plain("grpc_server_handled", about, families.handled.clone());
        let about = "Time from a call to its end, whatever it waits for";
        names.seconds("grpc_server_handling", about, families.handling.clone());
        families
    }
}

impl Metrics {
    /// Counts calls of these methods.
    #[must_use]
    pub fn calls(&self, methods: impl IntoIterator<Item = Method>) -> Calls {
        let Some(all) = &self.0 else {
            return Calls(None);
        };
        let counted = methods.into_iter().map(|method| {
            let path = format!("/{}/{}", method.service, method.name);
            (path, Arc::new(Counted::new(&all.grpc, method)))
        });
        Calls(Some(Arc::new(counted.collect())))
    }
}

impl Calls {
    /// A call of that path begins.
    #[must_use]
    pub fn begin(&self, path: &str) -> Option<Counting> {
        let method = Arc::clone(self.0.as_ref()?.get(path)?);
        method.started.inc();
        Some(Counting {
            method,
            begun: Instant::now(),
            is_over: false,
        })
    }
}

impl Counting {
    /// It ends with this status, a number; `None`: with none that can be read.
    pub fn end(&mut self, code: Option<usize>) {
        if !std::mem::replace(&mut self.is_over, true) {
            let code = code.filter(|code| *code < CODES.len()).unwrap_or(UNKNOWN);
            self.method.handled(code).inc();
            self.method
                .handling()
                .observe(seconds(self.begun.elapsed()));
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end(Some(CANCELLED));
    }
}

impl Counted {
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
        let make = || self.histograms.get_or_create_owned(&self.labels);
        self.handling.get_or_init(make)
    }
}
