//! A collector of spans: the service that OTLP defines, made from OpenTelemetry's own definitions, on a real socket.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use data_encoding::HEXLOWER;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};
use tokio_stream::{StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, transport::Server};

use crate::broker_process::BrokerOptions;

/// It comes sooner.
const SOON: Duration = Duration::from_secs(20);

/// A collector, and what came.
#[derive(Debug)]
pub struct Collector {
    addr: SocketAddr,
    seen: watch::Receiver<Vec<Seen>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// A span as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Whose it is.
    pub resource: BTreeMap<String, String>,
    /// What it is called.
    pub name: String,
    /// Its trace, in hexadecimal digits.
    pub trace: String,
    /// Itself.
    pub id: String,
    /// What it is a part of; empty: of nothing.
    pub parent: String,
    /// What the tracing systems of callers say.
    pub state: String,
    /// What it tells.
    pub attributes: BTreeMap<String, String>,
    /// Where it leads: trace and span.
    pub links: Vec<(String, String)>,
    /// Whether it is that of a server.
    pub is_server: bool,
    /// Whether it says that something went wrong.
    pub is_error: bool,
    /// What it says of that.
    pub why: String,
    /// When it began, in nanoseconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

struct Service(watch::Sender<Vec<Seen>>);

impl Collector {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (sender, seen) = watch::channel(Vec::new());
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let incoming = TcpListenerStream::new(listener).map(move |connection| {
            count.fetch_add(1, Ordering::Relaxed);
            connection
        });
        let service = TraceServiceServer::new(Service(sender));
        let server = Server::builder().add_service(service);
        let task = tokio::spawn(async move {
            let _ = server.serve_with_incoming(incoming).await;
        });
        Self {
            addr,
            seen,
            connections,
            task,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A broker on this store that sends it this share of its spans, soon.
    #[must_use]
    pub fn options(&self, store: String, share: &str) -> BrokerOptions {
        let mut options = BrokerOptions::on(store);
        let env = [
            ("LEASEHOLD__TRACING__OTLP_ENDPOINT", self.url()),
            ("LEASEHOLD__TRACING__SAMPLE_RATIO", share.to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value));
        options.env.extend(env);
        options
    }

    /// How many connections there were.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// What has come.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits for a span.
    pub async fn span(&self, what: &str, is_it: impl Fn(&Seen) -> bool) -> Seen {
        let mut spans = self.spans(what, 1, is_it).await;
        spans.remove(0)
    }

    /// Waits for so many spans at least.
    pub async fn spans(
        &self,
        what: &str,
        least: usize,
        is_it: impl Fn(&Seen) -> bool,
    ) -> Vec<Seen> {
        let mut seen = self.seen.clone();
        let found = |all: &[Seen]| {
            let found = all.iter().filter(|span| is_it(span));
            found.cloned().collect::<Vec<_>>()
        };
        let enough = seen.wait_for(|all| found(all).len() >= least);
        match timeout(SOON, enough).await {
            Ok(all) => found(&all.expect("the collector lives")),
            Err(_) => panic!("no span of {what}: {:#?}", self.seen()),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    /// What it tells under this key; empty: nothing.
    #[must_use]
    pub fn tells(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// Trace and span.
    #[must_use]
    pub fn ids(&self) -> (String, String) {
        (self.trace.clone(), self.id.clone())
    }

    /// How long it was.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.end - self.start)
    }

    /// Whether it is a part of that one.
    #[must_use]
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.trace == other.trace && self.parent == other.id
    }

    /// Whether it was over by the time that one was, and began no sooner.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    fn of(span: Span, resource: &BTreeMap<String, String>) -> Self {
        let is_server = span.kind() == SpanKind::Server;
        let hex = |bytes: &[u8]| HEXLOWER.encode(bytes);
        let links = span.links.iter();
        let links = links.map(|link| (hex(&link.trace_id), hex(&link.span_id)));
        let status = span.status.unwrap_or_default();
        Self {
            resource: resource.clone(),
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            links: links.collect(),
            is_server,
            is_error: status.code() == StatusCode::Error,
            why: status.message,
            name: span.name,
            state: span.trace_state,
            attributes: texts(span.attributes),
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
        }
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let texts = attributes.into_iter().map(|attribute| {
        let text = attribute.value.map_or_else(String::new, text);
        (attribute.key, text)
    });
    texts.collect()
}

fn text(value: AnyValue) -> String {
    match value.value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::ArrayValue(values)) => {
            let texts: Vec<_> = values.values.into_iter().map(text).collect();
            texts.join(" ")
        }
        other => format!("{other:?}"),
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut new = Vec::new();
        for of_one in request.into_inner().resource_spans {
            let resource = texts(of_one.resource.unwrap_or_default().attributes);
            let spans = of_one.scope_spans.into_iter().flat_map(|scope| scope.spans);
            new.extend(spans.map(|span| Seen::of(span, &resource)));
        }
        self.0.send_modify(|seen| seen.extend(new));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
