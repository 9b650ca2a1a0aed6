//! The trace of a caller goes on in the broker.

use leasehold::Client;
use leasehold_tests::{
    broker_process::BrokerOptions, deployment::Deployment, redis_server::RedisServer,
};
use opentelemetry::{
    Context, SpanId, TraceFlags, TraceId,
    propagation::{Extractor, Injector, TextMapPropagator, text_map_propagator::FieldIter},
    trace::{FutureExt as _, SpanContext, TraceContextExt as _, TraceState},
};

/// A program's propagator, as it stands in the W3C recommendation.
#[derive(Debug)]
struct TraceContext;

impl TextMapPropagator for TraceContext {
    fn inject_context(&self, context: &Context, injector: &mut dyn Injector) {
        let span = context.span().span_context().clone();
        if span.is_valid() {
            injector.set("traceparent", name(&span));
        }
    }

    fn extract_with_context(&self, context: &Context, _: &dyn Extractor) -> Context {
        context.clone()
    }

    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(&[])
    }
}

fn name(span: &SpanContext) -> String {
    format!("00-{}-{}-01", span.trace_id(), span.span_id())
}

#[tokio::test]
async fn each_call_names_the_trace_of_its_caller() {
    opentelemetry::global::set_text_map_propagator(TraceContext);
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::on(redis.url());
    let filter = ("LEASEHOLD__LOG__FILTER".to_owned(), "debug".to_owned());
    options.env.push(filter);
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let broker = &deployment.brokers[0];
    let client = Client::connect(&format!("http://{}", broker.addr())).await;
    let client = client.expect("it runs");
    for trace in 1..=2 {
        let span = SpanContext::new(
            TraceId::from(rand::random::<u128>()),
            SpanId::from(rand::random::<u64>()),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        );
        let call = Context::new().with_remote_span_context(span.clone());
        let lock = client.lock(format!("lock-{trace}"));
        let taken = lock.try_acquire().with_context(call).await;
        assert!(taken.is_ok(), "{taken:?}");
        assert!(broker.log().contains(&name(&span)), "{}", broker.log());
    }
    let untraced = client.lock("lock-3").try_acquire().await;
    assert!(untraced.is_ok(), "{untraced:?}");
    let traced = broker.log().matches("traceparent=").count();
    assert_eq!(traced, 2, "{}", broker.log());
}
