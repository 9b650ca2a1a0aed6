//! Operations of administrators on a healthy server: a backup, and the first replica.

use tokio::process::Command;

use crate::{
    process::{binaries::store_cli, temp_dir::TempDir},
    redis::server::RedisServer,
    until::until,
};

/// Starts a replica of `master` and waits until the replication link is up.
pub async fn start_replica_of(master: &RedisServer) -> RedisServer {
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let mut raw = replica.connect().await;
    until("the replica is in touch", async || {
        let link = raw.info("replication", "master_link_status").await;
        (link.as_deref() == Some("up")).then_some(())
    })
    .await;
    replica
}

/// Takes a backup with `redis-cli --rdb` and deletes it.
pub async fn take_backup(master: &RedisServer) {
    let dir = TempDir::new("backup");
    let file = dir.path().join("backup.rdb");
    let port = master.addr().port().to_string();
    let mut client = Command::new(store_cli());
    client.args(["-h", "127.0.0.1", "-p", &port, "--rdb"]);
    let output = client.arg(&file).output().await;
    let output = output.expect("redis-cli runs");
    assert!(output.status.success(), "{output:?}");
    assert!(file.metadata().expect("a backup").len() > 0);
}
