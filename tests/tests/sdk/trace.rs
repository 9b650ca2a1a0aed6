//! OpenTelemetry of the Rust client: the trace context of calls, and metrics of waits and holds.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{Client, fake};
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    redis::server::RedisServer,
};
use opentelemetry::{
    Context, global,
    trace::{FutureExt as _, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    metrics::{
        InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
        data::{AggregatedMetrics, MetricData},
    },
    propagation::TraceContextPropagator,
    trace::SdkTracerProvider,
};

#[tokio::test]
async fn each_call_names_the_trace_of_its_caller() {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    let filter = ("LEASEHOLD__LOG__FILTER".to_owned(), "debug".to_owned());
    options.env.push(filter);
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let broker = &deployment.brokers[0];
    let client = Client::connect(&format!("http://{}", broker.addr())).await;
    let client = client.expect("it runs");
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    for trace in 1..=2 {
        let call = Context::new().with_span(tracer.start("a call"));
        let span = call.span().span_context().clone();
        let lock = client.lock(format!("lock-{trace}"));
        let taken = lock.try_acquire().with_context(call).await;
        assert!(taken.is_ok(), "{taken:?}");
        let name = format!("00-{}-{}-01", span.trace_id(), span.span_id());
        assert!(broker.log().contains(&name), "{name}: {}", broker.log());
    }
    let untraced = client.lock("lock-3").try_acquire().await;
    assert!(untraced.is_ok(), "{untraced:?}");
    let traced = broker.log().matches("traceparent=").count();
    assert_eq!(traced, 2, "{}", broker.log());
}

#[tokio::test]
async fn waits_and_holds_are_measured_by_outcome() {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    global::set_meter_provider(provider.clone());
    let broker = fake::Broker::new();
    let client = broker.client("test").expect("a client");
    let guard = client.lock("a").acquire().await.expect("it is free");
    let busy = client.lock("a").try_acquire().await;
    assert!(busy.is_ok_and(|guard| guard.is_none()));
    let late = client.lock("a").wait(Duration::from_millis(1)).acquire();
    assert!(late.await.is_err());
    guard.release().await.expect("it was held");
    let guard = client.lock("a").acquire().await.expect("it is free");
    broker.lose("a");
    drop(guard);
    provider.force_flush().expect("metrics are read");
    let wait = counts(&exporter, "leasehold.client.wait.duration");
    let hold = counts(&exporter, "leasehold.client.hold.duration");
    let expected = [("granted", 2), ("held", 1), ("wait_timeout", 1)];
    assert_eq!(wait, expected.map(|(key, n)| (key.to_owned(), n)).into());
    let expected = [("lost", 1), ("released", 1)];
    assert_eq!(hold, expected.map(|(key, n)| (key.to_owned(), n)).into());
}

/// Returns the number of measurements for each outcome.
fn counts(exporter: &InMemoryMetricExporter, name: &str) -> BTreeMap<String, u64> {
    let exported = exporter.get_finished_metrics().expect("they were exported");
    let newest = exported.last().expect("there are some");
    let scopes = newest.scope_metrics();
    let metrics = scopes.flat_map(|scope| scope.metrics());
    let metric = metrics.into_iter().find(|metric| metric.name() == name);
    let metric = metric.expect("it is exported");
    assert_eq!(metric.unit(), "s");
    let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() else {
        panic!("a histogram: {metric:?}")
    };
    let points = histogram.data_points().map(|point| {
        let outcome = point.attributes().next().expect("an outcome");
        (outcome.value.to_string(), point.count())
    });
    points.collect()
}
