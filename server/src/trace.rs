//! Spans of calls, for OpenTelemetry. While tracing is off nothing here makes anything, and a call costs nothing more.
//!
//! The span of a call is passed on in two ways: a future that runs in [`Traced::run`] finds it with
//! [`Traced::current`], and so does the log; what becomes of the call in another task takes it along.

mod sampling;
mod sender;
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

/// The longest that a stop waits for the last spans to be taken.
const FLUSH_MOST: Duration = Duration::from_secs(1);

/// What makes spans, if anything does. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tracing(Option<Arc<On>>);

#[derive(Debug)]
struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Of the calls whose callers have not decided.
    share: f64,
}

/// The span of what is being done, if it has one. Clones are the same span; it ends with
/// [`Traced::end`], or with the last of them.
#[derive(Debug, Clone, Default)]
pub struct Traced(Option<Context>);

/// The recorded span that something goes back to, once that is over.
#[derive(Debug, Clone)]
pub struct Origin {
    tracing: Tracing,
    span: SpanContext,
    /// Whether its last renewal failed: that is told once.
    is_failing: bool,
}

/// Where a call was made: the span, and what the tracing systems of callers say of it.
#[derive(Debug)]
pub struct Caller {
    parent: TraceParent,
    state: TraceState,
}

impl Caller {
    /// `state` is the W3C header `tracestate`.
    pub fn new(parent: TraceParent, state: Option<&str>) -> Self {
        let state = state.and_then(|state| state.parse().ok());
        let state = state.unwrap_or_default();
        Self { parent, state }
    }

    fn context(self) -> SpanContext {
        context_of(self.parent, self.state)
    }
}

impl Tracing {
    /// Begins, unless it is off. In a runtime, which must live as long.
    ///
    /// # Errors
    /// What is wrong with an address, in a sentence.
    pub fn start(settings: &TracingSettings) -> Result<Self, String> {
        let Some(provider) = settings.provider()? else {
            return Ok(Self::default());
        };
        let on = On {
            tracer: settings::tracer(&provider),
            provider,
            share: settings.sample_ratio,
        };
        Ok(Self(Some(Arc::new(on))))
    }

    /// Whether there may be spans at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A call that this broker serves. Of those whose callers have not decided, a share is drawn here, before
    /// anything is made for them: the others cost a random number.
    pub fn serve(&self, name: impl Into<Cow<'static, str>>, caller: Option<Caller>) -> Traced {
        let Some(on) = &self.0 else {
            return Traced::default();
        };
        if caller.is_none() && !rand::thread_rng().gen_bool(on.share) {
            return Traced::default();
        }
        let root = Context::new().with_value(self.clone());
        let parent = match caller {
            Some(caller) => root.with_remote_span_context(caller.context()),
            None => root,
        };
        on.begin(SpanBuilder::from_name(name), SpanKind::Server, &parent)
    }

    /// Something that came of a call that is over: a trace of its own, with a link back.
    pub fn event(&self, name: &'static str, of: TraceParent) -> Traced {
        self.event_of(name, context_of(of, TraceState::default()))
    }

    fn event_of(&self, name: &'static str, back: SpanContext) -> Traced {
        let Some(on) = &self.0 else {
            return Traced::default();
        };
        let root = Context::new().with_value(self.clone());
        let builder = SpanBuilder::from_name(name).with_links(vec![Link::with_context(back)]);
        on.begin(builder, SpanKind::Internal, &root)
    }

    /// How much of the time for a stop is kept for the last spans.
    pub fn reserve(&self, stop: Duration) -> Duration {
        match self.is_on() {
            true => FLUSH_MOST.min(stop / 10),
            false => Duration::ZERO,
        }
    }

    /// The rest of that time.
    pub fn spare(&self, stop: Duration) -> Duration {
        stop.saturating_sub(self.reserve(stop))
    }

    /// Sends what there is, and ends.
    pub async fn flush(&self, within: Duration) {
        let Some(on) = self.0.clone() else {
            return;
        };
        // It blocks until the last batch has gone, or the time is over.
        let sent = tokio::task::spawn_blocking(move || on.provider.shutdown_with_timeout(within));
        if let Ok(Err(error)) = sent.await {
            tracing::debug!(%error, "the last spans could not be sent");
        }
    }
}

impl On {
    fn begin(&self, builder: SpanBuilder, kind: SpanKind, parent: &Context) -> Traced {
        let builder = builder.with_kind(kind);
        let span = self.tracer.build_with_context(builder, parent);
        Traced(Some(parent.with_span(span)))
    }
}

impl Traced {
    /// That of what this thread does now.
    pub fn current() -> Self {
        Self(Context::map_current(|context| {
            context.get::<Tracing>().map(|_| context.clone())
        }))
    }

    /// Whether anybody will see it.
    pub fn is_recording(&self) -> bool {
        self.span().is_some()
    }

    /// Runs a future as a part of it.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        match self.0 {
            Some(context) => Either::Left(future.with_context(context)),
            None => Either::Right(future),
        }
    }

    /// A part of it, in the broker.
    #[must_use]
    pub fn inner(&self, name: &'static str) -> Self {
        self.child(SpanBuilder::from_name(name), SpanKind::Internal)
    }

    /// A part of it, for which another server is asked.
    #[must_use]
    pub fn outer(&self, name: String) -> Self {
        self.child(SpanBuilder::from_name(name), SpanKind::Client)
    }

    fn child(&self, builder: SpanBuilder, kind: SpanKind) -> Self {
        let context = self.0.as_ref().filter(|_| self.is_recording());
        let child = context.and_then(|context| {
            let on = context.get::<Tracing>()?.0.as_ref()?;
            Some(on.begin(builder, kind, context))
        });
        child.unwrap_or_default()
    }

    /// Says something of it, which nobody may be able to do anything with but to look at it.
    pub fn note(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.span() {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// The same of several texts.
    pub fn note_all(&self, key: &'static str, values: Vec<String>) {
        let values = values.into_iter().map(Into::into);
        self.note(
            key,
            Value::Array(values.collect::<Vec<StringValue>>().into()),
        );
    }

    /// It went wrong.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        if let Some(span) = self.span() {
            span.set_status(Status::error(why));
        }
    }

    /// Leads to another one.
    pub fn link(&self, to: TraceParent) {
        if let Some(span) = self.span() {
            span.add_link(context_of(to, TraceState::default()), Vec::new());
        }
    }

    /// It is over.
    pub fn end(&self) {
        if let Some(span) = self.span() {
            span.end();
        }
    }

    /// What it is called in records, where it is recorded.
    pub fn parent(&self) -> Option<TraceParent> {
        let span = self.span()?;
        let context = span.span_context();
        let trace_id = u128::from_be_bytes(context.trace_id().to_bytes());
        let span_id = u64::from_be_bytes(context.span_id().to_bytes());
        TraceParent::new(trace_id, span_id, context.is_sampled())
    }

    /// What it is for those that come after it, where it is recorded.
    pub fn origin(&self) -> Option<Box<Origin>> {
        let span = self.span()?.span_context().clone();
        let tracing = self.0.as_ref()?.get::<Tracing>()?.clone();
        Some(Box::new(Origin {
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

impl Origin {
    /// Something that came of it, as [`Tracing::event`].
    pub fn event(&self, name: &'static str) -> Traced {
        self.tracing.event_of(name, self.span.clone())
    }

    /// Whether this failure is the first since the last success.
    pub fn fails(&mut self) -> bool {
        !std::mem::replace(&mut self.is_failing, true)
    }

    /// A renewal succeeded.
    pub fn succeeds(&mut self) {
        self.is_failing = false;
    }
}

/// The trace and the span of what this thread does now, for a line of the log.
pub fn ids() -> Option<(TraceId, SpanId)> {
    Context::map_current(|context| {
        let span = context.span();
        let context = span.span_context();
        let ids = (context.trace_id(), context.span_id());
        context.is_valid().then_some(ids)
    })
}

/// What is logged until the guard is dropped is about a call of that trace.
pub fn of_call(parent: Option<TraceParent>) -> Option<ContextGuard> {
    let span = context_of(parent?, TraceState::default());
    Some(Context::new().with_remote_span_context(span).attach())
}

fn context_of(parent: TraceParent, state: TraceState) -> SpanContext {
    let flags = TraceFlags::default().with_sampled(parent.is_sampled);
    let trace_id = TraceId::from_bytes(parent.trace_id.to_be_bytes());
    let span_id = SpanId::from_bytes(parent.span_id.to_be_bytes());
    SpanContext::new(trace_id, span_id, flags, true, state)
}
