//! A guarded cluster: TLS between all, certificates on both sides, a user with the printed rights.

use std::fs;

use leasehold_tests::{
    cluster::ClusterDeployment,
    cluster_course::runs_its_course,
    cluster_site::{ClusterSite, SHARDS, quick},
    printed_rights,
    temp_dir::TempDir,
    tls_files::TlsFiles,
};

const NAME: &str = "redis.test";
const BROKERS: usize = 2;
/// Commands and looks.
const CONNECTIONS: usize = 2;

/// A cluster whose servers have these names in their certificates.
async fn guarded(names: &[&str], options: &[&str]) -> (ClusterSite, TlsFiles) {
    let files = TlsFiles::create(names);
    let mut cluster = quick();
    cluster.tls = files.of_server();
    cluster.options = options.iter().map(|&word| word.to_owned()).collect();
    let mut site = ClusterSite::unprepared(cluster).await;
    site.options.store = url(&site.cluster, "127.0.0.1");
    site.options.env.extend(files.of_broker());
    (site, files)
}

/// The first masters, by this name.
fn url(cluster: &ClusterDeployment, host: &str) -> String {
    let ports = (0..SHARDS).map(|index| cluster.tls_addr(index).port());
    let addrs: Vec<_> = ports.map(|port| format!("{host}:{port}")).collect();
    format!("redis-cluster://{}", addrs.join(","))
}

fn set(site: &mut ClusterSite, key: &str, value: &str) {
    let key = format!("LEASEHOLD__STORE__{key}");
    site.options.env.push((key, value.to_owned()));
}

/// What a broker says that does not start.
async fn refused(site: &ClusterSite) -> String {
    let anywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let (done, said) = site.options.run("serve", &anywhere).await;
    assert!(!done, "it ended well: {said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_cluster_is_served_by_tls_alone_with_the_printed_rights() {
    let (mut site, _files) = guarded(&[NAME], &[]).await;
    printed_rights::give(&site.cluster, "the password").await;
    let other_name = refused(&site).await;
    assert!(other_name.contains("do not agree on TLS"), "{other_name}");
    assert!(other_name.contains("127.0.0.1"), "{other_name}");
    set(&mut site, "TLS_SERVER_NAME", NAME);
    let login = TempDir::new("login");
    for (key, text) in [("USERNAME", "leasehold"), ("PASSWORD", "another one")] {
        let path = login.path().join(key);
        fs::write(&path, text).expect("write a file");
        set(&mut site, &format!("{key}_FILE"), &path.to_string_lossy());
    }
    let no_user = refused(&site).await;
    assert!(no_user.contains("refuses this broker's user"), "{no_user}");
    assert!(!no_user.contains("another one"), "{no_user}");
    let no_certificate = {
        let mut bare = site.options.clone();
        let of_client = ["TLS_CERT_FILE", "TLS_KEY_FILE"];
        let is_of_client = |key: &str| of_client.iter().any(|end| key.ends_with(end));
        bare.env.retain(|(key, _)| !is_of_client(key));
        let (done, said) = bare.run("init-store", &[]).await;
        assert!(!done, "{said}");
        said
    };
    assert!(
        no_certificate.contains("store.tls_cert_file"),
        "{no_certificate}"
    );

    let password = login.path().join("PASSWORD");
    fs::write(&password, "the password").expect("write a file");
    site.options.init_store().await;
    site.add_brokers(BROKERS).await;
    for index in 0..SHARDS {
        let mut raw = site.cluster.connect(index).await;
        let connected = raw.must(&["CLIENT", "LIST"]).await.text().to_owned();
        let brokers = connected
            .lines()
            .filter(|line| line.contains(" user=leasehold "));
        let by_tls = format!(" laddr={} ", site.cluster.tls_addr(index));
        let guarded = brokers.clone().filter(|line| line.contains(&by_tls));
        assert!(guarded.count() >= CONNECTIONS * BROKERS, "{connected}");
        assert!(brokers.into_iter().all(|line| line.contains(&by_tls)));
    }
    runs_its_course(&mut site, "cluster_tls by address").await;
    for index in 1..site.cluster.count() {
        let mut raw = site.cluster.connect(index).await;
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
    let (mut site, _files) = guarded(&["localhost"], &by_name).await;
    let by_address = refused(&site).await;
    assert!(by_address.contains("do not agree on TLS"), "{by_address}");
    assert!(by_address.contains("names 127.0.0.1"), "{by_address}");
    site.options.store = url(&site.cluster, "localhost");
    site.options.init_store().await;
    site.add_brokers(BROKERS).await;
    runs_its_course(&mut site, "cluster_tls by name").await;
}
