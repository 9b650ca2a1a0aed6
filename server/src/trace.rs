//! OpenTelemetry spans of calls. While tracing is off, nothing is allocated and calls have no
//! additional cost.
//!
//! A future that runs in [`Span::run`] finds the span of its call with [`Span::current`], and
//! so does the log. Work of the call in another task has to carry the span along.

mod exporter;
mod sampling;
mod settings;

use std::{borrow::Cow, future::Future, sync::Arc, time::Duration};

use futures::future::Either;
use opentelemetry::{
    Context, ContextGuard, KeyValue, StringValue, Value,
    context::FutureExt as _,
    trace::{
        Link, SpanBuilder, SpanContext, SpanId, SpanKind, SpanRef, Status, TraceContextExt as _,
        TraceFlags, TraceId, TraceState, Tracer as _,
    },
};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use rand::Rng as _;

pub use self::settings::TracingSettings;
use crate::lock::TraceParent;

/// Maximum time that a shutdown waits for the export of the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Creates spans, if tracing is on. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tracing(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Sampling ratio of calls without a parent decision.
    sampling_ratio: f64,
}

/// Span of the current work, if it has one. Clones share the span, which ends with [`Span::end`]
/// or when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct Span(Option<Context>);

/// Recorded span of an operation that has ended. Spans of later events are linked to it.
#[derive(Debug, Clone)]
pub struct LinkedSpan {
    tracing: Tracing,
    span: SpanContext,
    /// True if the last renewal failed. Only the first failure is reported.
    is_failing: bool,
}

/// Trace context of a caller: its span, and the state of its tracing systems.
#[derive(Debug)]
pub struct RemoteParent(SpanContext);

impl RemoteParent {
    /// Creates the trace context of a caller. `state` is the W3C header `tracestate`.
    pub fn new(parent: TraceParent, state: Option<&str>) -> Self {
        let state = state.and_then(|state| state.parse().ok());
        Self(context_of(parent, state.unwrap_or_default()))
    }
}

impl Tracing {
    /// Starts tracing, unless it is off. Must be called in a runtime that outlives the result.
    ///
    /// # Errors
    /// If the collector's address is not usable.
    pub fn start(settings: &TracingSettings) -> Result<Self, String> {
        let Some(provider) = settings.provider()? else {
            return Ok(Self::default());
        };
        let inner = Inner {
            tracer: settings::tracer(&provider),
            provider,
            sampling_ratio: settings.sample_ratio,
        };
        Ok(Self(Some(Arc::new(inner))))
    }

    /// Returns true if tracing is on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span of a call that this broker serves. Calls without a parent decision are
    /// sampled here (head-based sampling): an unsampled call costs a random number and allocates
    /// nothing.
    pub fn start_server_span(
        &self,
        name: impl Into<Cow<'static, str>>,
        caller: Option<RemoteParent>,
    ) -> Span {
        let Some(inner) = &self.0 else {
            return Span::default();
        };
        if caller.is_none() && !rand::thread_rng().gen_bool(inner.sampling_ratio) {
            return Span::default();
        }
        let root = Context::new().with_value(self.clone());
        let parent = match caller {
            Some(caller) => root.with_remote_span_context(caller.0),
            None => root,
        };
        inner.begin(SpanBuilder::from_name(name), SpanKind::Server, &parent)
    }

    /// Starts a trace for an event that follows from a call which has ended, linked to that call's
    /// span.
    pub fn event(&self, name: &'static str, parent: TraceParent) -> Span {
        self.event_of(name, context_of(parent, TraceState::default()))
    }

    fn event_of(&self, name: &'static str, origin: SpanContext) -> Span {
        let Some(inner) = &self.0 else {
            return Span::default();
        };
        let root = Context::new().with_value(self.clone());
        let builder = SpanBuilder::from_name(name).with_links(vec![Link::with_context(origin)]);
        inner.begin(builder, SpanKind::Internal, &root)
    }

    /// Returns the part of a shutdown time that is reserved for the export of the last spans.
    pub fn flush_budget(&self, stop: Duration) -> Duration {
        match self.is_on() {
            true => FLUSH_MAX.min(stop / 10),
            false => Duration::ZERO,
        }
    }

    /// Returns the rest of the shutdown time.
    pub fn remaining_budget(&self, stop: Duration) -> Duration {
        stop.saturating_sub(self.flush_budget(stop))
    }

    /// Exports the remaining spans and stops tracing.
    pub async fn flush(&self, timeout: Duration) {
        let Some(inner) = self.0.clone() else {
            return;
        };
        // The provider blocks until the last batch was sent or the time has passed.
        let result =
            tokio::task::spawn_blocking(move || inner.provider.shutdown_with_timeout(timeout));
        if let Ok(Err(error)) = result.await {
            tracing::debug!(%error, "trace export failed at shutdown, spans dropped");
        }
    }
}

impl Inner {
    fn begin(&self, builder: SpanBuilder, kind: SpanKind, parent: &Context) -> Span {
        let builder = builder.with_kind(kind);
        let span = self.tracer.build_with_context(builder, parent);
        Span(Some(parent.with_span(span)))
    }
}

impl Span {
    /// Returns the span of this thread's current context.
    pub fn current() -> Self {
        Self(Context::map_current(|context| {
            context.get::<Tracing>().map(|_| context.clone())
        }))
    }

    /// Returns true if the span is recorded.
    pub fn is_recording(&self) -> bool {
        self.span().is_some()
    }

    /// Runs a future within the span.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        match self.0 {
            Some(context) => Either::Left(future.with_context(context)),
            None => Either::Right(future),
        }
    }

    /// Starts a child span for work in the broker.
    #[must_use]
    pub fn child_of_current(&self, name: &'static str) -> Self {
        self.child(SpanBuilder::from_name(name), SpanKind::Internal)
    }

    /// Starts a child span for a request to another server.
    #[must_use]
    pub fn client_child(&self, name: String) -> Self {
        self.child(SpanBuilder::from_name(name), SpanKind::Client)
    }

    fn child(&self, builder: SpanBuilder, kind: SpanKind) -> Self {
        let context = self.0.as_ref().filter(|_| self.is_recording());
        let child = context.and_then(|context| {
            let inner = context.get::<Tracing>()?.0.as_ref()?;
            Some(inner.begin(builder, kind, context))
        });
        child.unwrap_or_default()
    }

    /// Sets an attribute of the span. Values must be for display only: a reader must not be able to
    /// use them, for example as a credential.
    pub fn set_attribute(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.span() {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Sets an attribute with several values.
    pub fn set_attributes(&self, key: &'static str, values: Vec<String>) {
        let values = values.into_iter().map(Into::into);
        self.set_attribute(
            key,
            Value::Array(values.collect::<Vec<StringValue>>().into()),
        );
    }

    /// Sets the status of the span to an error.
    pub fn set_error(&self, description: impl Into<Cow<'static, str>>) {
        if let Some(span) = self.span() {
            span.set_status(Status::error(description));
        }
    }

    /// Links the span to another one.
    pub fn link(&self, parent: TraceParent) {
        if let Some(span) = self.span() {
            span.add_link(context_of(parent, TraceState::default()), Vec::new());
        }
    }

    pub fn end(&self) {
        if let Some(span) = self.span() {
            span.end();
        }
    }

    /// Returns the span's trace context, if the span is recorded.
    pub fn parent(&self) -> Option<TraceParent> {
        let span = self.span()?;
        let context = span.span_context();
        let trace_id = u128::from_be_bytes(context.trace_id().to_bytes());
        let span_id = u64::from_be_bytes(context.span_id().to_bytes());
        TraceParent::new(trace_id, span_id, context.is_sampled())
    }

    /// Returns the span for links from later events, if it is recorded.
    pub fn origin(&self) -> Option<Box<LinkedSpan>> {
        let span = self.span()?.span_context().clone();
        let tracing = self.0.as_ref()?.get::<Tracing>()?.clone();
        Some(Box::new(LinkedSpan {
            tracing,
            span,
            is_failing: false,
        }))
    }

    fn span(&self) -> Option<SpanRef<'_>> {
        let span = self.0.as_ref()?.span();
        span.is_recording().then_some(span)
    }
}

impl LinkedSpan {
    /// Starts a trace for an event that follows from the operation, as [`Tracing::event`] does.
    pub fn event(&self, name: &'static str) -> Span {
        self.tracing.event_of(name, self.span.clone())
    }

    /// Records a failed renewal. Returns true if it is the first one since the last success.
    pub fn first_failure(&mut self) -> bool {
        !std::mem::replace(&mut self.is_failing, true)
    }

    /// Records a successful renewal.
    pub fn reset_failure(&mut self) {
        self.is_failing = false;
    }
}

/// Returns the ids of the current trace and span of this thread, for a log line.
pub fn current_ids() -> Option<(TraceId, SpanId)> {
    Context::map_current(|context| {
        let span = context.span();
        let context = span.span_context();
        let ids = (context.trace_id(), context.span_id());
        context.is_valid().then_some(ids)
    })
}

/// Adds the ids of this trace to the log lines of the thread, until the guard is dropped.
pub fn enter_parent(parent: Option<TraceParent>) -> Option<ContextGuard> {
    let span = context_of(parent?, TraceState::default());
    Some(Context::new().with_remote_span_context(span).attach())
}

fn context_of(parent: TraceParent, state: TraceState) -> SpanContext {
    let flags = TraceFlags::default().with_sampled(parent.is_sampled);
    let trace_id = TraceId::from_bytes(parent.trace_id.to_be_bytes());
    let span_id = SpanId::from_bytes(parent.span_id.to_be_bytes());
    SpanContext::new(trace_id, span_id, flags, true, state)
}
