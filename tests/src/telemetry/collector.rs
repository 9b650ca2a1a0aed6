//! A trace collector: the OTLP trace service, from OpenTelemetry's own definitions, on a real
//! socket.

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

use crate::broker::process::BrokerOptions;

/// Maximum time to wait for a span.
const SPAN_TIMEOUT: Duration = Duration::from_secs(20);

/// A collector and the spans that it received.
#[derive(Debug)]
pub struct Collector {
    addr: SocketAddr,
    received: watch::Receiver<Vec<ReceivedSpan>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// A received span.
#[derive(Debug, Clone)]
pub struct ReceivedSpan {
    /// Attributes of the resource.
    pub resource: BTreeMap<String, String>,
    pub name: String,
    /// Trace id, in hexadecimal digits.
    pub trace: String,
    /// Span id, in hexadecimal digits.
    pub id: String,
    /// Id of the parent span, or empty.
    pub parent: String,
    /// The trace state of W3C trace context.
    pub trace_state: String,
    pub attributes: BTreeMap<String, String>,
    /// Trace id and span id of each link.
    pub links: Vec<(String, String)>,
    /// True if the span kind is server.
    pub is_server: bool,
    /// True if the status is an error.
    pub is_error: bool,
    /// Message of the status.
    pub status_message: String,
    /// Start time, in nanoseconds since 1970.
    pub start: u64,
    /// End time, in nanoseconds since 1970.
    pub end: u64,
}

struct CollectorService(watch::Sender<Vec<ReceivedSpan>>);

impl Collector {
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
        let service = TraceServiceServer::new(CollectorService(sender));
        let server = Server::builder().add_service(service);
        let task = tokio::spawn(async move {
            let _ = server.serve_with_incoming(incoming).await;
        });
        Self {
            addr,
            received: seen,
            connections,
            task,
        }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns options of a broker on this store that exports this share of its spans with a short
    /// delay.
    #[must_use]
    pub fn options(&self, store: String, share: &str) -> BrokerOptions {
        let mut options = BrokerOptions::for_store(store);
        let env = [
            ("LEASEHOLD__TRACING__OTLP_ENDPOINT", self.url()),
            ("LEASEHOLD__TRACING__SAMPLE_RATIO", share.to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value));
        options.env.extend(env);
        options
    }

    /// Returns the number of connections since the start.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns all received spans.
    #[must_use]
    pub fn received(&self) -> Vec<ReceivedSpan> {
        self.received.borrow().clone()
    }

    /// Waits for a span.
    pub async fn span(&self, what: &str, is_it: impl Fn(&ReceivedSpan) -> bool) -> ReceivedSpan {
        let mut spans = self.spans(what, 1, is_it).await;
        spans.remove(0)
    }

    /// Waits for at least `least` spans.
    pub async fn spans(
        &self,
        what: &str,
        minimum: usize,
        is_it: impl Fn(&ReceivedSpan) -> bool,
    ) -> Vec<ReceivedSpan> {
        let mut seen = self.received.clone();
        let found = |all: &[ReceivedSpan]| {
            let found = all.iter().filter(|span| is_it(span));
            found.cloned().collect::<Vec<_>>()
        };
        let enough = seen.wait_for(|all| found(all).len() >= minimum);
        match timeout(SPAN_TIMEOUT, enough).await {
            Ok(all) => found(&all.expect("the collector lives")),
            Err(_) => panic!("no span of {what}: {:#?}", self.received()),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ReceivedSpan {
    /// Returns the value of an attribute, or an empty text.
    #[must_use]
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// Returns the trace id and the span id.
    #[must_use]
    pub fn ids(&self) -> (String, String) {
        (self.trace.clone(), self.id.clone())
    }

    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.end - self.start)
    }

    /// Returns true if `other` is the parent of the span.
    #[must_use]
    pub fn is_child_of(&self, other: &Self) -> bool {
        self.trace == other.trace && self.parent == other.id
    }

    /// Returns true if the span is within the time of `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    fn from_span(span: Span, resource: &BTreeMap<String, String>) -> Self {
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
            status_message: status.message,
            name: span.name,
            trace_state: span.trace_state,
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
impl TraceService for CollectorService {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut new = Vec::new();
        for of_one in request.into_inner().resource_spans {
            let resource = texts(of_one.resource.unwrap_or_default().attributes);
            let spans = of_one.scope_spans.into_iter().flat_map(|scope| scope.spans);
            new.extend(spans.map(|span| ReceivedSpan::from_span(span, &resource)));
        }
        self.0.send_modify(|seen| seen.extend(new));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
