//! What the broker's user needs in a cluster, as the documentation prints it.

use std::slice::from_ref;

use leasehold_server::store::{
    Store as _,
    redis::{
        init::init_store,
        login::{Login, Secret},
    },
};
use leasehold_tests::{
    cluster::{ClusterDeployment, ClusterOptions, SLOTS},
    cluster_store::{ClusterStore, PREFIX, config, lock_in, slot_of_lock},
    printed_rights,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_rights_are_enough_and_those_of_a_cluster_are_used() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let (_, more) = printed_rights::in_a_cluster();
    assert_eq!(more.len(), 4, "{more:?}");
    printed_rights::give(&cluster, "secret").await;
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        raw.must(&["CONFIG", "RESETSTAT"]).await;
    }
    let mut config = config(&cluster);
    let secret = |text: &str| Some(Secret::Text(text.to_owned()));
    config.login = Login {
        username: secret("leasehold"),
        password: secret("secret"),
    };
    init_store(config.clone()).await.expect("it is empty");
    let stores = [
        ClusterStore::start(config.clone()).await,
        ClusterStore::start(config).await,
    ];
    let lock = lock_in(|slot| slot < SLOTS / 4, "lock");
    let lease = stores[0].granted(&lock).await;
    let mut migration = cluster.begin_migration(slot_of_lock(&lock), 1).await;
    let key = format!("{PREFIX}{}", lock.encoded());
    migration.move_keys(from_ref(&key)).await;
    stores[1].renewed(&lease).await;
    stores[1].store.touch(&lock).await.expect("a touch");
    stores[0].released(&lease).await;

    let mut used = String::new();
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        let denied = raw.must(&["ACL", "LOG"]).await;
        assert!(denied.array().is_empty(), "{denied:?}");
        used.push_str(raw.must(&["INFO", "commandstats"]).await.text());
    }
    for right in more.iter().filter_map(|right| right.strip_prefix('+')) {
        let is_used = used.contains(&format!("cmdstat_{right}:"));
        assert!(is_used, "{right} is granted and not used");
    }
}
