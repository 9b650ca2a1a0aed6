//! Conditions that brokers reject or report before they serve a cluster, and while they serve it.

use leasehold_tests::{
    broker::process::BrokerProcess,
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions},
        fixture::{ClusterFixture, DeploymentKeyFile, broker_options},
    },
    process::ports::free_port,
    redis::server::RedisServer,
    scale::print_figures,
    until::until,
};

/// Clock difference that exceeds the permitted difference between masters.
const AHEAD_MS: i64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_clusters_are_rejected_with_one_sentence() {
    let key = DeploymentKeyFile::create();
    let cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        ..ClusterOptions::default()
    })
    .await;
    let no_key = broker_options(cluster.url(), None)
        .failed_start_output()
        .await;
    assert!(no_key.contains("deployment_key_file"), "{no_key}");

    let single = RedisServer::start().await;
    let url = format!("redis-cluster://{}", single.addr());
    let no_cluster = broker_options(url, Some(&key)).failed_start_output().await;
    assert!(no_cluster.contains("cluster"), "{no_cluster}");

    let nobody = format!("redis-cluster://127.0.0.1:{}", free_port());
    let nobody = broker_options(nobody, Some(&key))
        .failed_start_output()
        .await;
    assert!(nobody.contains("127.0.0.1"), "{nobody}");

    let as_one = format!("redis://{}", cluster.addr(0));
    let as_one = broker_options(as_one, Some(&key))
        .failed_start_output()
        .await;
    assert!(as_one.contains("cluster"), "{as_one}");
    print_figures(&format!(
        "cluster_eras refused: {} | {} | {} | {}",
        last_line(&no_key),
        last_line(&no_cluster),
        last_line(&nobody),
        last_line(&as_one)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cost_availability_are_reported() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 0).await;
    let (done, well) = fixture.options.run("check-config", &["--connect"]).await;
    assert!(done, "{well}");
    assert!(!well.contains("cluster-require-full-coverage"), "{well}");
    let mut raw = fixture.cluster.connect(1).await;
    let full = ["CONFIG", "SET", "cluster-require-full-coverage", "yes"];
    raw.must(&full).await;
    let (_, output) = fixture.options.run("check-config", &["--connect"]).await;
    let addr = fixture.cluster.addr(1).to_string();
    let names_it = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("cluster-require-full-coverage") && line.contains(&addr))
    };
    assert!(names_it(&output), "{output}");
    let broker = BrokerProcess::launch(&fixture.options).await;
    until("a broker says so", async || {
        names_it(&broker.log()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_are_reported() {
    let fixture = ClusterFixture::start(
        ClusterOptions {
            has_private_clocks: true,
            ..ClusterOptions::default()
        },
        1,
    )
    .await;
    let about_clocks = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("clock"))
    };
    let early = fixture.brokers[0].log();
    assert!(!about_clocks(&early), "{early}");
    fixture.cluster.server(2).clock().step(AHEAD_MS);
    let stepped = boottime();
    until("a running broker notices", async || {
        about_clocks(&fixture.brokers[0].log()).then_some(())
    })
    .await;
    let noticed = boottime() - stepped;
    let (_, output) = fixture.options.run("check-config", &["--connect"]).await;
    assert!(about_clocks(&output), "{output}");
    let later = BrokerProcess::start(&fixture.options).await;
    until("a new broker says so", async || {
        about_clocks(&later.log()).then_some(())
    })
    .await;
    print_figures(&format!(
        "cluster_eras clocks {AHEAD_MS} ms apart: noticed after {} ms; check-config: {}",
        noticed.as_millis(),
        last_line(&output)
    ));
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
