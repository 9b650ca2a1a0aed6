//! Which spans are recorded: decided before anything is noted of them.

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceContextExt as _, TraceId},
};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Follows the caller, or what it is linked to; decides for itself where there is neither.
#[derive(Debug, Clone)]
pub(super) struct Sampling {
    pub(super) alone: Sampler,
}

impl ShouldSample for Sampling {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let span = parent.map(|parent| parent.span().span_context().clone());
        let span = span.filter(|span| span.is_valid());
        let is_sampled = match &span {
            Some(span) => span.is_sampled(),
            None if links.iter().any(|link| link.span_context.is_sampled()) => true,
            None => {
                let sampler = &self.alone;
                return sampler.should_sample(parent, trace_id, name, kind, attributes, links);
            }
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

    fn is_sampled(ratio: f64, parent: Option<bool>, link: Option<bool>) -> bool {
        let sampling = Sampling {
            alone: Sampler::TraceIdRatioBased(ratio),
        };
        let root = Context::new();
        let parent = parent.map_or(root.clone(), |is| root.with_remote_span_context(span(is)));
        let links: Vec<_> = link
            .map(|is| Link::with_context(span(is)))
            .into_iter()
            .collect();
        let kind = SpanKind::Server;
        let trace = TraceId::from(u128::MAX);
        let result = sampling.should_sample(Some(&parent), trace, "a", &kind, &[], &links);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn callers_decide_then_what_it_came_of_then_the_share() {
        for (ratio, parent, link, expected) in [
            (0.0, Some(true), None, true),
            (1.0, Some(false), None, false),
            (1.0, Some(false), Some(true), false),
            (0.0, None, Some(true), true),
            (0.0, None, Some(false), false),
            (0.0, None, None, false),
            (1.0, None, None, true),
        ] {
            let what = format!("{ratio} {parent:?} {link:?}");
            assert_eq!(is_sampled(ratio, parent, link), expected, "{what}");
        }
    }
}
