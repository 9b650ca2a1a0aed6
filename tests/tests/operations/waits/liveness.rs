//! Kubernetes restarts a broker that stands still: the liveness probe of the chart fails as often as its threshold says.

use leasehold_tests::{
    pods::{Pod, Rendered, address},
    redis_server::RedisServer,
    until::until,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_fails_its_liveness_probe() {
    let redis = RedisServer::start().await;
    let set = [format!("store.url={}", redis.url())];
    let rendered = Rendered::from_values("default", &set);
    rendered.run_job("-init-store").await;
    let pod = Pod::start(&rendered, address(1)).await;
    assert!(pod.is_well("livenessProbe").await);
    pod.broker().pause().await;
    let (threshold, _) = pod.patience("livenessProbe");
    for _ in 0..threshold {
        assert!(!pod.is_well("livenessProbe").await);
    }
    pod.broker().resume();
    until("it ticks again", async || {
        pod.is_well("livenessProbe").await.then_some(())
    })
    .await;
    pod.stop().await;
}
