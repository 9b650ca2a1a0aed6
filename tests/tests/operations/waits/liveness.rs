//! Restart of a paused broker by Kubernetes. The liveness probe of the chart fails as often as its
//! threshold requires.

use leasehold_tests::{
    broker::pods::{Pod, RenderedChart, pod_address},
    redis::server::RedisServer,
    until::until,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_fails_its_liveness_probe() {
    let redis = RedisServer::start().await;
    let set = [format!("store.url={}", redis.url())];
    let rendered = RenderedChart::from_values("default", &set);
    rendered.run_job("-init-store").await;
    let pod = Pod::start(&rendered, pod_address(1)).await;
    assert!(pod.probe_succeeds("livenessProbe").await);
    pod.broker().pause().await;
    let (threshold, _) = pod.probe_threshold("livenessProbe");
    for _ in 0..threshold {
        assert!(!pod.probe_succeeds("livenessProbe").await);
    }
    pod.broker().resume();
    until("it ticks again", async || {
        pod.probe_succeeds("livenessProbe").await.then_some(())
    })
    .await;
    pod.stop().await;
}
