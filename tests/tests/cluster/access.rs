//! ACL rules of the broker's Redis user in a cluster, as the documentation prints them.

use std::slice::from_ref;

use leasehold_server::{
    lock::{AcquireCommand, Filter},
    store::{
        Acquired, Event, Store as _,
        redis::{
            connection::RedisConfig,
            credentials::{Credentials, Secret},
            init::init_store,
        },
    },
};
use leasehold_tests::{
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions, SLOTS},
        store::{ClusterStore, PREFIX, TTL_MS, config, lock_in, slot_of_lock},
    },
    conformance::listing::{assert_listed_once, list_all},
    redis::documented_acl_rules,
    store_fixture::{new_call, with_ttl},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_rights_are_enough_and_those_of_a_cluster_are_used() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let (_, more) = documented_acl_rules::cluster_acl_rules();
    assert_eq!(more.len(), 4, "{more:?}");
    documented_acl_rules::create_acl_user(&cluster, "secret").await;
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        raw.must(&["CONFIG", "RESETSTAT"]).await;
    }
    let mut config = config(&cluster);
    let secret = |text: &str| Some(Secret::Text(text.into()));
    config.credentials = Credentials {
        username: secret("leasehold"),
        password: secret("secret"),
    };
    init_store(config.clone()).await.expect("it is empty");
    let stores = [
        ClusterStore::start(config.clone()).await,
        ClusterStore::start(config.clone()).await,
    ];
    let shown = lock_in(|slot| slot < SLOTS / 4, "shown");
    stores[0].expect_granted(&shown).await;
    let list = list_all(&stores[1].store, &Filter::default(), 10).await;
    assert_eq!(assert_listed_once(list), [shown].into());
    let lock = lock_in(|slot| slot < SLOTS / 4, "lock");
    let lease = stores[0].expect_granted(&lock).await;
    let mut migration = cluster.start_migration(slot_of_lock(&lock), 1).await;
    let key = format!("{PREFIX}{}", lock.encoded());
    migration.move_keys(from_ref(&key)).await;
    stores[1].expect_renewed(&lease).await;
    stores[1].store.touch(&lock).await.expect("a touch");
    stores[0].expect_released(&lease).await;

    let sharded = use_sharded_channels(&cluster, config).await;

    let mut used = String::new();
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        let denied = raw.must(&["ACL", "LOG"]).await;
        assert!(denied.array().is_empty(), "{denied:?}");
        used.push_str(raw.must(&["INFO", "commandstats"]).await.text());
    }
    for right in more
        .iter()
        .chain(&sharded)
        .filter_map(|right| right.strip_prefix('+'))
    {
        let is_used = used.contains(&format!("cmdstat_{right}:"));
        assert!(is_used, "{right} is granted and not used");
    }
}

/// Asserts that sharded pub/sub fails at start without its two additional ACL rules, and works with
/// them. Returns these rules.
async fn use_sharded_channels(cluster: &ClusterDeployment, mut config: RedisConfig) -> Vec<String> {
    config.sharded_pubsub = true;
    let refused = ClusterStore::try_start(config.clone()).await.err();
    let refused = refused.expect("it may not listen").to_string();
    assert!(refused.contains("'ssubscribe'"), "{refused}");
    let sharded = documented_acl_rules::sharded_pubsub_acl_rules();
    for index in 0..cluster.count() {
        let mut raw = cluster.connect(index).await;
        let words = ["ACL", "SETUSER", "leasehold"].map(str::to_owned);
        let words = [&words[..], &sharded].concat();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        raw.must(&words).await;
        raw.must(&["ACL", "LOG", "RESET"]).await;
    }
    let mut listening = ClusterStore::start(config.clone()).await;
    let telling = ClusterStore::start(config).await;
    let lock = lock_in(|slot| slot < SLOTS / 4, "notified");
    let lease = telling.expect_granted(&lock).await;
    let waits = AcquireCommand {
        wait_ms: TTL_MS,
        ..with_ttl(new_call(&lock), TTL_MS)
    };
    let queued = listening.store.acquire(&waits).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    telling.expect_released(&lease).await;
    let log = loop {
        match listening.next_event().await {
            Event::Resync
            | Event::ServerReplaced
            | Event::AssumptionViolated(_)
            | Event::Changed(..)
            | Event::Ended(..) => {}
            log @ (Event::HandOff(..)
            | Event::Moved(..)
            | Event::Revoked(..)
            | Event::Rejoin(_)) => break log,
        }
    };
    assert!(
        matches!(&log, Event::HandOff(of, ..) if *of == lock),
        "{log:?}"
    );
    sharded
}
