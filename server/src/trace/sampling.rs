//! Sampling of spans, decided before any data of a span is recorded.

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceContextExt as _, TraceId},
};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample};

/// Sampler that follows the decision of the caller or of a linked span. Spans with neither were
/// sampled before they were started.
#[derive(Debug, Clone)]
pub(super) struct Sampling;

impl ShouldSample for Sampling {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        _trace_id: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let span = parent.map(|parent| parent.span().span_context().clone());
        let span = span.filter(|span| span.is_valid());
        let is_sampled = match &span {
            Some(span) => span.is_sampled(),
            None => links.is_empty() || links.iter().any(|link| link.span_context.is_sampled()),
        };
        SamplingResult {
            decision: match is_sampled {
                true => SamplingDecision::RecordAndSample,
                false => SamplingDecision::Drop,
            },
            attributes: Vec::new(),
            trace_state: span.map_or_else(Default::default, |span| span.trace_state().clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceState};

    use super::*;

    fn span(is_sampled: bool) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(is_sampled);
        let (trace, span) = (TraceId::from(7), SpanId::from(9));
        SpanContext::new(trace, span, flags, true, TraceState::default())
    }

    fn is_sampled(parent: Option<bool>, link: Option<bool>) -> bool {
        let root = Context::new();
        let parent = parent.map_or(root.clone(), |is_sampled| {
            root.with_remote_span_context(span(is_sampled))
        });
        let links: Vec<_> = link
            .map(|is_sampled| Link::with_context(span(is_sampled)))
            .into_iter()
            .collect();
        let kind = SpanKind::Server;
        let trace = TraceId::from(u128::MAX);
        let result = Sampling.should_sample(Some(&parent), trace, "a", &kind, &[], &links);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn the_parent_decides_and_then_the_link() {
        for (parent, link, expected) in [
            (Some(true), None, true),
            (Some(false), None, false),
            (Some(false), Some(true), false),
            (None, Some(true), true),
            (None, Some(false), false),
            (None, None, true),
        ] {
            let case = format!("{parent:?} {link:?}");
            assert_eq!(is_sampled(parent, link), expected, "{case}");
        }
    }
}
