//! A cluster with full access control: TLS on all connections, certificates on both sides, and a
//! user with the documented ACL rules.

use std::fs;

use leasehold_tests::{
    cluster::{
        deployment::ClusterDeployment,
        fixture::{ClusterFixture, SHARDS, fast_failover_options},
        scenario::run_scenario,
    },
    process::temp_dir::TempDir,
    redis::{documented_acl_rules, tls_files::StoreTlsFiles},
};

const NAME: &str = "redis.test";
const BROKERS: usize = 2;
/// Connections of a node for commands and for inspection.
const CONNECTIONS: usize = 2;

/// Starts a cluster of servers with these names in their certificates.
async fn start_with_tls(names: &[&str], options: &[&str]) -> (ClusterFixture, StoreTlsFiles) {
    let files = StoreTlsFiles::create(names);
    let mut cluster = fast_failover_options();
    cluster.tls = files.server_options();
    cluster.server_options = options.iter().map(|&word| word.to_owned()).collect();
    let mut fixture = ClusterFixture::uninitialized(cluster).await;
    fixture.options.store = url(&fixture.cluster, "127.0.0.1");
    fixture.options.env.extend(files.broker_settings());
    (fixture, files)
}

/// Returns a URL with this host name and the TLS ports of the first masters.
fn url(cluster: &ClusterDeployment, host: &str) -> String {
    let ports = (0..SHARDS).map(|index| cluster.tls_addr(index).port());
    let addrs: Vec<_> = ports.map(|port| format!("{host}:{port}")).collect();
    format!("redis-cluster://{}", addrs.join(","))
}

fn set(fixture: &mut ClusterFixture, key: &str, value: &str) {
    let key = format!("LEASEHOLD__STORE__{key}");
    fixture.options.env.push((key, value.to_owned()));
}

/// Returns the output of a broker that fails to start.
async fn refused(fixture: &ClusterFixture) -> String {
    let anywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let (succeeded, output) = fixture.options.run("serve", &anywhere).await;
    assert!(!succeeded, "it ended well: {output}");
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_cluster_is_served_by_tls_alone_with_the_printed_rights() {
    let (mut fixture, _files) = start_with_tls(&[NAME], &[]).await;
    documented_acl_rules::create_acl_user(&fixture.cluster, "the password").await;
    let other_name = refused(&fixture).await;
    assert!(other_name.contains("do not agree on TLS"), "{other_name}");
    assert!(other_name.contains("127.0.0.1"), "{other_name}");
    set(&mut fixture, "TLS_SERVER_NAME", NAME);
    let login = TempDir::new("login");
    for (key, text) in [("USERNAME", "leasehold"), ("PASSWORD", "another one")] {
        let path = login.path().join(key);
        fs::write(&path, text).expect("write a file");
        set(
            &mut fixture,
            &format!("{key}_FILE"),
            &path.to_string_lossy(),
        );
    }
    let no_user = refused(&fixture).await;
    assert!(no_user.contains("rejects this broker's user"), "{no_user}");
    assert!(!no_user.contains("another one"), "{no_user}");
    let no_certificate = {
        let mut bare = fixture.options.clone();
        let of_client = ["TLS_CERT_FILE", "TLS_KEY_FILE"];
        let is_of_client = |key: &str| of_client.iter().any(|end| key.ends_with(end));
        bare.env.retain(|(key, _)| !is_of_client(key));
        let (succeeded, output) = bare.run("init-store", &[]).await;
        assert!(!succeeded, "{output}");
        output
    };
    assert!(
        no_certificate.contains("store.tls_cert_file"),
        "{no_certificate}"
    );

    let password = login.path().join("PASSWORD");
    fs::write(&password, "the password").expect("write a file");
    fixture.options.init_store().await;
    fixture.add_brokers(BROKERS).await;
    for index in 0..SHARDS {
        let mut raw = fixture.cluster.connect(index).await;
        let connected = raw.must(&["CLIENT", "LIST"]).await.text().to_owned();
        let brokers = connected
            .lines()
            .filter(|line| line.contains(" user=leasehold "));
        let by_tls = format!(" laddr={} ", fixture.cluster.tls_addr(index));
        let guarded = brokers.clone().filter(|line| line.contains(&by_tls));
        assert!(guarded.count() >= CONNECTIONS * BROKERS, "{connected}");
        assert!(brokers.into_iter().all(|line| line.contains(&by_tls)));
    }
    run_scenario(&mut fixture, "cluster_tls by address").await;
    for index in 1..fixture.cluster.count() {
        let mut raw = fixture.cluster.connect(index).await;
        let denied = raw.must(&["ACL", "LOG"]).await;
        assert!(
            denied
                .array()
                .iter()
                .all(|entry| format!("{entry:?}").contains("\"auth\"")),
            "{denied:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_compared_with_the_names_that_servers_announce() {
    let by_name = [
        "--cluster-announce-hostname",
        "localhost",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let (mut fixture, _files) = start_with_tls(&["localhost"], &by_name).await;
    let by_address = refused(&fixture).await;
    assert!(by_address.contains("do not agree on TLS"), "{by_address}");
    assert!(by_address.contains("names 127.0.0.1"), "{by_address}");
    fixture.options.store = url(&fixture.cluster, "localhost");
    fixture.options.init_store().await;
    fixture.add_brokers(BROKERS).await;
    run_scenario(&mut fixture, "cluster_tls by name").await;
}
