//! What the broker's user needs in a cluster, as the documentation prints it.

use std::slice::from_ref;

use leasehold_server::{
    lock::{Acquire, Filter},
    store::{
        Acquired, Event, Store as _,
        redis::{
            connection::RedisConfig,
            init::init_store,
            login::{Login, Secret},
        },
    },
};
use leasehold_tests::{
    cluster::{ClusterDeployment, ClusterOptions, SLOTS},
    cluster_store::{ClusterStore, PREFIX, TTL_MS, config, lock_in, slot_of_lock},
    conformance::listing::{each_once, listed},
    printed_rights,
    world::{new_call, with_ttl},
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
    let secret = |text: &str| Some(Secret::Text(text.into()));
    config.login = Login {
        username: secret("leasehold"),
        password: secret("secret"),
    };
    init_store(config.clone()).await.expect("it is empty");
    let stores = [
        ClusterStore::start(config.clone()).await,
        ClusterStore::start(config.clone()).await,
    ];
    let shown = lock_in(|slot| slot < SLOTS / 4, "shown");
    stores[0].granted(&shown).await;
    let list = listed(&stores[1].store, &Filter::default(), 10).await;
    assert_eq!(each_once(list), [shown].into());
    let lock = lock_in(|slot| slot < SLOTS / 4, "lock");
    let lease = stores[0].granted(&lock).await;
    let mut migration = cluster.begin_migration(slot_of_lock(&lock), 1).await;
    let key = format!("{PREFIX}{}", lock.encoded());
    migration.move_keys(from_ref(&key)).await;
    stores[1].renewed(&lease).await;
    stores[1].store.touch(&lock).await.expect("a touch");
    stores[0].released(&lease).await;

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

/// Sharded channels need two rights more, and say so at once. Returns these.
async fn use_sharded_channels(cluster: &ClusterDeployment, mut config: RedisConfig) -> Vec<String> {
    config.sharded_pubsub = true;
    let refused = ClusterStore::try_start(config.clone()).await.err();
    let refused = refused.expect("it may not listen").to_string();
    assert!(refused.contains("'ssubscribe'"), "{refused}");
    let sharded = printed_rights::sharded();
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
    let lock = lock_in(|slot| slot < SLOTS / 4, "told");
    let lease = telling.granted(&lock).await;
    let waits = Acquire {
        wait_ms: TTL_MS,
        ..with_ttl(new_call(&lock), TTL_MS)
    };
    let queued = listening.store.acquire(&waits).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    telling.released(&lease).await;
    let told = loop {
        match listening.event().await {
            Event::Resync
            | Event::Replaced
            | Event::Broken(_)
            | Event::Changed(..)
            | Event::Ended(..) => {}
            told @ (Event::HandOff(..)
            | Event::Moved(..)
            | Event::Revoked(..)
            | Event::Rejoin(_)) => break told,
        }
    };
    assert!(
        matches!(&told, Event::HandOff(of, ..) if *of == lock),
        "{told:?}"
    );
    sharded
}
