//! What brokers refuse or report before they serve a cluster, and while they do.

use leasehold_tests::{
    broker_process::BrokerProcess,
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions},
    cluster_site::{ClusterSite, KeyFile, options_on},
    port::free_port,
    redis_server::RedisServer,
    scale::figures,
    until::until,
};

/// More than clocks of masters may differ.
const AHEAD_MS: i64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_fit_is_refused_in_a_sentence() {
    let key = KeyFile::create();
    let cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        ..ClusterOptions::default()
    })
    .await;
    let no_key = options_on(cluster.url(), None).refused().await;
    assert!(no_key.contains("deployment_key_file"), "{no_key}");

    let single = RedisServer::start().await;
    let url = format!("redis-cluster://{}", single.addr());
    let no_cluster = options_on(url, Some(&key)).refused().await;
    assert!(no_cluster.contains("cluster"), "{no_cluster}");

    let nobody = format!("redis-cluster://127.0.0.1:{}", free_port());
    let nobody = options_on(nobody, Some(&key)).refused().await;
    assert!(nobody.contains("127.0.0.1"), "{nobody}");

    let as_one = format!("redis://{}", cluster.addr(0));
    let as_one = options_on(as_one, Some(&key)).refused().await;
    assert!(as_one.contains("cluster"), "{as_one}");
    figures(&format!(
        "cluster_eras refused: {} | {} | {} | {}",
        last_line(&no_key),
        last_line(&no_cluster),
        last_line(&nobody),
        last_line(&as_one)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cost_availability_are_reported() {
    let site = ClusterSite::start(ClusterOptions::default(), 0).await;
    let (done, well) = site.options.run("check-config", &["--connect"]).await;
    assert!(done, "{well}");
    assert!(!well.contains("cluster-require-full-coverage"), "{well}");
    let mut raw = site.cluster.connect(1).await;
    let full = ["CONFIG", "SET", "cluster-require-full-coverage", "yes"];
    raw.must(&full).await;
    let (_, told) = site.options.run("check-config", &["--connect"]).await;
    let addr = site.cluster.addr(1).to_string();
    let names_it = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("cluster-require-full-coverage") && line.contains(&addr))
    };
    assert!(names_it(&told), "{told}");
    let broker = BrokerProcess::launch(&site.options).await;
    until("a broker says so", async || {
        names_it(&broker.log()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_are_reported() {
    let site = ClusterSite::start(
        ClusterOptions {
            clocks: true,
            ..ClusterOptions::default()
        },
        1,
    )
    .await;
    let about_clocks = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("clock"))
    };
    let early = site.brokers[0].log();
    assert!(!about_clocks(&early), "{early}");
    site.cluster.server(2).clock().step(AHEAD_MS);
    let stepped = boottime();
    until("a running broker notices", async || {
        about_clocks(&site.brokers[0].log()).then_some(())
    })
    .await;
    let noticed = boottime() - stepped;
    let (_, told) = site.options.run("check-config", &["--connect"]).await;
    assert!(about_clocks(&told), "{told}");
    let later = BrokerProcess::start(&site.options).await;
    until("a new broker says so", async || {
        about_clocks(&later.log()).then_some(())
    })
    .await;
    figures(&format!(
        "cluster_eras clocks {AHEAD_MS} ms apart: noticed after {} ms; check-config: {}",
        noticed.as_millis(),
        last_line(&told)
    ));
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
